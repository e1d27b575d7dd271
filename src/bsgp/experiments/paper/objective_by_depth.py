"""Figures 5 and 6: bsgp with FITC against bsgp with VFE, one to five layers, and a test of which is better."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bsgp.experiments.experiment import Drawing, Experiment, Sheet
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.grid import GridSeries, RunGrid, depth_places
from bsgp.experiments.figures.points import ScorePoint, styled
from bsgp.report.style import COLOURS, GREY

NUM_RESAMPLES = 1_000
LEVEL = 0.05
FEWEST_FOLDS = 5
"""Fewer paired folds cannot reach a p-value below `LEVEL`."""

GRID = RunGrid(
    "objective-by-depth",
    about="BSGP with the log of the expectation (FITC) and with the expectation of the log (VFE), one to five layers.",
    series=tuple(
        GridSeries(name, {"objective": name}, {"method": "bsgp", "objective": name}) for name in ("fitc", "vfe")
    ),
    places=depth_places(1, 2, 3, 4, 5),
    x_name="layers",
)


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """The grid's figure and table, and the p-values of both objectives."""
    points = GRID.points(records, paper)
    return [*GRID.show(records, paper), _drawing(points), _sheet(points)]


def paired_p_value(fitc: dict[int, float], vfe: dict[int, float]) -> float | None:
    """p-value of a signed-rank test over the folds that both have. Hypothesis: VFE is as good as FITC or better."""
    folds = sorted(fitc.keys() & vfe.keys())
    if len(folds) < FEWEST_FOLDS:
        return None
    return float(_signed_rank(np.asarray([fitc[fold] - vfe[fold] for fold in folds])))


def bootstrap_p_value(fitc: dict[int, float], vfe: dict[int, float]) -> float | None:
    """Median p-value over resamples in which the folds of the two objectives are drawn independently, so unpaired."""
    if min(len(fitc), len(vfe)) < FEWEST_FOLDS:
        return None
    rng, size = np.random.default_rng(0), min(len(fitc), len(vfe))
    ours, other = (np.asarray(list(values.values())) for values in (fitc, vfe))
    picks = rng.choice(ours, (NUM_RESAMPLES, size)) - rng.choice(other, (NUM_RESAMPLES, size))
    return float(
        np.median(_signed_rank(picks, method="asymptotic"))
    )  # resamples have ties, and the exact method takes minutes


TESTS = (paired_p_value, bootstrap_p_value)


def _signed_rank(differences: np.ndarray, method: str = "auto") -> np.ndarray:
    """p-value of every row of differences."""
    from scipy.stats import wilcoxon

    # SciPy's annotations lack the result's attributes
    result: Any = wilcoxon(differences, alternative="less", method=method, axis=-1)
    return result.pvalue


def _pairs(points: Sequence[ScorePoint]) -> dict[tuple[str, str], tuple[ScorePoint, ScorePoint]]:
    """The points of FITC and of VFE, by data set and depth."""
    by_cell = {(point.dataset, point.x, point.series): point for point in points}
    return {
        (dataset, depth): (point, by_cell[dataset, depth, "vfe"])
        for (dataset, depth, series), point in by_cell.items()
        if series == "fitc"
    }


P_CAPTION = (
    "p-values of the hypothesis that VFE is as good as FITC or better, by signed-rank tests over folds: below the line "
    f"at {LEVEL} it is rejected. Filled: ours, paired by fold, if there are at least {FEWEST_FOLDS} folds. Hollow: "
    "the authors' released results under the same test. The table has both tests for both. The paper does not describe "
    "its bootstrap; ours draws the folds of the two objectives independently and takes the median p."
)


def _drawing(points: Sequence[ScorePoint]) -> Drawing:
    from matplotlib.figure import Figure

    pairs = _pairs(points)
    datasets = list(dict.fromkeys(dataset for dataset, _ in pairs))
    with styled():
        figure = Figure(figsize=(7.0, 2.8), layout="constrained")
        axes = figure.subplots()
        for (dataset, depth), (fitc, vfe) in pairs.items():
            index = int(depth) - 1
            x = datasets.index(dataset) + 0.14 * (index - 2)
            colour = COLOURS[index]
            for p, face in (
                (paired_p_value(fitc.theirs, vfe.theirs), "white"),
                (paired_p_value(fitc.ours, vfe.ours), colour),
            ):
                if p is not None:
                    axes.plot(x, p, "o", color=colour, mfc=face, ms=5)
        for index in range(len(GRID.places)):
            axes.plot([], [], "o", color=COLOURS[index], label=f"{index + 1}")
        axes.axhline(LEVEL, color=GREY, lw=1.0, ls="--")
        axes.set_xticks(range(len(datasets)), datasets)
        axes.set(ylabel="p", ylim=(-0.03, 1.03))
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside upper center", ncols=5, title="layers", fontsize=8, title_fontsize=8)
    return Drawing("wilcoxon", P_CAPTION, figure)


def _sheet(points: Sequence[ScorePoint]) -> Sheet:
    def text(p: float | None) -> str:
        return "" if p is None else f"{p:.3f}"

    rows = []
    for (dataset, depth), (fitc, vfe) in _pairs(points).items():
        both = len(fitc.ours.keys() & vfe.ours.keys())
        ps = [test(f, v) for f, v in ((fitc.ours, vfe.ours), (fitc.theirs, vfe.theirs)) for test in TESTS]
        rows.append((dataset, depth, str(both), *map(text, ps)))
    header = (
        "data set",
        "layers",
        "folds of both",
        "ours, paired",
        "ours, bootstrap",
        "theirs, paired",
        "theirs, bootstrap",
    )
    return Sheet("wilcoxon", P_CAPTION, header, tuple(rows))


OBJECTIVE_BY_DEPTH = Experiment(GRID.name, GRID.about, GRID.plan, show)
