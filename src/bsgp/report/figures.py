"""Draws the figures as SVG in data URIs.

Figures are about as wide as a phone's screen; the page puts them side by side if there is room. Text stays text in the
SVG, so that a browser can show characters that Matplotlib's font lacks. No axis is logarithmic: its labels would be
mathtext, which is off because a name may contain `$`.
"""

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bsgp.report.chains import PredictionTrace
from bsgp.report.effects import Effect, EffectLine, Relevance
from bsgp.report.extrapolation import Extrapolation
from bsgp.report.quality import COVERAGE_LEVELS, RegressionFit, Reliability, TargetFit
from bsgp.report.style import BLUE, COLOURS, DASHES, GREY, INK, ORANGE, STYLE, VERMILLION
from bsgp.report.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.2, 3.0  # inches
SMALL_WIDTH, SMALL_HEIGHT = 3.5, 2.7
TICK_LIMIT, LABEL_LIMIT = 18, 28
MOST_STEMS = 60  # values of a count that are drawn one by one


# -- calibration -----------------------------------------------------------------------------------------------


def pit_histogram(target: TargetFit) -> str:
    counts, (low, high) = target.pit_counts, target.pit_band

    def draw(axes: "Axes") -> None:
        edges = np.linspace(0.0, 1.0, len(counts) + 1)
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=BLUE, alpha=0.8, edgecolor="white", lw=0.8)
        axes.axhspan(low, high, color=ORANGE, alpha=0.25, lw=0, zorder=0, label="95% of bars, if calibrated")
        axes.axhline(counts.sum() / len(counts), color=ORANGE, lw=1.2)
        for edge in (low, high):
            axes.axhline(edge, color=ORANGE, lw=1.0, ls=(0, (4, 3)))
        axes.set(xlim=(0, 1), ylim=(0, 1.25 * max(counts.max(), high)))
        axes.set(xlabel="predicted probability below the true value (PIT)", ylabel="test rows")
        axes.legend(loc="upper right")

    return _picture(_on_axes(draw))


def coverage_curve(fit: RegressionFit) -> str:
    low, high = 100.0 * fit.coverage_band

    def draw(axes: "Axes") -> None:
        nominal = 100.0 * COVERAGE_LEVELS
        axes.fill_between(nominal, low, high, color=ORANGE, alpha=0.25, lw=0, label="95% of curves, if calibrated")
        axes.plot([0, 100], [0, 100], color=ORANGE, lw=1.2)
        for k, target in enumerate(fit.targets):
            label = clean(target.name, TICK_LIMIT)
            axes.plot(nominal, 100.0 * target.coverage, DASHES[k], color=COLOURS[k], marker="o", ms=3, label=label)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="central interval, %", ylabel="true values inside, %")
        axes.legend(loc="upper left")

    return _picture(_on_axes(draw))


def reliability_curve(reliability: Reliability) -> str:
    def draw(figure: "Figure") -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        observed = reliability.observed
        errors = np.maximum([observed - reliability.low, reliability.high - observed], 0.0)
        top.plot([0, 1], [0, 1], color=ORANGE, lw=1.2, label="calibrated")
        top.errorbar(reliability.predicted, observed, errors, color=BLUE, fmt="o", ms=5, elinewidth=1.4, capsize=2)
        top.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="observed frequency")
        top.legend(loc="upper left")
        bottom.bar(reliability.edges[:-1], reliability.counts, 0.1, align="edge", color=GREY, edgecolor="white", lw=0.8)
        for edge, count in zip(reliability.edges, reliability.counts, strict=False):
            if count:
                bottom.annotate(
                    f"{count}", (edge + 0.05, count), (0, 1), textcoords="offset points", ha="center", fontsize=7.5
                )
        bottom.set(ylim=(0, 1.4 * reliability.counts.max()), ylabel="rows", xlabel="predicted probability")

    return _picture(draw, 4.0)


# -- predictions -----------------------------------------------------------------------------------------------


def predicted_against_actual(target: TargetFit) -> str:
    inside = (target.actual >= target.low) & (target.actual <= target.high)

    def draw(axes: "Axes") -> None:
        ends = [target.actual.min(), target.actual.max()]
        axes.plot(ends, ends, color=GREY, lw=1.2)
        for rows, colour, label in ((inside, BLUE, "inside its interval"), (~inside, VERMILLION, "outside")):
            errors = np.maximum([target.predicted - target.low, target.high - target.predicted], 0.0)[:, rows]
            axes.errorbar(
                target.actual[rows], target.predicted[rows], errors, fmt="o", ms=3.2, mew=0, color=colour,
                ecolor=(colour, 0.3), elinewidth=1.2, label=f"{label} ({int(rows.sum())})",
            )  # fmt: skip
        axes.set(xlabel=f"actual {clean(target.name, LABEL_LIMIT)}", ylabel="predicted")
        axes.locator_params(nbins=6)
        _shorten_ticks(axes.xaxis, axes.yaxis)
        axes.legend(loc="upper left")

    return _picture(_on_axes(draw), 3.8)


