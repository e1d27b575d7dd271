"""`sample`: from a target and data to draws, by SGHMC."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import History, Report, silent
from bsgp.inference.phases import SghmcRun
from bsgp.inference.programs import Chain, stack_draws
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.target import Target
from bsgp.models.deep_gp import DeepGP
from bsgp.runtime.checks import check_count
from bsgp.runtime.mesh import Layout


class Run(NamedTuple):
    """Draws of a target, and everything needed to continue their chains."""

    model: DeepGP
    """Constrained draws: every array carries [C S] in front."""
    history: History
    target: Target
    plan: Plan
    chains: Chain
    """State of the chains at the end: `sample` can continue from there."""


def sample(
    target: Target,
    X,
    y,
    key: Array,
    *,
    plan: Plan = Plan(),
    num_chains: int = 1,
    chains: Chain | None = None,
    report: Report | None = None,
    checkpoints: Checkpoints | None = None,
    layout: Layout | None = None,
) -> Run:
    """Draw from `target` given all data `X [N D]`, `y [N P]`, or a streamed source and None.

    The same key gives the same draws. `chains` of an earlier run on the same target and data are continued, without
    warm start or burn-in. With `checkpoints` the run is saved as it goes, and resumed from there. With a `layout` the
    updates are spread over a mesh of devices; all processes of the mesh must call this with the same arguments.
    """
    data = target.data_of(X, y)
    check_count("num_chains", num_chains)
    if not jax.tree.leaves(target.select(target.model, "sample")):
        raise ValueError(
            f"`treatment` must sample at least one block, got {dict(target.treatment)}. "
            "Sample u, at least: it is what the predictive distribution is made of."
        )
    run = SghmcRun(target, data, key, plan, num_chains, report or silent, checkpoints, layout)
    try:
        run.run(chains)
    finally:
        run.batches.close()
    model = stack_draws(target, run.state.all_draws(), run.state.chains.optimised)
    return Run(model, run.history, target, plan, run.state.chains)


def join(first: Run, second: Run) -> Run:
    """Two runs of the same chains, one after the other, as one."""
    model = jax.tree.map(lambda *draws: jnp.concatenate(draws, axis=1), first.model, second.model)
    return second._replace(model=model, history=first.history.then(second.history))
