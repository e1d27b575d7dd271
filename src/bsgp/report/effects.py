"""Measures how much each input matters to a model, and how the predictions depend on it."""

from dataclasses import dataclass

import jax
import jax.random as jr
import numpy as np

from bsgp.data.encoding.feature import Feature
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.scoring import INTERVAL
from bsgp.models.sensitivity import sensitivity
from bsgp.posterior.posterior import Posterior, evenly_spaced
from bsgp.report.outcomes import MAX_OUTCOMES, Outcomes, num_outputs, outcomes
from bsgp.report.text import clean

MAX_RELEVANT = 15
MAX_EFFECTS = 6
MAX_LEVELS = 12
MAX_DRAWS = 64
MAX_ROWS = 40
NUM_GRID = 25


@dataclass(frozen=True)
class Relevance:
    """Share of relevance of each input, largest first: the median and the 90% interval over draws."""

    names: tuple[str, ...]
    """Names as the page shows them."""
    columns: tuple[str, ...]
    """Names as the schema spells them."""
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_more: int
    """Number of inputs that are not shown."""


@dataclass(frozen=True)
class EffectLine:
    """Mean and 90% band of one outcome over the values of an input."""

    name: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Effect:
    """Dependence of the average prediction on one input."""

    name: str
    grid: np.ndarray
    """Values of a numeric input; empty for categories and booleans."""
    levels: tuple[str, ...]
    """Names of the categories; empty for numeric inputs."""
    num_more: int
    """Number of categories that are not shown."""
    lines: tuple[EffectLine, ...]
    outcome: str
    """Label of the axis of predictions."""
    seen: np.ndarray
    """Some training values of a numeric input."""


def relevance(model: BSGPEstimator) -> Relevance | None:
    """Share of each column in `input variance * sensitivity`, summed over the inputs that encode the column.

    The sensitivity of an RBF kernel is in proportion to `1 / lengthscale^2`. A deep model is judged by its first layer.
    None if the kernel's sensitivity is not known.
    """
    background = np.asarray(model.background_, np.float64)
    slopes = _slopes(model.posterior_, background.shape[1])
    if slopes is None:
        return None
    weights = background.var(axis=0) * slopes
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


def _slopes(posterior: Posterior, num_inputs: int) -> np.ndarray | None:
    """`sensitivity` of every draw's kernel over the inputs, `[S D]`."""
    kernel = posterior.model.input_kernel
    if kernel is None:
        return None
    draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kernel)
    size = posterior.num_chains * posterior.num_draws
    slopes = jax.vmap(lambda one: sensitivity(one, num_inputs), axis_size=size)(draws)
    return None if slopes is None else np.asarray(slopes, np.float64)


def partial_effects(model: BSGPEstimator, columns: tuple[str, ...]) -> tuple[Effect, ...]:
    """Partial effects of the first few `columns`: predictions averaged over training rows with one input replaced."""
    features = {feature.name: feature for feature in model.schema_.features}
    background = np.asarray(model.background_)
    # fewer rows and draws if there are many classes: K classes cost K^2
    num_rows, num_draws = (max(most // 4, most * MAX_OUTCOMES // num_outputs(model)) for most in (MAX_ROWS, MAX_DRAWS))
    rows = background[evenly_spaced(len(background), min(MAX_ROWS, num_rows))]
    posterior = model.posterior_.subset(min(MAX_DRAWS, num_draws))
    schema, names = model.schema_, columns[:MAX_EFFECTS]
    inputs = [_input_values(features[name], background[:, schema.columns_of(name)]) for name in names]
    blocks = [schema.encode_values(name, one.values) for name, one in zip(names, inputs, strict=True)]
    tables = [_replaced(rows, schema.columns_of(name), block) for name, block in zip(names, blocks, strict=True)]
    # all inputs in one call: one program is compiled, and hidden layers are drawn with one key
    means = posterior.predictive_draws(np.concatenate(tables), jr.key(0)).mean  # [C S N P]
    means = np.asarray(means, np.float64).reshape(-1, *means.shape[2:])
    ends = np.cumsum([len(table) for table in tables])[:-1]
    parts = np.split(means, ends, axis=1)
    averages = [part.reshape(len(part), -1, len(rows), part.shape[2]).mean(axis=2) for part in parts]  # [S K P]
    shown = outcomes(model, means.mean(axis=(0, 1)))
    return tuple(_effect(one, shown, average) for one, average in zip(inputs, averages, strict=True))


@dataclass(frozen=True)
class _InputValues:
    """Values that one input is set to."""

    feature: Feature
    values: np.ndarray
    levels: tuple[str, ...]
    num_more: int
    seen: np.ndarray


def _input_values(feature: Feature, encoded: np.ndarray) -> _InputValues:
    """Choose values of a feature; `encoded` holds its columns in the background rows."""
    if feature.kind == "boolean":
        return _InputValues(feature, np.array([False, True]), ("false", "true"), 0, np.empty(0))
    if feature.kind == "category":
        often = np.argsort(-np.asarray(feature.frequencies), kind="stable")[:MAX_LEVELS]
        levels = [feature.categories[k] for k in np.sort(often)]
        num_more = len(feature.categories) - len(levels)
        values = np.array([*levels, None], dtype=object)[:-1]
        return _InputValues(feature, values, tuple(clean(level) for level in levels), num_more, np.empty(0))
    there = encoded[:, -1] <= 0.0 if feature.has_missing else np.ones(len(encoded), bool)
    seen = encoded[there, 0].astype(np.float64) * feature.scale + feature.mean
    low, high = feature.low, feature.high
    if not high > low:  # nearly all values are the same
        low, high = feature.mean - feature.scale, feature.mean + feature.scale
    return _InputValues(feature, np.linspace(low, high, NUM_GRID), (), 0, seen[(seen >= low) & (seen <= high)])


def _replaced(rows: np.ndarray, columns: slice, values: np.ndarray) -> np.ndarray:
    """Repeat the rows once per value, with `columns` set to it: `[K R D]` flattened to `[K R, D]`."""
    table = np.repeat(rows[None], len(values), axis=0)
    table[:, :, columns] = values[:, None, :]
    return table.reshape(-1, rows.shape[1])


def _effect(inputs: _InputValues, shown: Outcomes, average: np.ndarray) -> Effect:
    values = shown.convert(average)  # [S K which]
    low, high = np.quantile(values, INTERVAL, axis=0)
    mean = values.mean(axis=0)
    return Effect(
        name=clean(inputs.feature.name),
        grid=np.empty(0) if inputs.levels else inputs.values,
        levels=inputs.levels,
        num_more=inputs.num_more,
        lines=tuple(EffectLine(name, mean[:, k], low[:, k], high[:, k]) for k, name in enumerate(shown.names)),
        outcome=shown.label,
        seen=inputs.seen,
    )
