"""ipvi-dgp: an implicit posterior over V, known only through its draws, learned by an adversarial pair per layer.

A generator turns noise into V. A discriminator is trained to tell the generator's draws from reference draws; it
estimates the log ratio T of the two densities, which the KL divergence to the prior needs. In the MLP form, noise `e`
is warped, `w = e + tanh(MLP(e))`, and mapped, `V = m + L w`, so that

    KL(q(V) || N(0, I)) = E[T(w) + log N(w; 0, I) - log N(m + L w; 0, I)] - log |L|

with `T = log q(w) / N(w; 0, I)`. Only T is estimated. However far the posterior is from the prior, the discriminator
compares a nearly standard normal w with a standard normal one (adaptive contrast, Mescheder et al., 2017). Without the
warp, q is svgp's full Gaussian.

`form="linear"` is the form that the method's authors released: `V_m = W^T [e_m; z_m] + b` and
`T_m = w^T [V_m; z_m] + b`, with the prior as the reference and the mean over m as the KL.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from bsgp.inference.history import Report, silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.objectives import FITC
from bsgp.inference.optimise import apply_gradient, cosine_adam, gradient_step, init_optimiser, run_steps
from bsgp.inference.target import Target
from bsgp.methods.fit import Fit
from bsgp.methods.method import Task
from bsgp.methods.svgp import SVGP, gaussian_model, optimised_target, start
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP
from bsgp.models.layer import Layer
from bsgp.models.likelihoods.gaussian_noise import with_known_variance
from bsgp.models.linalg.numerics import Marginals
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.checks import check_count, check_option, check_positive

FORMS = ("mlp", "linear")


@dataclass(frozen=True)
class ImplicitPlan:
    """Length and settings of the optimisation. Each step updates the discriminators, then everything else."""

    num_steps: int = 12_000
    batch_size: int = 1_000
    num_noise: int = 32
    """Draws of V per step; half of them mirror the other half."""
    num_contrast: int = 256
    """Draws per step that the discriminators are trained on; they are cheap."""
    num_moments: int = 20_000
    """Draws of V from which its final mean and covariance are computed."""
    form: str = "mlp"
    """Form of generators and discriminators, "mlp" or "linear"."""
    width: int = 64
    """Width of the hidden layers of generators and discriminators."""
    learning_rate: float = 0.02
    """First rate of Adam for the GP and for `m` and `L`. All rates fall to a hundredth along a cosine."""
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


class WarpedGenerator(eqx.Module):
    """Generator of the MLP form: `w = e + tanh(MLP(e))`, then `V = m + L w` with the layer's `V` and `root`.

    One MLP serves all outputs. It starts as the identity.
    """

    hidden: Float[Array, "M H"]
    bias: Float[Array, " H"]
    out: Float[Array, "H M"]

    @classmethod
    def init(cls, num_inducing: int, width: int, key: Array, dtype) -> "WarpedGenerator":
        weights = jr.normal(key, (num_inducing, width), dtype) / num_inducing**0.5
        return cls(weights, jnp.zeros(width, dtype), jnp.zeros((width, num_inducing), dtype))

    def warp(self, noise: Float[Array, "S P M"]) -> Float[Array, "S P M"]:
        # bounded: otherwise a generator that is briefly ahead of its discriminator escapes to where that one is wrong
        return noise + jnp.tanh(jnp.tanh(noise @ self.hidden + self.bias[None, None, :]) @ self.out)

    def draw(self, layer: Layer, key: Array, num: int) -> tuple[Float[Array, "S M P"], Float[Array, "S P M"]]:
        """Draws of V, and the w that they were mapped from."""
        assert layer.root is not None  # for the type checker
        w = self.warp(mirrored_noise(key, (num, *layer.V.shape[::-1]), layer.V.dtype))
        mapped = [w[:, p] @ root.T for p, root in enumerate(layer.root)]
        return layer.V[None] + jnp.stack(mapped, axis=2), w

    def kl(
        self, log_ratio: Callable, layer: Layer, V: Float[Array, "S M P"], w: Float[Array, "S P M"]
    ) -> Float[Array, ""]:
        """KL of q(V) from the prior, estimated from draws and the `log_ratio` T of their w."""
        assert layer.root is not None  # for the type checker
        log_det = jnp.sum(jnp.log(jnp.diagonal(layer.root, axis1=1, axis2=2)))
        log_q = jnp.sum(log_ratio(w), axis=1) + jnp.sum(_log_normal(w), axis=(1, 2))  # of w
        return jnp.mean(log_q - jnp.sum(_log_normal(V), axis=(1, 2))) - log_det

    def discriminator_loss(self, log_ratio: Callable, V, w: Float[Array, "S P M"], key: Array) -> Float[Array, ""]:
        """Logistic loss of telling draws of w from standard normal noise."""
        del V
        return _logistic_loss(log_ratio(w), log_ratio(jr.normal(key, w.shape, w.dtype)))


class Discriminator(eqx.Module):
    """Log ratio T(w) for each output, from w and its squares: between two Gaussians T is quadratic."""

    linear: Float[Array, " F"]
    hidden: Float[Array, "F H"]
    bias: Float[Array, " H"]
    out: Float[Array, " H"]
    constant: Float[Array, ""]

    @classmethod
    def init(cls, num_inducing: int, width: int, key: Array, dtype) -> "Discriminator":
        size = 2 * num_inducing
        weights = jr.normal(key, (size, width), dtype) / size**0.5
        zeros = jnp.zeros(width, dtype)
        return cls(jnp.zeros(size, dtype), weights, zeros, zeros, jnp.zeros((), dtype))

    def __call__(self, w: Float[Array, "S P M"]) -> Float[Array, "S P"]:
        features = jnp.concatenate([w, (w * w - 1.0) * 0.5**0.5], axis=-1)
        hidden = jnp.tanh(features @ self.hidden + self.bias[None, None, :])
        return features @ self.linear + hidden @ self.out + self.constant


class LinearGenerator(eqx.Module):
    """Generator of the linear form, `V_m = W^T [e_m; z_m] + b` for every m: q is a product of Gaussians."""

    weights: Float[Array, "F P"]
    bias: Float[Array, " P"]

    def draw(self, layer: Layer, key: Array, num: int) -> tuple[Float[Array, "S M P"], Float[Array, "M D"]]:
        """Draws of V, and the inducing inputs."""
        noise = jr.normal(key, (num, *layer.V.shape), layer.V.dtype)
        return _with_inputs(noise, layer.Z) @ self.weights + self.bias[None, None, :], layer.Z

    def kl(self, log_ratio: Callable, layer: Layer, V: Float[Array, "S M P"], Z: Float[Array, "M D"]):
        """KL of q(V) from the prior as released: the mean over inducing points, where a sum would be right."""
        return jnp.mean(log_ratio(V, Z))

    def discriminator_loss(self, log_ratio: Callable, V: Float[Array, "S M P"], Z: Float[Array, "M D"], key: Array):
        """Logistic loss of telling draws of V from draws of the prior."""
        return _logistic_loss(log_ratio(V, Z), log_ratio(jr.normal(key, V.shape, V.dtype), Z))


class LinearDiscriminator(eqx.Module):
    """Log ratio of the linear form, `T_m = w^T [V_m; z_m] + b`."""

    weights: Float[Array, " F"]
    bias: Float[Array, ""]

    def __call__(self, V: Float[Array, "S M P"], Z: Float[Array, "M D"]) -> Float[Array, "S M"]:
        return _with_inputs(V, Z) @ self.weights + self.bias


def _with_inputs(values: Float[Array, "S M P"], Z: Float[Array, "M D"]) -> Float[Array, "S M F"]:
    """Values of each inducing point with its inputs appended."""
    return jnp.concatenate([values, jnp.broadcast_to(Z[None], (values.shape[0], *Z.shape))], axis=-1)


def _log_normal(x: Array) -> Array:
    """Log density of a standard normal without its constant, which cancels wherever this is used."""
    return -0.5 * x * x


def _logistic_loss(of_draws: Array, of_reference: Array) -> Float[Array, ""]:
    return jnp.mean(jax.nn.softplus(-of_draws)) + jnp.mean(jax.nn.softplus(of_reference))


def mirrored_noise(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Standard normal noise whose second half is minus the first, so that linear maps of it have an exact mean."""
    half = jr.normal(key, ((shape[0] + 1) // 2, *shape[1:]), dtype)
    return jnp.concatenate([half, -half])[: shape[0]]


class AdversarialPairs(NamedTuple):
    """A generator and a discriminator for every layer."""

    generators: tuple[WarpedGenerator | LinearGenerator, ...]
    discriminators: tuple[Discriminator | LinearDiscriminator, ...]


def init_pairs(model: DeepGP, plan: ImplicitPlan, key: Array) -> AdversarialPairs:
    """Generators and discriminators before training."""
    generators, discriminators = [], []
    for layer, layer_key in zip(model.layers, jr.split(key, model.depth), strict=True):
        (num_inducing, num_outputs), dtype = layer.V.shape, layer.V.dtype
        generator_key, discriminator_key = jr.split(layer_key)
        if plan.form == "mlp":
            generators.append(WarpedGenerator.init(num_inducing, plan.width, generator_key, dtype))
            discriminators.append(Discriminator.init(num_inducing, plan.width, discriminator_key, dtype))
        else:
            size = num_outputs + layer.Z.shape[1]
            weights = 0.1 * jr.normal(generator_key, (size, num_outputs), dtype)
            generators.append(LinearGenerator(weights, jnp.zeros(num_outputs, dtype)))
            weights = 0.1 * jr.normal(discriminator_key, (size,), dtype)
            discriminators.append(LinearDiscriminator(weights, jnp.zeros((), dtype)))
    return AdversarialPairs(tuple(generators), tuple(discriminators))


def moment_matched_marginals(layer: Layer, X: Float[Array, "N D"], V: Float[Array, "S M P"]) -> Marginals:
    """Mean and variance of `f(x)` at each row, over draws of V and f given V."""
    A_blocks, residual = layer.whitened(X)
    A = jnp.concatenate(A_blocks)
    num, num_inducing, num_outputs = V.shape
    each = (jnp.moveaxis(V, 1, 2).reshape(-1, num_inducing) @ A).reshape(num, num_outputs, -1)
    mean = jnp.mean(each, axis=0)
    spread = jnp.mean((each - mean[None]) ** 2, axis=0)
    return Marginals(layer.add_mean(mean.T, X), residual[:, None] + spread.T)


def bound(
    model: DeepGP, pairs: AdversarialPairs, batch: Batch, key: Array, num_rows: int | float, num_noise: int
) -> Float[Array, ""]:
    """Log expected likelihood of a minibatch scaled to `num_rows` rows, minus the estimated KL of every layer."""
    X, kl = batch.X, jnp.zeros((), batch.X.dtype)
    for index, (layer, generator, discriminator) in enumerate(zip(model.layers, *pairs, strict=True)):
        draw_key, row_key, key = jr.split(key, 3)
        V, source = generator.draw(layer, draw_key, num_noise)
        kl = kl + generator.kl(discriminator, layer, V, source)
        f = moment_matched_marginals(layer, X, V)
        if index < model.depth - 1:
            X = f.mean + jnp.sqrt(f.variance) * jr.normal(row_key, f.mean.shape, f.mean.dtype)
    likelihood = with_known_variance(model.likelihood, batch.known_variance)
    log_likelihood = jnp.sum(batch.weighted(likelihood.log_expected_prob(batch.y, f)))
    return num_rows / batch.X.shape[0] * log_likelihood - kl


def total_discriminator_loss(model: DeepGP, pairs: AdversarialPairs, key: Array, num_noise: int) -> Float[Array, ""]:
    """Sum of the discriminators' losses over layers, on fresh draws of the generators."""
    total = jnp.zeros((), model.layers[0].V.dtype)
    for layer, generator, discriminator in zip(model.layers, *pairs, strict=True):
        draw_key, reference_key, key = jr.split(key, 3)
        V, source = jax.lax.stop_gradient(generator.draw(layer, draw_key, num_noise))
        total = total + generator.discriminator_loss(discriminator, V, source, reference_key)
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
    """Optimises the pairs and every free block of `target`."""
    clock = clock or Clock()
    data = target.data_of(X, y)
    init_key, step_key, draw_key = jr.split(key, 3)
    gp, pairs = start(target), init_pairs(target.model, plan, init_key)
    rates = plan.learning_rate, plan.generator_rate, plan.discriminator_rate
    # two sides that react to each other need a short memory, as usual for adversarial training
    gp_adam, generator_adam, discriminator_adam = (
        cosine_adam(rate, plan.num_steps, b1=b1) for rate, b1 in zip(rates, (0.9, 0.5, 0.5), strict=True)
    )

    def step(state, batch, key):
        (gp, pairs), adam_states = state
        discriminator_key, bound_key = jr.split(key)
        model = gaussian_model(target, gp)

        def discriminator_loss(discriminators):
            trained = pairs._replace(discriminators=discriminators)
            return total_discriminator_loss(model, trained, discriminator_key, plan.num_contrast)

        discriminators, discriminator_state, _ = gradient_step(
            discriminator_adam, discriminator_loss, pairs.discriminators, adam_states[2]
        )

        def loss(free):
            gp, generators = free
            model, trained = gaussian_model(target, gp), AdversarialPairs(generators, discriminators)
            total = bound(model, trained, batch, bound_key, target.scaled_to, plan.num_noise)
            return -(total + target.log_prior(model, without="u")) / target.num_counted

        value, (gp_gradient, generator_gradient) = jax.value_and_grad(loss)((gp, pairs.generators))
        gp, gp_state = apply_gradient(gp_adam, gp_gradient, gp, adam_states[0])
        generators, generator_state = apply_gradient(
            generator_adam, generator_gradient, pairs.generators, adam_states[1]
        )
        pairs = AdversarialPairs(generators, discriminators)
        return ((gp, pairs), (gp_state, generator_state, discriminator_state)), value

    adam_states = (
        init_optimiser(gp_adam, gp),
        init_optimiser(generator_adam, pairs.generators),
        init_optimiser(discriminator_adam, pairs.discriminators),
    )
    done = run_steps(
        step, ((gp, pairs), adam_states), data, step_key,
        num_steps=plan.num_steps, batch_size=plan.batch_size, phase="optimise", report=report, clock=clock,
        gradients_per_step=2,
    )  # fmt: skip
    gp, pairs = done.state[0]
    model = moment_matched_model(gaussian_model(target, gp), pairs, draw_key, plan.num_moments)
    return Fit(Posterior.from_single(model), done.history)


def moment_matched_model(model: DeepGP, pairs: AdversarialPairs, key: Array, num: int) -> DeepGP:
    """The model with a Gaussian V in every layer, of the mean and covariance of the generator's draws.

    Training matches moments at every row and layer, so that these moments are what was fitted. A mixture over draws of
    V would be a different predictive distribution.
    """
    layers = []
    for layer, generator, layer_key in zip(model.layers, pairs.generators, jr.split(key, model.depth), strict=True):
        V, _ = generator.draw(layer, layer_key, num)
        mean = jnp.mean(V, axis=0)
        centred = jnp.moveaxis(V - mean[None], 2, 0)  # [P S M]
        # the R of a QR factorisation is a root of the covariance that needs no jitter
        roots = [jnp.linalg.qr(each, mode="r").T / num**0.5 for each in centred]
        layers.append(Layer(layer.kernel, layer.Z, mean, layer.W, layer.jitter, jnp.stack(roots)))
    return DeepGP(tuple(layers), model.likelihood)


def _fit(task: Task) -> Fit:
    model_key, key = jr.split(task.key)
    target = optimised_target(task.start_model(model_key), task.num_rows, FITC(), task.source.total_weight)
    # on few rows a log of expectations keeps overfitting after an expectation of logs would have settled
    plan = ImplicitPlan(num_steps=task.by_rows(1_500, 6_000))
    return fit_implicit(target, *task.rows, key, plan=plan, report=task.report, clock=task.clock)


IPVI_DGP = replace(
    SVGP,
    name="ipvi-dgp",
    about="An implicit posterior over u, learned by a generator and a discriminator.",
    objectives=("log of the expectation",),
    u="implicit q",
    fit=_fit,
)
