"""Figure 3, left, and the supplement: priors on the inducing inputs, for several numbers of them."""

from bsgp.experiments.experiment import Experiment
from bsgp.experiments.figures.grid import GridSeries, RunGrid, size_places

GRID = RunGrid(
    "priors",
    about="BSGP with five priors on 10, 50 and 100 inducing inputs, among them both forms of the Strauss process.",
    note="The authors do not say which form of Strauss they ran; their results are shown beside the smooth one.",
    series=(
        *(
            GridSeries(name, {"inducing_prior": name}, {"method": "bsgp", "z_prior": name})
            for name in ("normal", "determinantal", "strauss", "uniform")
        ),
        GridSeries("strauss-hard", {"inducing_prior": "strauss-hard"}),
    ),
    places=size_places(10, 50, 100),
    x_name="inducing points",
)

PRIORS = Experiment(GRID.name, GRID.about, GRID.plan, GRID.show)
