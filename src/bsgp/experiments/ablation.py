"""Figure 3, right: the more is sampled and the less optimised, the better?"""

from bsgp.experiments.grid import Grid, method_series, sizes

ABOUT = "What is sampled: nothing but a Gaussian u (svgp), u (sghmc-dgp), u and theta, or u, theta and Z (bsgp)."

GRID = Grid(
    "ablation",
    series=(
        method_series("svgp", "svgp"),
        method_series("{u}: sghmc-dgp", "sghmc-dgp"),
        method_series("{u, theta}", "bsgp-z-optimised"),
        method_series("{u, theta, Z}: bsgp", "bsgp"),
    ),
    places=sizes(10, 50, 100),
    x_name="inducing points",
)


plan = GRID.plan


def show(records, paper):
    return GRID.show(records, paper, ABOUT)
