"""Scores over folds as points with intervals: one panel per data set, ours beside the authors'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.experiment import Sheet
from bsgp.report.style import GREY, INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P")
NORMAL_95 = 1.96
POINT_PANEL_WIDTH, POINT_PANEL_HEIGHT = 2.5, 2.1  # inches
SPREAD = 0.7
"""Share of the distance between two places along x that the series take up."""


@dataclass(frozen=True)
class ScorePoint:
    """Scores by fold, ours and the authors', of one series at one place of one panel."""

    dataset: str
    series: str
    x: str
    ours: dict[int, float]
    theirs: dict[int, float]

    @property
    def theirs_on_our_folds(self) -> dict[int, float]:
        """The authors' scores on the folds that we ran."""
        return {fold: self.theirs[fold] for fold in self.ours if fold in self.theirs}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over folds, and half the width of its 95% interval."""
    each = np.asarray(values, float)
    if each.size < 2:
        return float(each.mean()), 0.0
    return float(each.mean()), float(NORMAL_95 * each.std(ddof=1) / each.size**0.5)


def draw_panels(
    points: Sequence[ScorePoint],
    colours: Mapping[str, str],
    places: Sequence[str],
    *,
    x_label: str,
    y_label: str = "test MNLL",
) -> "Figure":
    """Draw one panel per data set: places along x, `colours` by series. Filled marks are ours, hollow the authors'."""
    from matplotlib.figure import Figure

    datasets = [name for name in UCI if any(point.dataset == name for point in points)]
    columns = min(4, max(len(datasets), 1))
    rows = -(-max(len(datasets), 1) // columns)
    with styled():
        figure = Figure(figsize=(POINT_PANEL_WIDTH * columns, POINT_PANEL_HEIGHT * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, dataset in zip(panels, datasets, strict=False):
            here = [point for point in points if point.dataset == dataset]
            _draw_panel(axes, here, colours, places)
            axes.set_title(dataset, fontsize=10)
        for axes in panels[len(datasets) :]:
            axes.set_axis_off()
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        figure.legend(handles=_handles(colours), loc="outside upper center", ncols=min(len(colours) + 2, 7), fontsize=8)
    return figure


def styled() -> Any:
    """Context in which figures are drawn in the report's style, on white."""
    import matplotlib as mpl

    style: Any = {**STYLE, "figure.facecolor": "white", "axes.facecolor": "white"}
    return mpl.rc_context(style)


def _handles(colours: Mapping[str, str]) -> list:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=colour, marker=MARKERS[i % len(MARKERS)], ls="", label=name)
        for i, (name, colour) in enumerate(colours.items())
    ]
    ours = Line2D([], [], color=GREY, marker="o", ls="", label="filled: ours")
    theirs = Line2D([], [], color=GREY, marker="o", ls="", mfc="white", label="hollow: the authors'")
    return [*marks, ours, theirs]


def _draw_panel(axes: "Axes", points: Sequence[ScorePoint], colours: Mapping[str, str], places: Sequence[str]) -> None:
    width = SPREAD / max(len(colours), 1)
    missing = []
    for index, (name, colour) in enumerate(colours.items()):
        shift, here = (index - (len(colours) - 1) / 2) * width, [point for point in points if point.series == name]
        look = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "ms": 4.5, "lw": 0, "elinewidth": 1.0}
        for whose, aside, face in (("ours", -0.15, colour), ("theirs", 0.15, "white")):
            there = [point for point in here if getattr(point, whose)]
            if there:
                x = [places.index(point.x) + shift + aside * width for point in there]
                mean, error = zip(*(mean_and_error(list(getattr(p, whose).values())) for p in there), strict=True)
                axes.errorbar(x, mean, error, mfc=face, **look)
        missing += [places.index(point.x) + shift for point in here if not point.ours]
    if missing:  # at the foot of the panel: they have no score
        axes.plot(
            missing, np.full(len(missing), 0.03), "x", color=INK, ms=3.5, transform=axes.get_xaxis_transform(),
            clip_on=False,
        )  # fmt: skip
    axes.set_xticks(range(len(places)), places, fontsize=10 if max(map(len, places)) < 4 else 8)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.grid(visible=False, axis="x")


def to_sheet(points: Sequence[ScorePoint], name: str, caption: str, x_name: str) -> Sheet:
    """Table of the points: our mean and standard deviation beside the authors' on the folds that we ran."""
    header = (
        "data set",
        x_name,
        "series",
        "folds",
        "ours",
        "the authors', same folds",
        "difference",
        "theirs, all folds",
    )
    rows = []
    for point in points:
        ours, same = list(point.ours.values()), list(point.theirs_on_our_folds.values())
        difference = f"{np.mean(ours) - np.mean(same):+.3f}" if ours and len(same) == len(ours) else ""
        scores = mean_sd_text(ours) or "not run", mean_sd_text(same), difference
        all_theirs = mean_sd_text(list(point.theirs.values()))
        rows.append((point.dataset, point.x, point.series, str(len(ours)), *scores, all_theirs))
    return Sheet(name, caption, header, tuple(rows))


def mean_sd_text(values: Sequence[float]) -> str:
    """Mean and population standard deviation, in the form of the paper's tables. Empty without values."""
    if not values:
        return ""
    return f"{np.mean(values):.3f} ({np.std(values):.3f})"
