"""Figure 8: test scores against seconds of training, on naval and kin8nm."""

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.experiment import Choice, Drawing, Experiment, Sheet
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
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.report.style import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "training-time"
DEPTHS = {"naval": 1, "kin8nm": 2}
METHODS = ("bsgp", "sghmc-dgp", "ipvi-dgp", "svgp")
SCALES = tuple(2.0**power for power in range(-6, 1))
QUICK_SCALES = SCALES[:2]
QUICK_SIZE = 20
LONGEST = {None: 1.0, 500: 0.5, 1_000: 0.125}
"""Largest scale of svgp by its number of inducing points: with more of them a step costs more. None is svgp's own
number, 100. A run that leaves it unnamed has the same key in other experiments, which then share the run."""
DASH_OF = {500: "--", 1_000: ":"}
MIN_WIDTH = 6.4  # inches that the legend and the label below take
Line = tuple[str, int | None]
"""Method and number of inducing points. None: the method's own number."""


def plan(choice: Choice) -> list[UCIRun]:
    """Runs of all budgets. Short ones first, so that every curve starts early and grows to the right."""
    scales = QUICK_SCALES if choice.quick else SCALES
    return [
        UCIRun(dataset, fold, _depth(method, dataset), method, seed=choice.seed, num_inducing=size, scale=scale)
        for scale in scales
        for dataset, depth in DEPTHS.items()
        if _chosen(dataset, choice.datasets) and _chosen(depth, choice.depths)
        for method in METHODS
        if _chosen(method, choice.methods)
        for size in _sizes(method, scale, choice.quick)
        for fold in choice.folds or (0,)
    ]


def _depth(method: str, dataset: str) -> int:
    return 1 if method == "svgp" else DEPTHS[dataset]


def _chosen(value, among: Sequence | None) -> bool:
    return among is None or value in among


def _sizes(method: str, scale: float, quick: bool) -> list[int | None]:
    """Numbers of inducing points of a method's runs at that scale."""
    if quick:
        return [QUICK_SIZE]
    return [size for size, longest in LONGEST.items() if scale <= longest] if method == "svgp" else [None]


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """A panel of curves per data set, and a table of their points."""
    found, is_quick = find_runs(plan, records, list(DEPTHS))
    if not found:
        return []
    figure = _draw(found, paper)
    return [Drawing(NAME, _caption(found, is_quick), figure), _sheet(found)]


# -- figure --------------------------------------------------------------------------------------------------------


def _lines(found: RecordsByRun) -> dict[Line, np.ndarray]:
    """Seconds and MNLL along every curve, `[points 2]`, by increasing budget."""
    lines: dict[Line, list[tuple[float, float]]] = {}
    for run in sorted(found, key=lambda run: run.scale):
        at = mean_of(found[run], "cpu_seconds"), mean_of(found[run], "test_mnll")
        lines.setdefault((run.method, run.num_inducing), []).append(at)
    return {line: np.asarray(points) for line, points in lines.items()}


def _authors_lines(paper: Paper, dataset: str) -> dict[Line, np.ndarray]:
    """The authors' curves, as far as half of their runs last. Later the mean jumps as runs drop out."""
    lines = {}
    for method in METHODS:
        for size in DASH_OF if method == "svgp" else ():
            lines[method, size] = _authors_line(paper, dataset, method, size)
        lines[method, None] = _authors_line(paper, dataset, method, 100)
    return {line: points for line, points in lines.items() if len(points)}


def _authors_line(paper: Paper, dataset: str, method: str, size: int) -> np.ndarray:
    wanted = dataset, method, str(_depth(method, dataset)), str(size)
    names = "dataset", "model", "depth", "num_inducing"
    rows = [row for row in paper.times if tuple(row[name] for name in names) == wanted]
    most = max((int(row["runs"]) for row in rows), default=0)
    points = [
        (float(row["elapsed_s"]), float(row["test_mnll"]))
        for row in sorted(rows, key=lambda row: int(row["step"]))
        if 2 * int(row["runs"]) >= most and float(row["elapsed_s"]) > 0  # there is no zero on a log axis
    ]
    return np.asarray(points)


