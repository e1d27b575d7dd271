"""svgp and fitc-svgp: a Gaussian q over V, with Z, kernels and noise optimised along with it.

Both maximise `sum_n E_q[objective_n] - KL(q(V) || N(0, I))` on minibatches. svgp has the expectation of the log
likelihood over all of f; fitc-svgp has that over u of the log of the expectation over f given u, which for Gaussian
noise is a noise that differs from row to row. Hidden layers are passed by one draw per row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bsgp.checks import check_count, check_positive
from bsgp.fitted import Fit
from bsgp.history import Report, silent
from bsgp.likelihoods import LOG_2PI, AbstractLikelihood, Gaussian
from bsgp.model import DeepGP
from bsgp.numerics import Marginals, gauss_hermite, normal_lattice
from bsgp.optimise import Clock, cosine_adam, minimise
from bsgp.posterior import Posterior
from bsgp.target import Batch, Target

HIDDEN_START = 1e-3  # standard deviation of q in hidden layers: the linear means are a good place to begin from
LAST_START = 0.1
NUM_NODES = 32


@dataclass(frozen=True)
class VariationalPlan:
    """How long to optimise, and how."""

    num_steps: int = 15_000
    learning_rate: float = 0.02
    """Of the first step; it falls to a hundredth of it along a cosine."""
    batch_size: int = 1_000

    def __post_init__(self):
        check_count("num_steps", self.num_steps)
        check_count("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)


class Variational(NamedTuple):
    """What is optimised: a position of the target, and a factor of each layer's covariance."""

    position: DeepGP
    roots: tuple[Float[Array, "P M M"], ...]
    """Lower triangles, with logarithms on the diagonal."""


def start(target: Target) -> Variational:
    roots = []
    for index, layer in enumerate(target.model.layers):
        scale = LAST_START if index == target.model.depth - 1 else HIDDEN_START
        num_inducing, num_outputs = layer.V.shape
        log_diagonal = np.log(scale) * jnp.eye(num_inducing, dtype=layer.V.dtype)
        roots.append(jnp.broadcast_to(log_diagonal, (num_outputs, num_inducing, num_inducing)))
    return Variational(target.start(), tuple(roots))


def gaussian_model(target: Target, at: Variational) -> DeepGP:
    """The model with a Gaussian V in every layer."""
    model, _ = target.constrain(at.position)
    roots = [_lower(raw) for raw in at.roots]
    return eqx.tree_at(lambda m: [layer.root for layer in m.layers], model, roots, is_leaf=lambda leaf: leaf is None)


def _lower(raw: Float[Array, "P M M"]) -> Float[Array, "P M M"]:
    diagonal = jnp.exp(jnp.diagonal(raw, axis1=1, axis2=2))
    return jnp.tril(raw, -1) + diagonal[:, :, None] * jnp.eye(raw.shape[1], dtype=raw.dtype)[None]


def kl_to_prior(V: Float[Array, "M P"], root: Float[Array, "P M M"]) -> Float[Array, ""]:
    """`KL(N(V, root root^T) || N(0, I))`, summed over outputs."""
    log_diagonal = jnp.log(jnp.diagonal(root, axis1=1, axis2=2))
    return 0.5 * (jnp.sum(V * V) + jnp.sum(root * root) - V.size) - jnp.sum(log_diagonal)


def elbo(model: DeepGP, batch: Batch, key: Array, num_counted: int | float, objective: str) -> Float[Array, ""]:
    """The bound of a model with Gaussian V on a minibatch, scaled to all rows."""
    mean, left, spread = model.layers[-1].parts(model.hidden(batch.X, key))
    if objective == "vfe":
        each = model.likelihood.expected_log_prob(batch.y, Marginals(mean, left[:, None] + spread))
    else:
        each = expected_log_marginal(model.likelihood, batch.y, Marginals(mean, spread), left)
    kl = sum(kl_to_prior(layer.V, layer.root) for layer in model.layers if layer.root is not None)
    return num_counted / batch.X.shape[0] * jnp.sum(each) - kl


def expected_log_marginal(
    likelihood: AbstractLikelihood, y: Float[Array, "N P"], g: Marginals, left: Float[Array, " N"]
) -> Float[Array, "N P"]:
    """`E log E p(y | f)`: inside over `f ~ N(g, left)`, outside over g, which is known by its marginals."""
    if isinstance(likelihood, Gaussian):
        variance = left[:, None] + likelihood.noise_variance[None, :]
        return -0.5 * (LOG_2PI + jnp.log(variance) + ((y - g.mean) ** 2 + g.variance) / variance)
    num_latent = g.mean.shape[1]
    if num_latent == 1:
        nodes, weights = gauss_hermite(NUM_NODES)
        nodes = nodes[:, None]
    else:
        nodes = normal_lattice(2 * NUM_NODES, num_latent)
        weights = np.full(len(nodes), 1.0 / len(nodes))
    scale = jnp.sqrt(jnp.maximum(g.variance, float(jnp.finfo(y.dtype).tiny) ** 0.5))
    inner = jnp.broadcast_to(left[:, None], g.mean.shape)

    def add(total, at):
        node, weight = at
        shifted = Marginals(g.mean + scale * node[None, :], inner)
        return total + weight * likelihood.log_expected_prob(y, shifted), None

    at = jnp.asarray(nodes, y.dtype), jnp.asarray(weights, y.dtype)
    return jax.lax.scan(add, jnp.zeros_like(y), at)[0]


def fit_variational(
    target: Target,
    X,
    y,
    key: Array,
    *,
    plan: VariationalPlan = VariationalPlan(),
    report: Report = silent,
    clock: Clock | None = None,
    share: float = 1.0,
) -> Fit:
    """Optimise q and every free block of `target`, whose objective tells the two methods apart.

    `share` is the part of the clock's time that may be taken, if that is limited.
    """
    clock = clock or Clock()
    data = target.data_of(X, y)

    def loss(at, batch, step_key):
        model = gaussian_model(target, at)
        bound = elbo(model, batch, step_key, target.num_counted, target.objective)
        return -(bound + target.log_prior(model, but_for="u")) / target.num_counted

    done = minimise(
        loss, start(target), cosine_adam(plan.learning_rate, plan.num_steps), data, key,
        num_steps=plan.num_steps, batch_size=plan.batch_size, report=report, clock=clock, share=share,
    )  # fmt: skip
    return Fit(Posterior.from_single(gaussian_model(target, done.state)), done.history(clock.seconds))