def row_densities(target: TargetFit) -> str:
    """One strip per row, on a common axis: its density, and a mark at its true value."""

    def draw(axes: "Axes") -> None:
        for k, row in enumerate(target.densities):
            height = 0.85 * row.density / row.density.max()
            if len(row.at) < MOST_STEMS:
                axes.vlines(row.at, k, k + height, color=BLUE, lw=2.5)
            else:
                axes.fill_between(row.at, k, k + height, color=BLUE, alpha=0.35, lw=0)
                axes.plot(row.at, k + height, color=BLUE, lw=1.2)
            label = "true value" if k == 0 else None
            axes.plot([row.actual, row.actual], [k, k + 0.85], color=VERMILLION, lw=1.6, label=label)
        axes.set(xlabel=clean(target.name, LABEL_LIMIT), ylabel="test rows, by prediction", yticks=[])
        axes.set_ylim(-0.05, len(target.densities) + 0.6)
        axes.locator_params(axis="x", nbins=6)
        _shorten_ticks(axes.xaxis)
        axes.legend(loc="upper left")

    return _picture(_on_axes(draw), 3.8)


def true_class_histogram(probability: np.ndarray, num_classes: int) -> str:
    def draw(axes: "Axes") -> None:
        axes.hist(probability, bins=20, range=(0.0, 1.0), color=BLUE, alpha=0.8, edgecolor="white", lw=0.8)
        axes.axvline(1.0 / num_classes, color=VERMILLION, lw=1.2, ls="--", label="equal probabilities")
        axes.set(xlim=(0, 1), xlabel="probability given to the true class", ylabel="test rows")
        axes.legend(loc="upper left")

    return _picture(_on_axes(draw))


def extrapolation_histogram(found: Extrapolation) -> str:
    def draw(axes: "Axes") -> None:
        edges = found.edges
        axes.bar(
            edges[:-1], 100.0 * found.share_tested, np.diff(edges), align="edge", color=BLUE, alpha=0.8,
            edgecolor="white", lw=0.8, label="test rows",
        )  # fmt: skip
        axes.stairs(100.0 * found.share_trained, edges, color=ORANGE, lw=1.8, label="training rows")
        axes.set(xlim=(0, edges[-1]), xlabel="extrapolation score", ylabel="rows, %")
        axes.legend(loc="upper right")

    return _picture(_on_axes(draw))


# -- inputs ----------------------------------------------------------------------------------------------------


def relevance_intervals(relevance: Relevance) -> str:
    def draw(axes: "Axes") -> None:
        shares = [EffectLine("", 100.0 * relevance.median, 100.0 * relevance.low, 100.0 * relevance.high)]
        _intervals(axes, relevance.names, shares)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("share of relevance, %")

    return _picture(_on_axes(draw), _height_of(len(relevance.names)))


