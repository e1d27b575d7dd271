"""mcmc-svgp: Z is optimised as in svgp, then NUTS samples u, kernel and noise with gradients of all rows."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.data.store.sources import as_source
from bsgp.inference.anchor import Anchor
from bsgp.inference.history import Report, silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.nuts import NutsPlan, sample_nuts
from bsgp.inference.objectives import VFE
from bsgp.inference.programs import stack_draws
from bsgp.inference.starts import scattered_starts
from bsgp.inference.target import Target
from bsgp.methods.fit import Fit
from bsgp.methods.method import Method, Task
from bsgp.methods.svgp import VariationalPlan, fit_variational, optimised_target, plan_of
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.posterior.posterior import Posterior

MAX_ROWS = 100_000
"""Limit on the number of rows, because every gradient uses all of them."""
OPTIMISE_SHARE = 0.4  # of a time limit


def fit_mcmc_svgp(
    model: DeepGP,
    X,
    y,
    key: Array,
    *,
    optimise_key: Array | None = None,
    plan: NutsPlan = NutsPlan(),
    optimisation: VariationalPlan = VariationalPlan(),
    num_chains: int = 1,
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Optimises Z as svgp does, then samples u, kernel and noise under the VFE objective.

    Under Gaussian noise, u is integrated out and NUTS samples kernel and noise only; u is then drawn given them.
    Chains that run in different processes must share an `optimise_key`: it determines Z, which defines their target.
    """
    clock, source = clock or Clock(), as_source(X, y)
    num_rows = source.num_rows
    if num_rows > MAX_ROWS:
        raise ValueError(
            f"`X` must have at most {MAX_ROWS:,} rows for `mcmc-svgp`, which uses all of them for every gradient, "
            f'got {num_rows:,}. Use `method="bsgp"`, which works on minibatches.'
        )
    own_optimise_key, start_key, sample_key, u_key = jr.split(key, 4)
    variational_target = optimised_target(model, num_rows, VFE(), source.total_weight)
    data = variational_target.data_of(source)
    assert isinstance(data, Batch)  # for the type checker: the method takes rows in memory only
    optimised = fit_variational(
        variational_target,
        source,
        None,
        own_optimise_key if optimise_key is None else optimise_key,
        plan=optimisation,
        report=report,
        clock=clock,
        share=OPTIMISE_SHARE,
    )
    model = _point_estimate(optimised.posterior)
    is_gaussian = isinstance(model.likelihood, Gaussian)
    anchor = Anchor(data.X, data.y, data.weight, data.known_variance) if is_gaussian else None
    target = Target(
        model, num_rows, objective=VFE(), treatment={"Z": "fix"}, total_weight=source.total_weight, anchor=anchor
    )

    integrates_u = target.integrates_u

    def log_density(position):
        if integrates_u:
            position = _with_V(position, jnp.zeros_like(model.layers[0].V))
        return target.log_joint(position, data, jr.key(0))  # a single layer has no hidden draws to spend a key on

    starts = scattered_starts(target, start_key, num_chains)
    if integrates_u:  # anchored coordinates of u are N(0, I) whatever kernel and noise are: they need no chain
        starts = _with_V(starts, None)
    drawn = sample_nuts(log_density, starts, num_rows, sample_key, plan=plan, report=report, clock=clock)
    positions = drawn.positions
    if integrates_u:
        shape = *jax.tree.leaves(positions)[0].shape[:2], *model.layers[0].V.shape
        positions = _with_V(positions, jr.normal(u_key, shape, data.X.dtype))
    stacked = stack_draws(target, positions, target.select(positions))
    # a gradient of the optimisation uses a minibatch, one of NUTS all rows: count both in passes over all rows
    evaluations = optimised.history.evaluations * min(optimisation.batch_size, num_rows) // num_rows
    optimise_history = replace(optimised.history, evaluations=evaluations)
    return Fit(Posterior(stacked), replace(optimise_history.then(drawn.history), seconds=clock.seconds))


def _point_estimate(posterior: Posterior) -> DeepGP:
    """The model of a variational posterior with V at its mean."""
    model = jax.tree.map(lambda x: x[0, 0], posterior.model)
    assert isinstance(model, DeepGP)  # for the type checker
    return DeepGP(tuple(layer.at(layer.V) for layer in model.layers), model.likelihood)


def _with_V(position: DeepGP, V: Array | None) -> DeepGP:
    """The position with another V of its only layer, None to leave it out."""
    return eqx.tree_at(lambda tree: tree.layers[0].V, position, V, is_leaf=lambda leaf: leaf is None)


def _fit(task: Task) -> Fit:
    model_key, key = jr.split(task.key)
    optimise_key = None
    if task.target_key is not None:
        model_key, optimise_key = jr.split(task.target_key)
    return fit_mcmc_svgp(
        task.start_model(model_key), *task.rows, key,
        optimise_key=optimise_key,
        plan=NutsPlan(warm_up=task.times(200), num_draws=task.times(200)),
        optimisation=plan_of(task),
        num_chains=task.num_chains,
        report=task.report,
        clock=task.clock,
    )  # fmt: skip


MCMC_SVGP = Method(
    name="mcmc-svgp",
    about="NUTS over u, kernel and noise on all rows, after Z was optimised as in svgp.",
    objectives=("vfe",),
    u="sample",
    Z="optimise",
    theta="sample",
    noise="sample",
    fit=_fit,
    has_chains=True,
    can_choose_kernel=True,
    can_weight=True,
    can_know_noise=True,
)
