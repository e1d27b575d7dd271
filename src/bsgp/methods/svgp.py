"""svgp and fitc-svgp: a Gaussian q over V, with Z, kernels and noise optimised along with it.

Both maximise `sum_n E_q[objective_n] - KL(q(V) || N(0, I))` on minibatches. svgp has the VFE objective, the
expectation of the log likelihood over all of f. fitc-svgp has the FITC objective, which under Gaussian noise is a noise
that differs from row to row. Rows pass through hidden layers by one draw each.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bsgp.inference.history import Report, silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.objectives import OBJECTIVES, AbstractObjective
from bsgp.inference.optimise import cosine_adam, minimise
from bsgp.inference.target import ALL_OPTIMISED, Target
from bsgp.methods.fit import Fit
from bsgp.methods.method import Method, Task
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP
from bsgp.models.likelihoods.gaussian_noise import with_known_variance
from bsgp.models.parameters import flat_priors
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.checks import check_count, check_positive

HIDDEN_START = 1e-3  # standard deviation of q in hidden layers: the linear means are a good place to begin from
LAST_START = 0.1


@dataclass(frozen=True)
class VariationalPlan:
    """How long to optimise, and how."""

    num_steps: int = 15_000
    learning_rate: float = 0.02
    """Rate of the first step; it falls to a hundredth along a cosine."""
    batch_size: int = 1_000

    def __post_init__(self):
        check_count("num_steps", self.num_steps)
        check_count("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)


class Variational(NamedTuple):
    """Parameters that are optimised: a position of the target, and a factor of each layer's covariance."""

    position: DeepGP
    roots: tuple[Float[Array, "P M M"], ...]
    """Lower triangles, with logarithms on the diagonal."""


def start(target: Target) -> Variational:
    """A narrow q around the target's start."""
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


def elbo(
    model: DeepGP, batch: Batch, key: Array, num_rows: int | float, objective: AbstractObjective
) -> Float[Array, ""]:
    """Bound of a model with Gaussian V on a minibatch, scaled to `num_rows` rows."""
    mean, residual, spread = model.layers[-1].parts(model.hidden(batch.X, key))
    likelihood = with_known_variance(model.likelihood, batch.known_variance)
    each = batch.weighted(objective.expected_row_terms(likelihood, batch.y, mean, residual, spread))
    kl = sum(kl_to_prior(layer.V, layer.root) for layer in model.layers if layer.root is not None)
    return num_rows / batch.X.shape[0] * jnp.sum(each) - kl


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
    """Optimise q and every free block of `target`, for at most `share` of the clock's time."""
    clock = clock or Clock()
    data = target.data_of(X, y)

    def loss(at, batch, step_key):
        model = gaussian_model(target, at)
        bound = elbo(model, batch, step_key, target.scaled_to, target.objective)
        return -(bound + target.log_prior(model, without="u")) / target.num_counted

    done = minimise(
        loss, start(target), cosine_adam(plan.learning_rate, plan.num_steps), data, key,
        num_steps=plan.num_steps, batch_size=plan.batch_size, report=report, clock=clock, share=share,
    )  # fmt: skip
    return Fit(Posterior.from_single(gaussian_model(target, done.state)), done.history)


def optimised_target(
    model: DeepGP, num_rows: int, objective: AbstractObjective, total_weight: float | None = None
) -> Target:
    """Target of a method that optimises everything.

    FITC overfits few rows unless kernel and noise have the priors of bsgp. VFE is a bound, and better without.
    """
    priors = flat_priors(model) if objective.is_bound else None
    return Target(
        model, num_rows, priors=priors, objective=objective, treatment=ALL_OPTIMISED, total_weight=total_weight
    )


def plan_of(task: Task) -> VariationalPlan:
    """As many steps as the table's size and the user's effort ask for."""
    return VariationalPlan(num_steps=task.by_rows(5_000, 10_000))


def _fit(task: Task) -> Fit:
    model_key, key = jr.split(task.key)
    (objective,) = task.method.objectives
    target = optimised_target(
        task.start_model(model_key), task.num_rows, OBJECTIVES[objective], task.source.total_weight
    )
    return fit_variational(target, *task.rows, key, plan=plan_of(task), report=task.report, clock=task.clock)


SVGP = Method(
    name="svgp",
    about="A Gaussian posterior over u with full covariance, by the evidence lower bound.",
    objectives=("vfe",),
    u="Gaussian q",
    Z="optimise",
    theta="optimise",
    noise="optimise",
    fit=_fit,
    is_deep=True,
    can_stream=True,
    can_choose_kernel=True,
    can_weight=True,
    can_know_noise=True,
)
FITC_SVGP = replace(
    SVGP,
    name="fitc-svgp",
    about="svgp with the FITC objective: a noise that differs from row to row.",
    objectives=("fitc",),
)
