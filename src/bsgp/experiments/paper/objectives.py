"""Figure 4: the expectation of the log against the log of the expectation, optimised and sampled."""

from bsgp.experiments.experiment import Experiment
from bsgp.experiments.figures.grid import RunGrid, method_series, size_places

GRID = RunGrid(
    "objectives",
    about=(
        "Objectives: u Gaussian on VFE (svgp) or FITC (fitc-svgp); u and theta sampled on VFE (mcmc-svgp) or FITC; "
        "u, theta and Z sampled on FITC (bsgp)."
    ),
    series=(
        method_series("svgp", "svgp", experiment="ablation"),
        method_series("fitc-svgp", "fitc-svgp"),
        method_series("mcmc-svgp", "mcmc-svgp"),
        method_series("{u, theta} on FITC", "bsgp-z-optimised", experiment="ablation"),
        method_series("bsgp", "bsgp", experiment="ablation"),
    ),
    places=size_places(10, 50, 100),
    x_name="inducing points",
)

OBJECTIVES = Experiment(GRID.name, GRID.about, GRID.plan, GRID.show)
