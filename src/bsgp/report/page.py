"""Renders the content of a report as one page of HTML. The template engine escapes every name."""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from bsgp.report import figures
from bsgp.report.chains import ChainPlots
from bsgp.report.content import Content
from bsgp.report.effects import Effect, Relevance
from bsgp.report.extrapolation import Extrapolation
from bsgp.report.quality import ClassFit, RegressionFit
from bsgp.report.text import clean, counted, number, percent

ALT_LIMIT = 60


@dataclass(frozen=True)
class Picture:
    """An image of the page."""

    source: str
    """Data URI."""
    alt: str
    """Description for readers who cannot see the image."""
    caption: str = ""


def render(content: Content) -> str:
    """Render the whole page."""
    from jinja2 import Environment, StrictUndefined

    template = files("bsgp.report").joinpath("template.html").read_text(encoding="utf-8")
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters["ticked"] = ticked
    detail = content.quality.detail if content.quality else None
    return engine.from_string(template).render(
        content=content,
        is_regression=isinstance(detail, RegressionFit),
        calibration=_calibration(detail),
        predictions=_predictions(detail),
        extrapolation=_extrapolation(content.extrapolation),
        relevance=_relevance(content.relevance),
        effects=[_effect(effect) for effect in content.effects],
        energy=_energy(content.chains),
        traces=_traces(content.chains),
        number=number,
    )


def ticked(text: str):
    """Mark text between backticks as code, and escape everything."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:  # a name contains a backtick
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _calibration(detail: RegressionFit | ClassFit | None) -> list[Picture]:
    if detail is None:
        return []
    if isinstance(detail, ClassFit):
        reliability = detail.reliability
        gap = float(
            np.average(
                np.abs(reliability.predicted - reliability.observed), weights=reliability.counts[reliability.counts > 0]
            )
        )
        event = clean(reliability.event, ALT_LIMIT)
        return [
            Picture(
                figures.reliability_curve(reliability),
                f"Reliability curve: predicted probability that {event} against the observed frequency, with an "
                f"average gap of {percent(gap)}.",
                f"Event: {event}. Bars below: rows per bin. Average gap: {percent(gap)}.",
            )
        ]
    pictures = []
    for target in detail.targets:
        low, high = target.pit_band
        outside = int(np.sum((target.pit_counts < low) | (target.pit_counts > high)))
        bars = f"{outside} of {counted(len(target.pit_counts), 'bar')}"
        name = clean(target.name, ALT_LIMIT)
        pictures.append(
            Picture(
                figures.pit_histogram(target),
                f"Histogram of the PIT values of {name}: {bars} outside the 95% band.",
                f"PIT of {name}: {bars} outside the band.",
            )
        )
    at_90 = "; ".join(f"{clean(one.name, ALT_LIMIT)} {percent(one.coverage[-2])}" for one in detail.targets)
    pictures.append(
        Picture(
            figures.coverage_curve(detail),
            f"Share of true values inside central intervals against the level of the interval; at 90%: {at_90}.",
            f"True values inside 90% intervals: {at_90}.",
        )
    )
    return pictures


def _predictions(detail: RegressionFit | ClassFit | None) -> list[Picture]:
    if detail is None:
        return []
    if isinstance(detail, ClassFit):
        probability = detail.true_probability
        below = percent(float(np.mean(probability < 0.5)))
        found = f"median {number(float(np.median(probability)))}, below 0.5 in {below} of rows"
        return [
            Picture(
                figures.true_class_histogram(probability, detail.num_classes),
                f"Histogram of the probability given to the true class: {found}.",
                f"Probability of the true class: {found}.",
            )
        ]
    pictures = []
    for target in detail.targets:
        inside = percent(float(np.mean((target.actual >= target.low) & (target.actual <= target.high))))
        name = clean(target.name, ALT_LIMIT)
        rows = counted(len(target.actual), "test row")
        pictures.append(
            Picture(
                figures.predicted_against_actual(target),
                f"Predicted against actual {name} of {rows} with 90% intervals; {inside} contain the true value.",
                f"{name}: {rows}, {inside} inside their intervals.",
            )
        )
        if target.densities:
            shown = counted(len(target.densities), "test row")
            pictures.append(
                Picture(
                    figures.row_densities(target),
                    f"Predictive densities of {name} for {shown}, from the smallest prediction to the largest.",
                    f"{name}: predictive densities of {shown}, and their true values.",
                )
            )
    return pictures


def _extrapolation(found: Extrapolation | None) -> Picture | None:
    if found is None:
        return None
    caption = "Share of the rows by their score."
    return Picture(
        figures.extrapolation_histogram(found), f"Histogram of extrapolation scores. {found.text}".strip(), caption
    )


def _relevance(relevance: Relevance | None) -> Picture | None:
    if relevance is None:
        return None
    first = "; ".join(
        f"{clean(name, ALT_LIMIT)} {percent(share)}"
        for name, share in zip(relevance.names[:3], relevance.median[:3], strict=True)
    )
    more = f" Not shown: {counted(relevance.num_more, 'less relevant input')}." if relevance.num_more else ""
    return Picture(
        figures.relevance_intervals(relevance),
        f"Share of relevance of {counted(len(relevance.names), 'input')} with 90% intervals; the largest: {first}.",
        f"{'Median and 90% interval over the draws.' if np.any(relevance.high > relevance.low) else ''}{more}",
    )


def _effect(effect: Effect) -> Picture:
    first = effect.lines[0]
    name, outcome = clean(effect.name, ALT_LIMIT), clean(effect.outcome, ALT_LIMIT)
    places = effect.levels or tuple(number(value) for value in effect.grid)
    ends = [
        f"{number(float(first.mean[k]))} at {clean(places[k], ALT_LIMIT)}"
        for k in (int(np.argmin(first.mean)), int(np.argmax(first.mean)))
    ]
    line = f"{clean(first.name, ALT_LIMIT)} " if len(effect.lines) > 1 else ""
    found = f"{line}from {ends[0]} to {ends[1]}"
    more = f" Not shown: {counted(effect.num_more, 'rarer category', 'rarer categories')}." if effect.num_more else ""
    return Picture(
        figures.partial_effect(effect), f"Partial effect of {name} on {outcome}: {found}.", f"{name}: {found}.{more}"
    )


def _energy(chains: ChainPlots) -> Picture | None:
    if not chains.energy:
        return None
    phases = ", ".join(chains.energy)
    what = "Energy of every chain" if chains.traces else "Objective"
    return Picture(
        figures.energy_trace(chains.energy),
        f"{what} over time, in these phases: {phases}.",
        f"{what}: it should be level, without a trend, at the end.",
    )


def _traces(chains: ChainPlots) -> list[Picture]:
    return [
        Picture(
            figures.prediction_trace(trace),
            f"Trace over the draws of {trace.name}, one line per chain: mean {number(float(trace.values.mean()))}, "
            f"standard deviation {number(float(trace.values.std()))}.",
            f"A training row with {trace.name}.",
        )
        for trace in chains.traces
    ]
