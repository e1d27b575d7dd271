"""sghmc-dgp (Havasi et al., 2018): SGHMC over u, everything else by Monte-Carlo EM over a moving window of draws."""

from dataclasses import replace

from bsgp.inference.sghmc_plan import Plan
from bsgp.methods.bsgp import BSGP, fit_by_sghmc
from bsgp.methods.fit import Fit
from bsgp.methods.method import Task
from bsgp.methods.recipe import Recipe


def sghmc_dgp_recipe(num_rows: int) -> Recipe:
    """One update of V, then one Adam step on the rest at one of the last hundred V (docs/methods.md).

    The authors keep 100 draws 50 apart. If the noise is next to nothing, a hundred spikes leave gaps between them that
    a test row can fall into; as many updates give 250 draws. All targets share one noise as in their release: without
    priors a noise per target collapses more easily.
    """
    return Recipe(
        "default",
        num_inducing=min(100, num_rows),
        plan=Plan(adam_steps=0, burn_in=10_000, num_draws=250, thinning=20, window=100, optimise_rate=0.01),
        treatment=SGHMC_DGP.optimised,
        start_noise=0.1,
        shares_noise=True,
        has_priors=False,
        start_variance=0.01,
    )


def _fit(task: Task) -> Fit:
    return fit_by_sghmc(task, sghmc_dgp_recipe(task.num_rows))


SGHMC_DGP = replace(
    BSGP,
    name="sghmc-dgp",
    about="Stochastic-gradient HMC over u; everything else by Monte-Carlo EM over a moving window of draws.",
    objectives=("log of the expectation",),
    Z="optimise",
    theta="optimise",
    noise="optimise",
    fit=_fit,
)