def _draw(found: dict[str, RecordsByRun], paper: Paper) -> "Figure":
    from matplotlib.figure import Figure

    with styled():
        width = max(CURVE_PANEL_WIDTH * len(found), MIN_WIDTH)
        figure = Figure(figsize=(width, CURVE_PANEL_HEIGHT + 0.8), layout="constrained")
        drawn: set[Line] = set()
        for axes, (dataset, runs) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            ours, theirs = _lines(runs), _authors_lines(paper, dataset)
            _draw_panel(axes, ours, theirs)
            depth = DEPTHS[dataset]
            axes.set_title(f"{dataset}, {depth} layer{'s' if depth > 1 else ''}", fontsize=10)
            drawn |= ours.keys() | theirs.keys()
        figure.supxlabel("training seconds (ours: CPU, one core; the authors': wall clock, eight cores)", fontsize=10)
        figure.supylabel("test MNLL", fontsize=10)
        handles = _handles(drawn, with_authors=bool(paper.times))
        figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _draw_panel(axes: "Axes", ours: dict[Line, np.ndarray], theirs: dict[Line, np.ndarray]) -> None:
    thin: dict[str, Any] = {"lw": 0.9, "alpha": 0.75}
    thick: dict[str, Any] = {"lw": 1.8, "marker": "o", "ms": 4}
    for lines, look in ((theirs, thin), (ours, thick)):
        for (method, size), points in lines.items():
            axes.plot(*points.T, color=METHOD_COLOURS[method], ls=DASH_OF.get(size or 0, "-"), **look)
    set_seconds_axis(axes)
    axes.set_ylim(_limits([points[:, 1] for points in (*ours.values(), *theirs.values())]))


def _limits(lines: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Limits of y that leave out the first steps, which are far off.

    From the best value to as far above the end of the worst curve as the best value lies below it.
    """
    each = [line[np.isfinite(line)] for line in lines]
    values = np.concatenate(each)
    if values.size == 0:
        return None
    best, worst = values.min(), max(line.min() for line in each if line.size)
    reach = max(worst - best, float(np.median(values)) - best) or 1.0
    top = min(worst + reach, values.max())
    return best - 0.06 * (top - best or 1.0), top + 0.04 * (top - best or 1.0)


def _handles(drawn: set[Line], *, with_authors: bool) -> list:
    from matplotlib.lines import Line2D

    handles = []
    for method in METHODS:
        colour = METHOD_COLOURS[method]
        for size in sorted({size or 0 for name, size in drawn if name == method}):
            label = f"svgp, M = {size or 100:,}" if method == "svgp" else method
            handles.append(Line2D([], [], color=colour, ls=DASH_OF.get(size, "-"), label=label))
    handles.append(Line2D([], [], color=GREY, lw=1.8, marker="o", ms=4, label="thick, with points: ours"))
    if with_authors:
        handles.append(Line2D([], [], color=GREY, lw=0.9, label="thin: the authors'"))
    return handles


def _caption(found: dict[str, RecordsByRun], is_quick: bool) -> str:
    return (
        (QUICK_NOTE if is_quick else "")
        + f"Test MNLL (lower is better) against training time, on {folds_text(found)}. "
        "Each of our points is a separate run: our schedules anneal, so each budget, from 1/64 of the default number "
        "of updates to all of them, has its own schedule with the same number of draws. "
        "Our times are CPU seconds of one core and include compilation, or reading compiled programs from the cache if "
        "an earlier run left them there. "
        "The authors' curves follow single runs by the wall clock on 8 cores, are means over their runs, and end when "
        "fewer than half of these continue; they released none for svgp on kin8nm. "
        "svgp has one layer in every panel, and only the shorter budgets with 500 and 1,000 inducing points. "
        "Values above a panel are cut off."
    )


def _sheet(found: dict[str, RecordsByRun]) -> Sheet:
    header = "data set", "method", "layers", "M", "scale", "runs", "evaluations", "CPU seconds", "test MNLL"
    rows, best = [], set()
    for runs in found.values():
        order = sorted(runs, key=lambda run: (METHODS.index(run.method), run.num_inducing or 0, run.scale))
        values = [mean_of(runs[run], "test_mnll") for run in order]
        if np.isfinite(values).any():
            best.add((len(rows) + int(np.nanargmin(values)), len(header) - 1))
        for run, value in zip(order, values, strict=True):
            group = runs[run]
            size, scale, evaluations = group[0]["num_inducing"], Fraction(run.scale), mean_of(group, "evaluations")
            numbers = f"{size}", f"{scale}", f"{len(group)}", f"{evaluations:,.0f}"
            seconds = mean_of(group, "cpu_seconds")
            rows.append((run.dataset, run.method, f"{run.depth}", *numbers, f"{seconds:.1f}", f"{value:.3f}"))
    caption = "The points of the figure, means over folds and seeds. The best MNLL of each data set is bold."
    return Sheet(NAME, caption, header, tuple(rows), frozenset(best))


TRAINING_TIME = Experiment(
    NAME, "Test MNLL against training time: naval with one layer, kin8nm with two (Figure 8).", plan, show
)