def partial_effect(effect: Effect) -> str:
    def draw_number(axes: "Axes") -> None:
        for k, one in enumerate(effect.lines):
            axes.fill_between(effect.grid, one.low, one.high, color=COLOURS[k], alpha=0.2, lw=0)
            axes.plot(effect.grid, one.mean, DASHES[k], color=COLOURS[k], label=clean(one.name, TICK_LIMIT))
        axes.plot(
            effect.seen, np.zeros(len(effect.seen)), "|", ms=7, color=GREY, alpha=0.6,
            transform=axes.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
        axes.set(xlim=(effect.grid[0], effect.grid[-1]))
        axes.locator_params(nbins=5)
        _shorten_ticks(axes.xaxis, axes.yaxis)
        axes.set(xlabel=clean(effect.name, LABEL_LIMIT), ylabel=clean(effect.outcome, LABEL_LIMIT))
        _legend_if_several(axes, effect.lines)

    def draw_levels(axes: "Axes") -> None:
        _intervals(axes, effect.levels, effect.lines)
        axes.set(xlabel=clean(effect.outcome, LABEL_LIMIT), ylabel=clean(effect.name, LABEL_LIMIT))
        _legend_if_several(axes, effect.lines)

    if not effect.levels:
        return _picture(_on_axes(draw_number), SMALL_HEIGHT, SMALL_WIDTH)
    return _picture(_on_axes(draw_levels), max(SMALL_HEIGHT, _height_of(len(effect.levels))), SMALL_WIDTH)


def _intervals(axes: "Axes", names: Sequence[str], lines: Sequence[EffectLine]) -> None:
    """Draw a dot with an interval for every name, from top to bottom."""
    places = np.arange(len(names), dtype=float)
    for k, one in enumerate(lines):
        shift = 0.16 * (k - 0.5 * (len(lines) - 1))
        errors = np.maximum([one.mean - one.low, one.high - one.mean], 0.0)
        axes.errorbar(
            one.mean, places + shift, xerr=errors, fmt="o", ms=5, color=COLOURS[k], ecolor=(COLOURS[k], 0.45),
            elinewidth=3 if len(lines) == 1 else 2, label=clean(one.name, TICK_LIMIT),
        )  # fmt: skip
    axes.set_yticks(places, [clean(name, TICK_LIMIT) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.locator_params(axis="x", nbins=4)
    _shorten_ticks(axes.xaxis)


def _height_of(num_names: int) -> float:
    return 0.9 + 0.27 * num_names


def _legend_if_several(axes: "Axes", lines: Sequence[EffectLine]) -> None:
    if len(lines) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


# -- chains ----------------------------------------------------------------------------------------------------


def energy_trace(energy: dict[str, np.ndarray]) -> str:
    """Draw all phases in sequence. The steep start may leave the axes, so that the rest can be seen."""

    def draw(axes: "Axes") -> None:
        start = 0
        for phase, values in energy.items():
            places = start + np.arange(values.shape[1])
            for chain, one in enumerate(values):
                axes.plot(places, one, color=COLOURS[chain % len(COLOURS)], lw=1.0)
            if start:
                axes.axvline(start - 0.5, color=GREY, lw=1.0, ls=":")
            axes.annotate(
                phase, (start + 0.5 * values.shape[1], 1.0), (0, 3), xycoords=axes.get_xaxis_transform(),
                textcoords="offset points", ha="center", fontsize=8.5, color=INK,
            )  # fmt: skip
            start += values.shape[1]
        axes.set(xlim=(-0.5, start - 0.5), xlabel="time", ylabel="energy per row", xticks=[])
        _focus(axes, energy)

    return _picture(_on_axes(draw), SMALL_HEIGHT)


def _focus(axes: "Axes", energy: dict[str, np.ndarray]) -> None:
    everything = np.concatenate([values.ravel() for values in energy.values()])
    everything = everything[np.isfinite(everything)]
    if everything.size:
        low, high = np.quantile(everything, [0.0, 0.97])
        margin = 0.08 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)


def prediction_trace(trace: PredictionTrace) -> str:
    def draw(axes: "Axes") -> None:
        for chain, one in enumerate(trace.values):
            axes.plot(one, color=COLOURS[chain % len(COLOURS)], lw=0.9, alpha=0.85)
        axes.set(xlabel="draw", ylabel=clean(trace.outcome, LABEL_LIMIT), xlim=(0, max(1, trace.values.shape[1] - 1)))
        _shorten_ticks(axes.yaxis)

    return _picture(_on_axes(draw), SMALL_HEIGHT)


# -- inside ----------------------------------------------------------------------------------------------------


def _shorten_ticks(*which: "Axis") -> None:
    """Write 400k instead of 400000, unless the ticks differ only in their last digits."""
    for axis in which:
        low, high = axis.get_view_interval()
        largest = max(abs(low), abs(high))
        if 1e4 <= largest < 1e10 and high - low > 1e-3 * largest:
            unit, letter = (1e6, "M") if largest >= 1e6 else (1e3, "k")
            axis.set_major_formatter(partial(_in_units, unit=unit, letter=letter))


def _in_units(value: float, _, *, unit: float, letter: str) -> str:
    return f"{value / unit:g}{letter}".replace("-", "\N{MINUS SIGN}") if value else "0"


def _on_axes(draw: "Callable[[Axes], None]") -> "Callable[[Figure], None]":
    return lambda figure: draw(figure.subplots())


def _picture(draw: "Callable[[Figure], None]", height: float = HEIGHT, width: float = WIDTH) -> str:
    """Render what `draw` puts on a figure as a data URI, without pyplot, which has global state and wants a display."""
    from matplotlib import style
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with warnings.catch_warnings(), style.context(["default", STYLE]):
        warnings.simplefilter(
            "ignore", UserWarning
        )  # the font may lack characters of a name; browsers have other fonts
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index(b"<svg") :]  # drop the reference to a DTD on the web
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
