"""mcmc-svgp: Z is optimised as svgp does it, then NUTS samples u, kernel and noise on all rows at once."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.anchor import Anchor
from bsgp.checks import check_matrix
from bsgp.chunks import scattered_starts, stack_draws
from bsgp.fitted import Fit
from bsgp.history import Report, silent
from bsgp.likelihoods import Gaussian
from bsgp.model import DeepGP
from bsgp.nuts import NutsPlan, sample_nuts
from bsgp.optimise import Clock
from bsgp.posterior import Posterior
from bsgp.target import ALL_OPTIMISED, Target, flat_priors
from bsgp.variational import VariationalPlan, fit_variational

MAX_ROWS = 100_000
"""Every gradient passes over all of them."""
START_SPREAD = 0.1
OPTIMISE_SHARE = 0.4  # of the time, if that is limited
SAMPLED = {"u": "sample", "Z": "fix", "theta": "sample", "noise": "sample"}


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
    """Optimise Z as svgp does, then sample u, kernel and noise under the VFE objective.

    With Gaussian noise u is anchored by all rows: it is then N(0, I) whatever the rest is, and NUTS has an easy time.
    Chains that are run one by one must share an `optimise_key`: the Z that it leads to is part of their target.
    """
    clock = clock or Clock()
    X = check_matrix("X", X)
    if X.shape[0] > MAX_ROWS:
        raise ValueError(
            f"mcmc-svgp passes over all rows for every gradient and takes at most {MAX_ROWS:,}, got {X.shape[0]:,}. "
            'Use `method="bsgp"`, which works on minibatches.'
        )
    own_key, start_key, sample_key, u_key = jr.split(key, 4)
    optimise_key = own_key if optimise_key is None else optimise_key
    first = Target(model, X.shape[0], priors=flat_priors(model), objective="vfe", treatment=ALL_OPTIMISED)
    data = first.all_rows(X, y)
    optimised = fit_variational(
        first, X, y, optimise_key, plan=optimisation, report=report, clock=clock, share=OPTIMISE_SHARE
    )
    model = _points(optimised.posterior)
    anchor = Anchor(data.X, data.y) if isinstance(model.likelihood, Gaussian) else None
    target = Target(model, X.shape[0], objective="vfe", treatment=SAMPLED, anchor=anchor)

    integrates_u = target.integrates_u

    def log_density(position):
        if integrates_u:
            position = _with_V(position, jnp.zeros_like(model.layers[0].V))
        return target.log_joint(position, data, jr.key(0))  # a single layer draws nothing

    starts = scattered_starts(target, start_key, num_chains, START_SPREAD)
    if integrates_u:  # xi is N(0, I) whatever the rest is: no need of a chain to draw it
        starts = _with_V(starts, None)
    drawn = sample_nuts(log_density, starts, X.shape[0], sample_key, plan=plan, report=report, clock=clock)
    positions = drawn.positions
    if integrates_u:
        shape = *jax.tree.leaves(positions)[0].shape[:2], *model.layers[0].V.shape
        positions = _with_V(positions, jr.normal(u_key, shape, data.X.dtype))
    stacked = stack_draws(target, positions, target.select(positions))
    before, after = optimised.history, drawn.history
    history = replace(
        after,
        energy={**before.energy, **after.energy},
        evaluations=before.evaluations * min(optimisation.batch_size, X.shape[0]) // X.shape[0] + after.evaluations,
        interrupted=before.interrupted or after.interrupted,
        seconds=clock.seconds,
    )
    return Fit(Posterior(stacked), history)


def _points(posterior: Posterior) -> DeepGP:
    """The single draw of an optimised posterior, with V at its mean."""
    model = jax.tree.map(lambda x: x[0, 0], posterior.model)
    assert isinstance(model, DeepGP)  # for the type checker
    return DeepGP(tuple(layer.at(layer.V) for layer in model.layers), model.likelihood)


def _with_V(position: DeepGP, V: Array | None) -> DeepGP:
    return eqx.tree_at(lambda tree: tree.layers[0].V, position, V, is_leaf=lambda leaf: leaf is None)
