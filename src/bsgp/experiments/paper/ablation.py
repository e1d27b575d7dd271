"""Figure 3, right: what is sampled and what is optimised."""

from bsgp.experiments.experiment import Experiment
from bsgp.experiments.figures.grid import RunGrid, method_series, size_places

GRID = RunGrid(
    "ablation",
    about="What is sampled: nothing but a Gaussian u (svgp), u (sghmc-dgp), u and theta, or u, theta and Z (bsgp).",
    series=(
        method_series("svgp", "svgp"),
        method_series("{u}: sghmc-dgp", "sghmc-dgp"),
        method_series("{u, theta}", "bsgp-z-optimised"),
        method_series("{u, theta, Z}: bsgp", "bsgp"),
    ),
    places=size_places(10, 50, 100),
    x_name="inducing points",
)

ABLATION = Experiment(GRID.name, GRID.about, GRID.plan, GRID.show)
