"""Figure 10: inducing points on a grid (kiss-gp, dkl) against bsgp with one layer and with two."""

from dataclasses import replace

from bsgp.experiments.experiment import Experiment
from bsgp.experiments.figures.grid import Place, RunGrid, method_series

GRID = RunGrid(
    "structured",
    about="Structured inducing points: kiss-gp (at most four inputs, so powerplant only) and dkl beside bsgp.",
    series=(
        replace(method_series("kiss-gp", "kiss-gp"), places=("kiss-gp",), datasets=("powerplant",)),
        replace(method_series("dkl", "dkl"), places=("dkl",)),
        replace(method_series("bsgp", "bsgp"), places=("bsgp 1", "bsgp 2")),
    ),
    places=(
        Place("kiss-gp"),
        Place("dkl"),
        Place("bsgp 1", {"depth": 1}, {"depth": 1}),
        Place("bsgp 2", {"depth": 2}, {"depth": 2}),
    ),
    x_name="method",
    datasets=("powerplant", "kin8nm", "protein"),
)

STRUCTURED = Experiment(GRID.name, GRID.about, GRID.plan, GRID.show)
