"""Figure 9: the cost of predictions, for bsgp by the number of draws, for svgp by that of inducing points."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.experiment import Choice, Drawing, Experiment, Sheet, kind_of
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.curves import (
    CURVE_PANEL_HEIGHT,
    CURVE_PANEL_WIDTH,
    QUICK_NOTE,
    RecordsByRun,
    find_runs,
    folds_text,
    mean_of,
    set_seconds_axis,
)
from bsgp.experiments.figures.grid import METHOD_COLOURS
from bsgp.experiments.figures.points import styled
from bsgp.experiments.kinds.prediction_time import DATASET, NUM_REPEATS, PredictionTimeRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "prediction-time"
QUICK_DATASET = "powerplant"
SCALE_OF_SIZE = {100: 1.0, 250: 1.0, 500: 0.5, 1_000: 0.125, 2_000: 0.0625}
"""Scale of svgp by its number of inducing points: with more of them a step costs more."""
QUICK_SIZES, QUICK_SCALE = (20, 40), 1 / 64


def plan(choice: Choice) -> list[PredictionTimeRun]:
    """Runs of bsgp first, then of svgp from the cheapest to the most expensive."""
    if choice.quick:
        datasets = choice.datasets or (QUICK_DATASET,)
        bsgp = [("bsgp", depth, QUICK_SIZES[0], QUICK_SCALE) for depth in (1, 2)]
        svgp = [("svgp", 1, size, QUICK_SCALE) for size in QUICK_SIZES]
    else:
        datasets = choice.datasets or (DATASET,)
        bsgp = [("bsgp", depth, None, 1.0) for depth in (1, 2)]
        svgp = [("svgp", 1, size, scale) for size, scale in SCALE_OF_SIZE.items()]
    return [
        PredictionTimeRun(method, depth, size, dataset, fold, choice.seed, scale)
        for method, depth, size, scale in (*bsgp, *svgp)
        if (choice.methods is None or method in choice.methods) and (choice.depths is None or depth in choice.depths)
        for dataset in datasets
        for fold in choice.folds or (0,)
    ]


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """A panel of curves per data set, and a table of their points."""
    del paper  # no data of this figure were released
    records = [record for record in records if kind_of(record) == PredictionTimeRun.kind]
    datasets = {record["dataset"] for record in records}
    found, is_quick = find_runs(plan, records, [name for name in UCI if name in datasets])
    if not found:
        return []
    return [Drawing(NAME, _caption(found, is_quick), _draw(found)), _sheet(found)]


@dataclass(frozen=True)
class _TimedPoint:
    """A point of a curve: means over folds and seeds."""

    run: PredictionTimeRun
    num_inducing: int
    num_draws: int
    seconds: float
    mnll: float
    num_runs: int


def _timed_points(found: RecordsByRun) -> list[_TimedPoint]:
    """All points of a data set, in the order of the plan and of the number of draws."""
    points = []
    for run, group in found.items():
        for each in zip(*(record["points"] for record in group), strict=True):
            seconds, mnll = mean_of(each, "prediction_seconds"), mean_of(each, "test_mnll")
            points.append(_TimedPoint(run, group[0]["num_inducing"], each[0]["num_draws"], seconds, mnll, len(group)))
    return points


def _draw(found: dict[str, RecordsByRun]) -> "Figure":
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(
            figsize=((CURVE_PANEL_WIDTH + 1.2) * len(found), CURVE_PANEL_HEIGHT + 0.6), layout="constrained"
        )
        for axes, (dataset, runs) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            _draw_panel(axes, _timed_points(runs))
            num_test = next(iter(runs.values()))[0]["num_test"]
            axes.set_title(f"{dataset}, {num_test:,} test rows", fontsize=10)
            axes.legend(loc="best", fontsize=8)
        figure.supxlabel("CPU seconds of one core to predict all test rows", fontsize=10)
        figure.supylabel("test MNLL", fontsize=10)
    return figure


def _draw_panel(axes: "Axes", points: Sequence[_TimedPoint]) -> None:
    for depth, dash, marker in ((1, "-", "o"), (2, "--", "s")):
        curve = [point for point in points if point.run.method == "bsgp" and point.run.depth == depth]
        label = f"bsgp, {depth} layer{'s' if depth > 1 else ''}, by draws"
        _draw_curve(axes, curve, [f"{point.num_draws}" for point in curve], "bsgp", label, ls=dash, marker=marker)
    curve = [point for point in points if point.run.method == "svgp"]
    _draw_curve(axes, curve, [f"M = {point.num_inducing:,}" for point in curve], "svgp", "svgp", ls=":", marker="D")
    axes.margins(x=0.1, y=0.12)
    set_seconds_axis(axes)


def _draw_curve(
    axes: "Axes", curve: Sequence[_TimedPoint], texts: Sequence[str], method: str, label: str, **look: Any
) -> None:
    if not curve:
        return
    x, y = [point.seconds for point in curve], [point.mnll for point in curve]
    axes.plot(x, y, color=METHOD_COLOURS[method], ms=4.5, lw=1.4, label=label, **look)
    for at, text in zip(zip(x, y, strict=True), texts, strict=True):
        axes.annotate(
            text, at, xytext=(3, 5), textcoords="offset points", ha="left", fontsize=7, color=METHOD_COLOURS[method]
        )


def _caption(found: dict[str, RecordsByRun], is_quick: bool) -> str:
    return (
        (QUICK_NOTE if is_quick else "")
        + f"Test MNLL (lower is better) against the time of prediction, on {folds_text(found)}. "
        "The numbers beside the curves of bsgp are draws, evenly spaced among those of one fit; the labels of svgp are "
        "its numbers of inducing points. "
        f"Times are CPU seconds of one core for the log density of all test rows, the least of {NUM_REPEATS} calls "
        "after one that compiles; every call factorises its matrices again. "
        "svgp was trained for fewer updates with more inducing points (see the table), so its largest models may not "
        "be at their best. "
        "The authors released no data for this figure."
    )


def _sheet(found: dict[str, RecordsByRun]) -> Sheet:
    header = (
        "data set", "method", "layers", "M", "draws", "scale", "runs", "fit, CPU seconds", "prediction, CPU seconds",
        "test MNLL",
    )  # fmt: skip
    rows, best = [], set()
    for dataset, runs in found.items():
        points = _timed_points(runs)
        values = [point.mnll for point in points]
        if np.isfinite(values).any():
            best.add((len(rows) + int(np.nanargmin(values)), len(header) - 1))
        for point in points:
            run, fit_seconds = point.run, mean_of(runs[point.run], "cpu_seconds")
            sizes = f"{run.depth}", f"{point.num_inducing}", f"{point.num_draws}", f"{Fraction(run.scale)}"
            numbers = f"{point.num_runs}", f"{fit_seconds:.1f}", f"{point.seconds:.3g}", f"{point.mnll:.3f}"
            rows.append((dataset, run.method, *sizes, *numbers))
    caption = "The points of the figure, means over folds and seeds. The best MNLL of each data set is bold."
    return Sheet(NAME, caption, header, tuple(rows), frozenset(best))


PREDICTION_TIME = Experiment(
    NAME,
    "Test MNLL against prediction time on protein: draws of bsgp against inducing points of svgp (Figure 9).",
    plan,
    show,
)
