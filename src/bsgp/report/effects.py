"""Which inputs matter to a model, and how its predictions move with each of them."""

from dataclasses import dataclass

import jax.random as jr
import numpy as np

from bsgp.data.schema import Feature
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.report.outcomes import MAX_SERIES, Outcomes, num_outputs, outcomes
from bsgp.report.picks import evenly, thinned
from bsgp.report.words import clean

MAX_RELEVANT = 15
MAX_EFFECTS = 6
MAX_LEVELS = 12
MAX_DRAWS = 64
MAX_ROWS = 40
NUM_GRID = 25
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Relevance:
    """Shares of the inputs, the largest first: quantiles over draws."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    """The same as the schema spells them."""
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_more: int
    """Inputs that are not shown."""


@dataclass(frozen=True)
class Series:
    """One line with its band, over the values of an input."""

    name: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Effect:
    """How the average prediction depends on one input."""

    name: str
    grid: np.ndarray
    """Values of a number; empty for categories and booleans."""
    levels: tuple[str, ...]
    """Names of categories; empty for numbers."""
    num_more: int
    """Categories that are not shown."""
    series: tuple[Series, ...]
    outcome: str
    """What the vertical axis is."""
    seen: np.ndarray
    """Some training values of a number."""


def relevance(model: BSGPRegressor | BSGPClassifier) -> Relevance | None:
    """`variance of the input / lengthscale^2` of every draw as shares, summed over what a column was encoded to.

    None where the kernel has no lengthscales. Of a deep model it is the first layer's.
    """
    lengthscales = getattr(model.posterior_.model.input_kernel, "lengthscales", None)
    if lengthscales is None:
        return None
    background = np.asarray(model.background_, np.float64)
    weights = background.var(axis=0) / np.asarray(lengthscales, np.float64).reshape(-1, background.shape[1]) ** 2
    columns = model.schema_.names
    by_column = np.stack([weights[:, model.schema_.columns_of(name)].sum(axis=1) for name in columns], axis=1)
    shares = by_column / np.maximum(by_column.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    low, median, high = np.quantile(shares, (INTERVAL[0], 0.5, INTERVAL[1]), axis=0)
    first = np.argsort(-median, kind="stable")[:MAX_RELEVANT]
    return Relevance(
        names=tuple(clean(columns[k]) for k in first),
        columns=tuple(columns[k] for k in first),
        median=median[first],
        low=low[first],
        high=high[first],
        num_more=len(columns) - len(first),
    )


def partial_effects(model: BSGPRegressor | BSGPClassifier, columns: tuple[str, ...]) -> tuple[Effect, ...]:
    """Of the first few of `columns`: set an input to a value in some training rows and average the predictions."""
    features = {feature.name: feature for feature in model.schema_.features}
    background = np.asarray(model.background_)
    # the probabilities of K classes cost K^2
    num_rows, num_draws = (max(most // 4, most * MAX_SERIES // num_outputs(model)) for most in (MAX_ROWS, MAX_DRAWS))
    rows = background[evenly(len(background), min(MAX_ROWS, num_rows))]
    posterior = thinned(model.posterior_, min(MAX_DRAWS, num_draws))
    schema, names = model.schema_, columns[:MAX_EFFECTS]
    questions = [_question(features[name], background[:, schema.columns_of(name)]) for name in names]
    blocks = [schema.encode_values(name, one.values) for name, one in zip(names, questions, strict=True)]
    tables = [_replaced(rows, schema.columns_of(name), block) for name, block in zip(names, blocks, strict=True)]
    # all inputs at once: one program is compiled, and hidden layers are drawn under one key
    means = posterior.predictive_draws(np.concatenate(tables), jr.key(0)).mean  # [C S N P]
    means = np.asarray(means, np.float64).reshape(-1, *means.shape[2:])
    ends = np.cumsum([len(table) for table in tables])[:-1]
    parts = np.split(means, ends, axis=1)
    averages = [part.reshape(len(part), -1, len(rows), part.shape[2]).mean(axis=2) for part in parts]  # [S K P]
    shown = outcomes(model, means.mean(axis=(0, 1)))
    return tuple(_effect(one, shown, average) for one, average in zip(questions, averages, strict=True))


@dataclass(frozen=True)
class _Question:
    """The values that an input is set to."""

    feature: Feature
    values: np.ndarray
    levels: tuple[str, ...]
    num_more: int
    seen: np.ndarray


def _question(feature: Feature, encoded: np.ndarray) -> _Question:
    """`encoded` are the background's columns of the feature."""
    if feature.kind == "boolean":
        return _Question(feature, np.array([False, True]), ("false", "true"), 0, np.empty(0))
    if feature.kind == "category":
        often = np.argsort(-np.asarray(feature.frequencies), kind="stable")[:MAX_LEVELS]
        levels = [feature.categories[k] for k in np.sort(often)]
        num_more = len(feature.categories) - len(levels)
        values = np.array([*levels, None], dtype=object)[:-1]
        return _Question(feature, values, tuple(clean(level) for level in levels), num_more, np.empty(0))
    there = encoded[:, -1] <= 0.0 if feature.has_missing else np.ones(len(encoded), bool)
    seen = encoded[there, 0].astype(np.float64) * feature.scale + feature.mean
    low, high = feature.low, feature.high
    if not high > low:  # nearly all values are one
        low, high = feature.mean - feature.scale, feature.mean + feature.scale
    return _Question(feature, np.linspace(low, high, NUM_GRID), (), 0, seen[(seen >= low) & (seen <= high)])


def _replaced(rows: np.ndarray, columns: slice, values: np.ndarray) -> np.ndarray:
    """All rows with the first value, then all with the second, and so on: `[K R D]` on one axis."""
    table = np.repeat(rows[None], len(values), axis=0)
    table[:, :, columns] = values[:, None, :]
    return table.reshape(-1, rows.shape[1])


def _effect(question: _Question, shown: Outcomes, average: np.ndarray) -> Effect:
    values = shown.convert(average)  # [S K which]
    low, high = np.quantile(values, INTERVAL, axis=0)
    mean = values.mean(axis=0)
    return Effect(
        name=clean(question.feature.name),
        grid=np.empty(0) if question.levels else question.values,
        levels=question.levels,
        num_more=question.num_more,
        series=tuple(Series(name, mean[:, k], low[:, k], high[:, k]) for k, name in enumerate(shown.names)),
        outcome=shown.label,
        seen=question.seen,
    )
