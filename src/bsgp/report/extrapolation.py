"""Measures how far test rows lie outside the training data, and whether errors are larger there."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bsgp.data.tables.columns import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.estimators.base import BSGPEstimator
from bsgp.posterior.posterior import evenly_spaced
from bsgp.report.text import UNKNOWN, counted, number, percent

BAND_EDGES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
NUM_BINS = 20
MAX_ROWS = 2_000
FEWEST_ROWS = 10
"""Rows that a comparison of errors takes, both among those that extrapolate and among the others."""


@dataclass(frozen=True)
class Band:
    """Test rows whose scores lie in one range."""

    label: str
    num_rows: int
    values: tuple[str, ...]
    """What the columns of the table say about these rows."""


@dataclass(frozen=True)
class Extrapolation:
    """Extrapolation scores of test rows, beside those of some training rows and beside the errors."""

    text: str
    columns: tuple[str, ...]
    bands: tuple[Band, ...]
    edges: np.ndarray
    """Bins of the score, as far as scores reach."""
    share_tested: np.ndarray
    """Share of the test rows in each bin."""
    share_trained: np.ndarray
    """Share of the training rows in each bin."""


def measure_extrapolation(model: BSGPEstimator, X: Table, y) -> Extrapolation:
    """Score the rows of a test table with the targets `y`, 2,000 of them at most."""
    rows = evenly_spaced(X.num_rows, MAX_ROWS)
    X, y = (X, np.asarray(y)) if X.num_rows <= MAX_ROWS else (X.take(rows), np.asarray(y)[rows])
    tested = model.extrapolation(X)
    trained = model.posterior_.extrapolation(model.background_, model.key_of_chunk())
    errors = _class_errors(model, X, y) if isinstance(model, BSGPClassifier) else _target_errors(model, X, y)
    edges = np.linspace(0.0, np.ceil(20.0 * max(tested.max(), trained.max(), 0.01)) / 20.0, NUM_BINS + 1)
    share_tested, share_trained = (np.histogram(score, bins=edges)[0] / len(score) for score in (tested, trained))
    return Extrapolation(
        text=_text(tested, trained, errors),
        columns=errors.columns,
        bands=tuple(_band(tested, low, high, errors) for low, high in pairwise(BAND_EDGES)),
        edges=edges,
        share_tested=share_tested,
        share_trained=share_trained,
    )


@dataclass(frozen=True)
class _Errors:
    """Measures of error for any selection of the test rows."""

    name: str
    columns: tuple[str, ...]
    of_rows: Callable[[np.ndarray], tuple[str, ...]]
    """The values of the columns for the chosen rows; the first is the one that `name` names."""


def _target_errors(model: BSGPEstimator, X: Table, y: np.ndarray) -> _Errors:
    assert isinstance(model, BSGPRegressor)  # for the type checker
    y = y.astype(np.float64).reshape(X.num_rows, -1)
    interval = model.predict_interval(X, 0.9).reshape(*y.shape, 2)
    inside = (y >= interval[..., 0]) & (y <= interval[..., 1])
    # in the units of a single target; several have no common unit
    unit, name = (1.0, "RMSE") if y.shape[1] == 1 else (model.target_scale, "NRMSE")
    squared = ((y - np.reshape(model.predict(X), y.shape)) / unit) ** 2

    def of_rows(chosen: np.ndarray) -> tuple[str, ...]:
        return number(float(np.sqrt(np.mean(squared[chosen])))), percent(float(np.mean(inside[chosen])))

    return _Errors(name, (name, "90% coverage"), of_rows)


def _class_errors(model: BSGPClassifier, X: Table, y: np.ndarray) -> _Errors:
    codes, probability = model.codes(y), model.predict_proba(X)
    wrong = probability.argmax(axis=1) != codes
    of_truth = probability[np.arange(len(codes)), codes]

    def of_rows(chosen: np.ndarray) -> tuple[str, ...]:
        return percent(float(np.mean(wrong[chosen]))), number(float(np.mean(of_truth[chosen])))

    return _Errors("error rate", ("Error", "Mean probability of the true class"), of_rows)


def _text(tested: np.ndarray, trained: np.ndarray, errors: _Errors) -> str:
    """Which share of the test rows extrapolates, and whether errors are larger there."""
    beyond = tested > trained.max()
    rows = counted(len(trained), "training row")
    if not beyond.any():
        return f"No test row scores higher than all of {rows}: none extrapolates."
    by_chance = 1.0 / (len(trained) + 1)
    said = (
        f"{percent(float(np.mean(beyond)))} of the test rows score higher than all of {rows}: they extrapolate. "
        f"About {percent(by_chance)} would if test rows were like training rows."
    )
    if min(beyond.sum(), (~beyond).sum()) < FEWEST_ROWS:
        return said
    return f"{said} The {errors.name} is {errors.of_rows(beyond)[0]} there, and {errors.of_rows(~beyond)[0]} elsewhere."


def _band(tested: np.ndarray, low: float, high: float, errors: _Errors) -> Band:
    chosen = (tested >= low) & ((tested < high) | (high == BAND_EDGES[-1]))
    values = errors.of_rows(chosen) if chosen.any() else (UNKNOWN,) * len(errors.columns)
    return Band(f"{low:g} to {high:g}", int(chosen.sum()), values)
