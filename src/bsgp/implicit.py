"""ipvi-dgp: a posterior over V that is known only through its draws, learned by an adversarial pair.

A generator turns noise into V; a discriminator, trained to tell its draws from a reference, estimates the ratio of
the two densities, which the KL needs. Noise `e` is warped, `w = e + tanh(MLP(e))`, and mapped, `V = m + L w`, so that

    KL(q(V) || N(0, I)) = E[T(w) + log N(w; 0, I) - log N(m + L w; 0, I)] - log |L|

with `T = log q(w) / N(w; 0, I)` the only part to be estimated: however far the posterior is from the prior, the
discriminator compares what is nearly standard normal with what is (the adaptive contrast of Mescheder et al., 2017).
Without the warp this is svgp's full Gaussian. `form="linear"` is the form that the authors of the method released:
`V_m = W^T [e_m; z_m] + b` and `T_m = w^T [V_m; z_m] + b`, the prior as the reference, the mean over m for the KL.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from bsgp.checks import check_count, check_option, check_positive
from bsgp.fitted import Fit
from bsgp.history import Report, silent
from bsgp.model import DeepGP, Layer
from bsgp.numerics import Marginals
from bsgp.optimise import Clock, begin, cosine_adam, descend, improve, run_steps
from bsgp.posterior import Posterior
from bsgp.target import Batch, Target
from bsgp.variational import gaussian_model, start

FORMS = ("mlp", "linear")


@dataclass(frozen=True)
class ImplicitPlan:
    """How long to optimise, and how. One step is one of the discriminator and one of all the rest."""

    num_steps: int = 12_000
    batch_size: int = 1_000
    num_noise: int = 32
    """Draws of V per step, half of them the mirror image of the others."""
    num_contrast: int = 256
    """Draws that the discriminator sees per step; they cost little."""
    num_moments: int = 20_000
    """Draws of V that its mean and covariance are taken from at the end."""
    form: str = "mlp"
    width: int = 64
    """Of the hidden layers of generator and discriminator."""
    learning_rate: float = 0.02
    """Of the GP and of `m` and `L`; all rates fall to a hundredth along a cosine."""
    generator_rate: float = 1e-4
    discriminator_rate: float = 5e-3

    def __post_init__(self):
        for name in ("num_steps", "batch_size", "num_moments", "width"):
            check_count(name, getattr(self, name))
        for name in ("num_noise", "num_contrast"):
            check_count(name, getattr(self, name), minimum=2)
        for name in ("learning_rate", "generator_rate", "discriminator_rate"):
            check_positive(name, getattr(self, name))
        check_option("form", self.form, FORMS)


class Warp(eqx.Module):
    """`w = e + tanh(MLP(e))` of each output's noise, with one MLP for all outputs; it begins as the identity."""

    hidden: Float[Array, "M H"]
    bias: Float[Array, " H"]
    out: Float[Array, "H M"]

    @classmethod
    def init(cls, num_inducing: int, width: int, key: Array, dtype) -> "Warp":
        weights = jr.normal(key, (num_inducing, width), dtype) / num_inducing**0.5
        return cls(weights, jnp.zeros(width, dtype), jnp.zeros((width, num_inducing), dtype))

    def __call__(self, noise: Float[Array, "S P M"]) -> Float[Array, "S P M"]:
        # bounded: otherwise a generator that is ahead of its critic for a moment runs off to where the critic is wrong
        return noise + jnp.tanh(jnp.tanh(noise @ self.hidden + self.bias[None, None, :]) @ self.out)


class Critic(eqx.Module):
    """T(w) of each output, from w and its squares: between two Gaussians the log ratio is quadratic."""

    linear: Float[Array, " F"]
    hidden: Float[Array, "F H"]
    bias: Float[Array, " H"]
    out: Float[Array, " H"]
    constant: Float[Array, ""]

    @classmethod
    def init(cls, num_inducing: int, width: int, key: Array, dtype) -> "Critic":
        size = 2 * num_inducing
        weights = jr.normal(key, (size, width), dtype) / size**0.5
        nothing = jnp.zeros(width, dtype)
        return cls(jnp.zeros(size, dtype), weights, nothing, nothing, jnp.zeros((), dtype))

    def __call__(self, w: Float[Array, "S P M"]) -> Float[Array, "S P"]:
        features = jnp.concatenate([w, (w * w - 1.0) * 0.5**0.5], axis=-1)
        hidden = jnp.tanh(features @ self.hidden + self.bias[None, None, :])
        return features @ self.linear + hidden @ self.out + self.constant


class LinearGenerator(eqx.Module):
    """`V_m = W^T [e_m; z_m] + b`, the same for all m: independent Gaussians, and as such no implicit posterior."""

    weights: Float[Array, "F P"]
    bias: Float[Array, " P"]

    def __call__(self, noise: Float[Array, "S M P"], Z: Float[Array, "M D"]) -> Float[Array, "S M P"]:
        return _beside(noise, Z) @ self.weights + self.bias[None, None, :]


