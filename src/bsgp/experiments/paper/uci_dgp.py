"""Figure 7 and both tables of the supplement: shallow and deep GPs on eight data sets, and their ranks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bsgp.experiments.experiment import Drawing, Experiment, Sheet
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.grid import RunGrid, depth_places, method_series
from bsgp.experiments.figures.points import ScorePoint, mean_and_error, mean_sd_text, styled
from bsgp.report.style import GREY

METRICS = {"test_mnll": "Test MNLL", "test_nrmse": "Test nRMSE"}

GRID = RunGrid(
    "uci-dgp",
    about="Deep GPs of one to five layers: bsgp, ipvi-dgp and sghmc-dgp, and svgp with one.",
    series=(
        *(method_series(name, name) for name in ("bsgp", "ipvi-dgp", "sghmc-dgp")),
        replace(method_series("svgp", "svgp"), places=("1",)),
    ),
    places=depth_places(1, 2, 3, 4, 5),
    x_name="layers",
)


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """The grid's figure and table, ranks, and the tables of the supplement."""
    points = GRID.points(records, paper)
    tables = [
        _wide_table(GRID.points(records, paper, metric), metric, whose)
        for metric in METRICS
        for whose in ("ours", "theirs")
    ]
    return [*GRID.show(records, paper), _rank_drawing(points), *tables]


# -- ranks -------------------------------------------------------------------------------------------------------


def ranks_by_cell(values: dict[str, dict[tuple, float]]) -> tuple[dict[str, list[float]], int]:
    """Ranks of each method on the cells (data set and fold) that all methods have, and the number of these cells.

    1 is the best. Methods with the fewest cells are left out until the others have a cell in common.
    """
    kept = {name: cells for name, cells in values.items() if cells}
    common: set[tuple] = set()
    while len(kept) > 1:
        common = set.intersection(*(set(cells) for cells in kept.values()))
        if common:
            break
        del kept[min(kept, key=lambda name: len(kept[name]))]
    if not common:
        return {}, 0
    cells = sorted(common)
    table = np.asarray([[kept[name][cell] for cell in cells] for name in kept])
    ranks = table.argsort(axis=0).argsort(axis=0) + 1
    return dict(zip(kept, ranks.astype(float).tolist(), strict=True)), len(cells)


def _by_method(points: Sequence[ScorePoint], whose: str) -> dict[str, dict[tuple, float]]:
    """Scores by cell (data set and fold) of each method and depth. `whose` is `ours` or `theirs`."""
    found: dict[str, dict[tuple, float]] = {}
    for point in points:
        cells = found.setdefault(f"{point.series} {point.x}", {})
        cells.update({(point.dataset, fold): value for fold, value in getattr(point, whose).items()})
    return found


def _rank_drawing(points: Sequence[ScorePoint]) -> Drawing:
    from matplotlib.figure import Figure

    notes = []
    with styled():
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, whose, title in zip(panels, ("ours", "theirs"), ("ours", "the authors'"), strict=True):
            ranks, num_cells = ranks_by_cell(_by_method(points, whose))
            order = sorted(ranks, key=lambda name: -float(np.mean(ranks[name])))
            for y, name in enumerate(order):
                mean, error = mean_and_error(ranks[name])
                colour = GRID.colours[name.rsplit(" ", 1)[0]]
                axes.errorbar(mean, y, xerr=error, color=colour, marker="o", ms=4.5, lw=1.0)
            axes.set_yticks(range(len(order)), order, fontsize=8)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("mean rank (1 is the best)")
            if not order:
                axes.text(0.5, 0.5, "no runs yet", ha="center", color=GREY, transform=axes.transAxes)
            notes.append(f"{title}: {len(order)} methods on {num_cells} cells")
    caption = (
        "Ranks by test MNLL, averaged over the cells of data set and fold that all ranked methods have, with 95% "
        f"intervals ({'; '.join(notes)})."
    )
    return Drawing("uci-dgp-ranks", caption, figure)


# -- tables ------------------------------------------------------------------------------------------------------


def _wide_table(points: Sequence[ScorePoint], metric: str, whose: str) -> Sheet:
    """Table in the form of the supplement: methods down, data sets across."""
    datasets = sorted({point.dataset for point in points})
    methods = list(dict.fromkeys((point.series, point.x) for point in sorted(points, key=lambda p: (p.series, p.x))))
    cells = {(point.series, point.x, point.dataset): list(getattr(point, whose).values()) for point in points}
    rows = tuple(
        (f"{series} {depth}", *(_with_count(cells.get((series, depth, dataset), []), whose) for dataset in datasets))
        for series, depth in methods
    )
    best = set()
    for column, dataset in enumerate(datasets, start=1):
        means = {i: np.mean(v) for i, method in enumerate(methods) if (v := cells.get((*method, dataset)))}
        if means:
            best.add((min(means, key=lambda i: float(means[i])), column))
    owner = "Ours" if whose == "ours" else "The authors'"
    caption = f"{METRICS[metric]}, mean (sd) over folds. {owner}" + (
        "; in brackets the number of folds if it is not eight." if whose == "ours" else "."
    )
    return Sheet(
        f"uci-dgp-{metric.removeprefix('test_')}-{whose}", caption, ("method", *datasets), rows, frozenset(best)
    )


def _with_count(values: list[float], whose: str) -> str:
    """Mean and standard deviation, with the number of folds if some are missing."""
    count = f" [{len(values)}]" if whose == "ours" and values and len(values) < 8 else ""
    return (mean_sd_text(values) or "not run") + count


UCI_DGP = Experiment(GRID.name, GRID.about, GRID.plan, show)
