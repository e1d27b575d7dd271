"""Figures 5 and 6: bsgp with FITC against bsgp with VFE, one to five layers, and a test of which is better."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bsgp.experiments.experiment import Drawing, Sheet
from bsgp.experiments.grid import Grid, Series, depths
from bsgp.experiments.points import Point, styled
from bsgp.report.style import COLOURS, GREY

ABOUT = "BSGP with the log of the expectation (FITC) and with the expectation of the log (VFE), one to five layers."
NUM_RESAMPLES = 1_000
FEWEST_FOLDS = 5  # the smallest p of fewer paired folds is above 0.05, whatever they say
LEVEL = 0.05

GRID = Grid(
    "objective-by-depth",
    series=tuple(Series(name, {"objective": name}, {"method": "bsgp", "objective": name}) for name in ("fitc", "vfe")),
    places=depths(1, 2, 3, 4, 5),
    x_name="layers",
)


plan = GRID.plan


def show(records, paper):
    points = GRID.points(records, paper)
    return [*GRID.show(records, paper, ABOUT), _drawing(points), _sheet(points)]


def paired_p_value(fitc: dict[int, float], vfe: dict[int, float]) -> float | None:
    """Signed-rank test over the folds that both have, of the hypothesis that VFE is as good or better."""
    folds = sorted(fitc.keys() & vfe.keys())
    if len(folds) < FEWEST_FOLDS:
        return None
    return float(_signed_rank(np.asarray([fitc[fold] - vfe[fold] for fold in folds])))


def bootstrap_p_value(fitc: dict[int, float], vfe: dict[int, float]) -> float | None:
    """The median p over resamples in which the folds of either are drawn by themselves, and so are not paired."""
    if min(len(fitc), len(vfe)) < FEWEST_FOLDS:
        return None
    rng, size = np.random.default_rng(0), min(len(fitc), len(vfe))
    ours, other = (np.asarray(list(values.values())) for values in (fitc, vfe))
    picks = rng.choice(ours, (NUM_RESAMPLES, size)) - rng.choice(other, (NUM_RESAMPLES, size))
    return float(np.median(_signed_rank(picks, method="asymptotic")))  # resamples have ties: exact takes minutes


def _signed_rank(differences: np.ndarray, method: str = "auto") -> np.ndarray:
    """p of every row."""
    from scipy.stats import wilcoxon

    result: Any = wilcoxon(
        differences, alternative="less", method=method, axis=-1
    )  # SciPy's annotations do not know its attributes
    return result.pvalue


def _pairs(points: Sequence[Point]) -> dict[tuple[str, str], tuple[Point, Point]]:
    """The points of FITC and of VFE, by data set and depth."""
    by_cell = {(point.dataset, point.x, point.series): point for point in points}
    return {
        (dataset, depth): (point, by_cell[dataset, depth, "vfe"])
        for (dataset, depth, series), point in by_cell.items()
        if series == "fitc"
    }


P_CAPTION = (
    "p-values of the hypothesis that VFE is as good as FITC or better, by signed-rank tests over folds: below the line "
    f"at {LEVEL} it is rejected. Filled: ours, paired by fold, where {FEWEST_FOLDS} folds or more are there. Hollow: "
    "the authors' released figures under the same test. The table has both forms for both; the paper does not tell how "
    "its bootstrap goes, and ours draws the folds of either objective by themselves and takes the median p."
)


def _drawing(points: Sequence[Point]) -> Drawing:
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


def _sheet(points: Sequence[Point]) -> Sheet:
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


TESTS = (paired_p_value, bootstrap_p_value)