class LinearCritic(eqx.Module):
    """`T_m = w^T [V_m; z_m] + b`."""

    weights: Float[Array, " F"]
    bias: Float[Array, ""]

    def __call__(self, V: Float[Array, "S M P"], Z: Float[Array, "M D"]) -> Float[Array, "S M"]:
        return _beside(V, Z) @ self.weights + self.bias


def _beside(each: Float[Array, "S M P"], Z: Float[Array, "M D"]) -> Float[Array, "S M F"]:
    return jnp.concatenate([each, jnp.broadcast_to(Z[None], (each.shape[0], *Z.shape))], axis=-1)


def _log_normal(x: Array) -> Array:
    """Log density of a standard normal but for its constant, which cancels wherever it is used."""
    return -0.5 * x * x


class Implicit(eqx.Module):
    """One layer's posterior in the MLP form; the Gaussian part, `m` and `L`, are the layer's own `V` and `root`."""

    warp: Warp

    def draw(self, layer: Layer, key: Array, num: int) -> tuple[Float[Array, "S M P"], Float[Array, "S P M"]]:
        """Draws of V, and the w that they came from."""
        assert layer.root is not None  # for the type checker
        w = self.warp(mirrored_noise(key, (num, *layer.V.shape[::-1]), layer.V.dtype))
        mapped = [w[:, p] @ root.T for p, root in enumerate(layer.root)]
        return layer.V[None] + jnp.stack(mapped, axis=2), w

    def kl(
        self, critic: Callable, layer: Layer, V: Float[Array, "S M P"], w: Float[Array, "S P M"]
    ) -> Float[Array, ""]:
        assert layer.root is not None  # for the type checker
        log_det = jnp.sum(jnp.log(jnp.diagonal(layer.root, axis1=1, axis2=2)))
        each = jnp.sum(critic(w), axis=1) + jnp.sum(_log_normal(w), axis=(1, 2)) - jnp.sum(_log_normal(V), axis=(1, 2))
        return jnp.mean(each) - log_det

    def told_apart(self, critic: Callable, V, w: Float[Array, "S P M"], key: Array) -> Float[Array, ""]:
        """The critic's loss: how badly it tells `w` from standard normal noise."""
        del V
        return _logistic(critic(w), critic(jr.normal(key, w.shape, w.dtype)))


class ImplicitLinear(eqx.Module):
    """One layer's posterior as released."""

    generator: LinearGenerator

    def draw(self, layer: Layer, key: Array, num: int):
        V = self.generator(jr.normal(key, (num, *layer.V.shape), layer.V.dtype), layer.Z)
        return V, layer.Z

    def kl(self, critic: Callable, layer: Layer, V, Z):
        return jnp.mean(critic(V, Z))

    def told_apart(self, critic: Callable, V: Float[Array, "S M P"], Z, key: Array):
        return _logistic(critic(V, Z), critic(jr.normal(key, V.shape, V.dtype), Z))


def _logistic(of_draws: Array, of_reference: Array) -> Float[Array, ""]:
    return jnp.mean(jax.nn.softplus(-of_draws)) + jnp.mean(jax.nn.softplus(of_reference))


