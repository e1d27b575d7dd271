"""Figure 3, left, and the supplement: priors on the inducing inputs, for several numbers of them."""

from bsgp.experiments.grid import Grid, Series, sizes

ABOUT = "BSGP with five priors on the inducing inputs (both forms of the Strauss process), and 10, 50 and 100 of them."

GRID = Grid(
    "priors",
    series=(
        *(
            Series(name, {"inducing_prior": name}, {"method": "bsgp", "z_prior": name})
            for name in ("normal", "determinantal", "strauss", "uniform")
        ),
        Series("strauss-hard", {"inducing_prior": "strauss-hard"}),
    ),
    places=sizes(10, 50, 100),
    x_name="inducing points",
)


plan = GRID.plan


def show(records, paper):
    note = "The authors do not say which form of Strauss they ran; theirs is beside the smooth one."
    return GRID.show(records, paper, f"{ABOUT} {note}")
