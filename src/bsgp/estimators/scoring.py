"""Scores of a fitted model and its baselines on rows with known targets.

Rows may come in chunks. Only sums are kept of a chunk and, for a classification, a few bytes per row.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from bsgp.data.tables.columns import Table
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.baselines import ClassBaseline, GaussianBaseline
from bsgp.estimators.classifier import BSGPClassifier
from bsgp.estimators.regressor import BSGPRegressor
from bsgp.posterior.metrics import gaussian_crps, mean_auc

Scores = dict[str, float]
INTERVAL = (0.05, 0.95)


class Evaluation(NamedTuple):
    """Scores of a model and, by name, of its baselines, on `num_rows` rows."""

    scores: Scores
    baselines: dict[str, Scores]
    num_rows: int


def evaluate(model: BSGPEstimator, X: Table, y) -> Evaluation:
    """Score a model and its baselines on a table of inputs with known targets.

    The scores are `mnll, nrmse, rmse, crps, coverage90` for a regression, averaged over targets, and `mnll, error, auc`
    for a classification.
    """
    return evaluate_chunks(model, [(X, y)])


def evaluate_chunks(model: BSGPEstimator, chunks: Iterable[tuple[Table, Any]]) -> Evaluation:
    """`evaluate` of a table that comes in chunks of inputs and targets, each read once."""
    tally, others = _tally(model), {name: _tally(model) for name in model.baselines_}
    num_rows = 0
    for index, (X, y) in enumerate(chunks):
        inputs = model.encode(X)
        _add_model(tally, model, inputs, y, model.key_of_chunk(index))
        for name, other in others.items():
            _add_baseline(other, model, model.baselines_[name], inputs, y)
        num_rows += X.num_rows
    return Evaluation(tally.scores(), {name: other.scores() for name, other in others.items()}, num_rows)


# -- adding up ---------------------------------------------------------------------------------------------------


class _RegressionTally:
    """Sums over rows and targets."""

    def __init__(self, scale: np.ndarray):
        self._scale = scale
        self._sums = np.zeros(5)
        self._count = 0

    def add(
        self, y: np.ndarray, mean: np.ndarray, log_density: np.ndarray, crps: np.ndarray, inside: np.ndarray
    ) -> None:
        error = y - mean
        terms = (-log_density, (error / self._scale) ** 2, error**2, crps, inside)
        self._sums += [np.sum(term, dtype=np.float64) for term in terms]
        self._count += y.size

    def scores(self) -> Scores:
        mnll, nmse, mse, crps, coverage = (self._sums / self._count).tolist()
        return {"mnll": mnll, "nrmse": nmse**0.5, "rmse": mse**0.5, "crps": crps, "coverage90": coverage}


class _ClassTally:
    """Sums over rows, and the class and the ranking of classes of each row, which the AUC needs.

    The latter take 5 bytes per row with two classes, and 1 + 4 K with K.
    """

    def __init__(self, num_classes: int):
        self._type = np.min_scalar_type(num_classes)
        self._sums = np.zeros(2)
        self._codes: list[np.ndarray] = []
        self._ranking: list[np.ndarray] = []

    def add(self, codes: np.ndarray, log_density: np.ndarray, ranking: np.ndarray) -> None:
        """Add rows; `ranking [N K]` grows with the probabilities."""
        errors = np.argmax(ranking, axis=1) != codes
        self._sums += [-np.sum(log_density, dtype=np.float64), np.sum(errors)]
        self._codes.append(codes.astype(self._type))
        kept = ranking[:, 1:] if ranking.shape[1] == 2 else ranking  # with two classes one column is enough
        self._ranking.append(kept.astype(np.float32))

    def scores(self) -> Scores:
        codes, ranking = np.concatenate(self._codes), np.concatenate(self._ranking)
        mnll, error = (self._sums / len(codes)).tolist()
        return {"mnll": mnll, "error": error, "auc": mean_auc(codes, ranking)}


def _tally(model: BSGPEstimator):
    if isinstance(model, BSGPClassifier):
        return _ClassTally(len(model.classes_))
    assert isinstance(model, BSGPRegressor)  # for the type checker
    return _RegressionTally(model.target_sd)


def _add_model(tally, model: BSGPEstimator, inputs: np.ndarray, y, key: Array) -> None:
    posterior = model.posterior_
    if isinstance(model, BSGPClassifier):
        codes = model.codes(y)
        log_probability = posterior.log_probabilities(inputs, key)
        tally.add(codes, log_probability[np.arange(len(codes)), codes], log_probability)
        return
    assert isinstance(model, BSGPRegressor)  # for the type checker
    y = np.asarray(y, np.float64).reshape(inputs.shape[0], -1)
    scale = model.target_scale
    standardised = ((y - model.target_mean) / scale).astype(inputs.dtype)
    mean, log_density, cdf = posterior.at_targets(inputs, standardised, key)
    crps = posterior.crps(inputs, standardised, key) * scale
    # a target lies between two quantiles if its distribution function lies between their levels; where that function
    # has steps, the step of the target itself may cross a level
    below = cdf - np.exp(log_density) if posterior.model.likelihood.is_discrete else cdf
    inside = (cdf >= INTERVAL[0]) & (below <= INTERVAL[1])
    tally.add(y, mean * scale + model.target_mean, log_density - np.log(scale), crps, inside)


def _add_baseline(tally, model, baseline: GaussianBaseline | ClassBaseline, inputs: np.ndarray, y) -> None:
    if isinstance(baseline, ClassBaseline):
        codes, probability = model.codes(y), baseline.probability(inputs)
        tally.add(codes, np.log(probability[np.arange(len(codes)), codes]), probability)
        return
    from scipy.stats import norm

    y = np.asarray(y, np.float64).reshape(inputs.shape[0], -1)
    mean = baseline.mean(inputs)
    low, high = (mean + baseline.sd * quantile for quantile in norm.ppf(INTERVAL))
    inside = (y >= low) & (y <= high)
    tally.add(y, mean, norm.logpdf(y, mean, baseline.sd), gaussian_crps(y, mean, baseline.sd), inside)