def mirrored_noise(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Standard normal, the second half minus the first: the mean of a linear map of it has no error."""
    half = jr.normal(key, ((shape[0] + 1) // 2, *shape[1:]), dtype)
    return jnp.concatenate([half, -half])[: shape[0]]


class Pair(NamedTuple):
    """A generator and a critic for every layer."""

    generators: tuple[Implicit | ImplicitLinear, ...]
    critics: tuple[Critic | LinearCritic, ...]


def init_pair(model: DeepGP, plan: ImplicitPlan, key: Array) -> Pair:
    generators, critics = [], []
    for layer, layer_key in zip(model.layers, jr.split(key, model.depth), strict=True):
        (num_inducing, num_outputs), dtype = layer.V.shape, layer.V.dtype
        generator_key, critic_key = jr.split(layer_key)
        if plan.form == "mlp":
            generators.append(Implicit(Warp.init(num_inducing, plan.width, generator_key, dtype)))
            critics.append(Critic.init(num_inducing, plan.width, critic_key, dtype))
        else:
            size = num_outputs + layer.Z.shape[1]
            weights = 0.1 * jr.normal(generator_key, (size, num_outputs), dtype)
            generators.append(ImplicitLinear(LinearGenerator(weights, jnp.zeros(num_outputs, dtype))))
            critics.append(LinearCritic(0.1 * jr.normal(critic_key, (size,), dtype), jnp.zeros((), dtype)))
    return Pair(tuple(generators), tuple(critics))


def moment_matched(layer: Layer, X: Float[Array, "N D"], V: Float[Array, "S M P"]) -> Marginals:
    """Mean and variance of `f(x)` at each row when V is one of the draws."""
    A_blocks, left = layer.whitened(X)
    A = jnp.concatenate(A_blocks)
    num, num_inducing, num_outputs = V.shape
    each = (jnp.moveaxis(V, 1, 2).reshape(-1, num_inducing) @ A).reshape(num, num_outputs, -1)
    mean = jnp.mean(each, axis=0)
    spread = jnp.mean((each - mean[None]) ** 2, axis=0)
    return Marginals(layer.add_mean(mean.T, X), left[:, None] + spread.T)


def bound(
    model: DeepGP, pair: Pair, batch: Batch, key: Array, num_counted: int | float, num_noise: int
) -> Float[Array, ""]:
    """The log of the expected likelihood less the estimated KL of every layer, on a minibatch scaled to all rows."""
    X, kl = batch.X, jnp.zeros((), batch.X.dtype)
    for index, (layer, generator, critic) in enumerate(zip(model.layers, *pair, strict=True)):
        draw_key, row_key, key = jr.split(key, 3)
        V, source = generator.draw(layer, draw_key, num_noise)
        kl = kl + generator.kl(critic, layer, V, source)
        f = moment_matched(layer, X, V)
        if index < model.depth - 1:
            X = f.mean + jnp.sqrt(f.variance) * jr.normal(row_key, f.mean.shape, f.mean.dtype)
    log_likelihood = jnp.sum(model.likelihood.log_expected_prob(batch.y, f))
    return num_counted / batch.X.shape[0] * log_likelihood - kl


def critic_loss(model: DeepGP, pair: Pair, key: Array, num_noise: int) -> Float[Array, ""]:
    total = jnp.zeros((), model.layers[0].V.dtype)
    for layer, generator, critic in zip(model.layers, *pair, strict=True):
        draw_key, reference_key, key = jr.split(key, 3)
        V, source = jax.lax.stop_gradient(generator.draw(layer, draw_key, num_noise))
        total = total + generator.told_apart(critic, V, source, reference_key)
    return total


def fit_implicit(
    target: Target,
    X,
    y,
    key: Array,
    *,
    plan: ImplicitPlan = ImplicitPlan(),
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Optimise the pair and every free block of `target`."""
    clock = clock or Clock()
    data = target.data_of(X, y)
    init_key, step_key, draw_key = jr.split(key, 3)
    gp, pair = start(target), init_pair(target.model, plan, init_key)
    rates = plan.learning_rate, plan.generator_rate, plan.discriminator_rate
    # two sides that chase each other need a short memory, as is usual for adversarial pairs
    of_gp, of_generator, of_critic = (
        cosine_adam(rate, plan.num_steps, b1=b1) for rate, b1 in zip(rates, (0.9, 0.5, 0.5), strict=True)
    )

    def step(state, batch, key):
        (gp, pair), states = state
        critic_key, bound_key = jr.split(key)
        model = gaussian_model(target, gp)

        def critics_lose(critics):
            return critic_loss(model, pair._replace(critics=critics), critic_key, plan.num_contrast)

        critics, critic_state, _ = descend(of_critic, critics_lose, pair.critics, states[2])

        def loss(free):
            gp, generators = free
            model = gaussian_model(target, gp)
            total = bound(model, Pair(generators, critics), batch, bound_key, target.num_counted, plan.num_noise)
            return -(total + target.log_prior(model, but_for="u")) / target.num_counted

        value, (gp_slope, generator_slope) = jax.value_and_grad(loss)((gp, pair.generators))
        gp, gp_state = improve(of_gp, gp_slope, gp, states[0])
        generators, generator_state = improve(of_generator, generator_slope, pair.generators, states[1])
        return ((gp, Pair(generators, critics)), (gp_state, generator_state, critic_state)), value

    states = begin(of_gp, gp), begin(of_generator, pair.generators), begin(of_critic, pair.critics)
    done = run_steps(
        step, ((gp, pair), states), data, step_key,
        num_steps=plan.num_steps, batch_size=plan.batch_size, phase="optimise", report=report, clock=clock,
    )  # fmt: skip
    gp, pair = done.state[0]
    model = gaussian_model(target, gp)
    posterior = Posterior.from_single(as_gaussian(model, pair, draw_key, plan.num_moments))
    return Fit(posterior, done.history(clock.seconds, gradients_per_step=2))


def as_gaussian(model: DeepGP, pair: Pair, key: Array, num: int) -> DeepGP:
    """The model with a Gaussian V of the generators' mean and covariance.

    Training matches moments at every row and layer, and these are the moments: a mixture over draws of V would be
    another predictive distribution than the one that was fitted.
    """
    layers = []
    for layer, generator, layer_key in zip(model.layers, pair.generators, jr.split(key, model.depth), strict=True):
        V, _ = generator.draw(layer, layer_key, num)
        mean = jnp.mean(V, axis=0)
        away = jnp.moveaxis(V - mean[None], 2, 0)  # [P S M]
        # the triangle of a QR factorisation is a root of the covariance that needs no jitter
        roots = [jnp.linalg.qr(each, mode="r").T / num**0.5 for each in away]
        layers.append(Layer(layer.kernel, layer.Z, mean, layer.W, layer.jitter, jnp.stack(roots)))
    return DeepGP(tuple(layers), model.likelihood)
