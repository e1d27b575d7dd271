"""Measures a model on rows with known targets: scores beside its baselines, calibration and errors."""

import math
from dataclasses import dataclass

import numpy as np

from bsgp.data.tables.columns import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.scoring import INTERVAL, evaluate
from bsgp.posterior.posterior import evenly_spaced
from bsgp.report.densities import RowDensity, row_densities
from bsgp.report.scores import METRICS, Metric, Remark, ScoreRow, baseline_remarks, headline, score_rows
from bsgp.report.text import clean, counted, percent

MAX_TARGETS = 4
MAX_POINTS = 300
MAX_REPEATED = 2_000
MAX_CONFUSED = 12
MIN_ROWS = 50
COVERAGE_LEVELS = np.linspace(0.05, 0.95, 19)
CHANCE = 0.99  # a deviation is called bad if chance causes it in fewer than one of a hundred test tables


@dataclass(frozen=True)
class TargetFit:
    """Calibration and predictions of one regression target.

    `actual`, `predicted`, `low` and `high` hold at most 300 rows each.
    """

    name: str
    pit_counts: np.ndarray
    """Histogram of the probability integral transform."""
    pit_band: tuple[float, float]
    """Range of 95% of the bars of that histogram if predictions are calibrated."""
    coverage: np.ndarray
    """Share of true values inside the central intervals of `COVERAGE_LEVELS`."""
    actual: np.ndarray
    predicted: np.ndarray
    low: np.ndarray
    """Lower end of the 90% interval."""
    high: np.ndarray
    """Upper end of the 90% interval."""
    densities: tuple[RowDensity, ...]
    """Predictive densities of a few test rows; empty under Gaussian noise."""


@dataclass(frozen=True)
class RegressionFit:
    """Calibration and predictions of the first four targets at most."""

    targets: tuple[TargetFit, ...]
    coverage_band: np.ndarray
    """Range of 95% of the coverages at each level if predictions are calibrated, `[2 levels]`."""
    num_more: int
    """Number of targets that are not shown."""


@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities and observed frequencies of an event, in bins of the predicted probability.

    `predicted`, `observed`, `low` and `high` leave out empty bins.
    """

    event: str
    predicted: np.ndarray
    """Mean predicted probability in each bin."""
    observed: np.ndarray
    """Observed frequency in each bin."""
    low: np.ndarray
    """Lower end of the 95% interval of the observed frequency."""
    high: np.ndarray
    """Upper end of the 95% interval of the observed frequency."""
    edges: np.ndarray
    counts: np.ndarray
    """Number of rows in each bin, empty bins included."""


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix of the classes."""

    labels: tuple[str, ...]
    counts: np.ndarray
    """Number of test rows, `[actual predicted]`."""


@dataclass(frozen=True)
class ClassFit:
    """Calibration and predictions of a classification."""

    num_classes: int
    reliability: Reliability
    true_probability: np.ndarray
    """Probability that each test row's true class was given."""
    confusion: Confusion


@dataclass(frozen=True)
class Quality:
    """Results of a model on a test table."""

    num_rows: int
    headline: str
    remarks: tuple[Remark, ...]
    metrics: tuple[Metric, ...]
    scores: tuple[ScoreRow, ...]
    detail: RegressionFit | ClassFit
    notes: tuple[str, ...]
    """Values of the test table that were filled in or changed."""


def measure(model: BSGPEstimator, X: Table, y) -> Quality:
    """Measure the model on the test table `X` with the targets `y`."""
    y = np.asarray(y)
    scores, baselines, _ = evaluate(model, X, y)
    if isinstance(model, BSGPClassifier):
        codes, probability = model.codes(y), model.predict_proba(X)
        detail = _class_fit(model, codes, probability)
        calibration = _confidence_remark(codes, probability)
    else:
        assert isinstance(model, BSGPRegressor)
        detail = _regression_fit(model, X, y.astype(np.float64).reshape(X.num_rows, -1))
        calibration = _coverage_remark(scores["coverage90"], X.num_rows)
    return Quality(
        num_rows=X.num_rows,
        headline=headline(scores, baselines, X.num_rows, single=len(model.target_names_) == 1),
        remarks=(*_size_remark(X.num_rows), calibration, *baseline_remarks(scores, baselines)),
        metrics=tuple(METRICS[name] for name in scores),
        scores=score_rows({**baselines, model.method: scores}),
        detail=detail,
        notes=tuple(model.notes_on(X)),
    )


def _size_remark(num_rows: int) -> list[Remark]:
    if num_rows >= MIN_ROWS:
        return []
    return [Remark(f"The test table has only {counted(num_rows, 'row')}: the scores are rough.", False)]


def _coverage_remark(coverage: float, num_rows: int) -> Remark:
    from scipy.stats import binom

    # targets of a row are not independent, so the number of rows counts
    low, high = np.asarray(binom.interval(CHANCE, num_rows, 0.9)) / num_rows
    said = f"The 90% intervals contain {percent(coverage)} of the test targets"
    if low <= coverage <= high:
        return Remark(f"{said}, which is within chance of 90%.", True)
    fault = "narrow: predictions are overconfident" if coverage < low else "wide: predictions are underconfident"
    return Remark(f"{said}; chance allows {percent(low)} to {percent(high)}. They are too {fault}.", False)


def _confidence_remark(codes: np.ndarray, probability: np.ndarray) -> Remark:
    """Compare the number of correct rows with the Poisson-binomial distribution that the probabilities imply."""
    from scipy.stats import norm

    top = probability.max(axis=1)
    right, promised = float(np.mean(probability.argmax(axis=1) == codes)), float(np.mean(top))
    slack = float(norm.ppf(0.5 + 0.5 * CHANCE)) * math.sqrt(float(np.sum(top * (1.0 - top)))) / len(codes)
    said = f"The most probable class has probability {percent(promised)} on average and is right in {percent(right)}"
    if abs(right - promised) <= slack + 0.5 / len(codes):
        return Remark(f"{said} of the test rows, which agrees within chance.", True)
    fault = "overconfident" if right < promised else "underconfident"
    return Remark(f"{said} of the test rows, a larger gap than chance explains: predictions are {fault}.", False)


# -- regression ------------------------------------------------------------------------------------------------


def _regression_fit(model: BSGPRegressor, X: Table, y: np.ndarray) -> RegressionFit:
    from scipy.stats import binom

    num_rows = X.num_rows
    pit = _pit(model, X, y)
    rows = evenly_spaced(num_rows, MAX_POINTS)
    # predicting a small table again is faster than compiling for fewer rows
    asked, picked = (X, rows) if num_rows <= MAX_REPEATED else (X.take(rows), np.arange(len(rows)))
    predicted = np.reshape(model.predict(asked), (asked.num_rows, -1))[picked]
    interval = np.reshape(model.predict_quantiles(asked, INTERVAL), (asked.num_rows, -1, 2))[picked]
    num_bins = 20 if num_rows >= 400 else 10
    low, high = binom.interval(0.95, num_rows, 1.0 / num_bins)
    shown = range(min(y.shape[1], MAX_TARGETS))
    targets = tuple(
        TargetFit(
            name=clean(model.target_names_[p]),
            pit_counts=np.histogram(pit[:, p], bins=num_bins, range=(0.0, 1.0))[0],
            pit_band=(float(low), float(high)),
            coverage=np.mean(np.abs(pit[:, p, None] - 0.5) <= 0.5 * COVERAGE_LEVELS[None, :], axis=0),
            actual=y[rows, p],
            predicted=predicted[:, p],
            low=interval[:, p, 0],
            high=interval[:, p, 1],
            densities=row_densities(model, X, y, p),
        )
        for p in shown
    )
    band = np.stack(binom.interval(0.95, num_rows, COVERAGE_LEVELS)) / num_rows
    return RegressionFit(targets, band, y.shape[1] - len(shown))


def _pit(model: BSGPRegressor, X: Table, y: np.ndarray) -> np.ndarray:
    """Distribution function at the true values `[N P]`; at counts and levels, a random place within its step."""
    values = y if y.shape[1] > 1 else y[:, 0]
    pit = np.reshape(model.cdf(X, values), y.shape)
    if not model.posterior_.model.likelihood.is_discrete:
        return pit
    step = np.exp(np.reshape(model.log_density(X, values), y.shape))
    return np.clip(pit - np.random.default_rng(0).uniform(size=y.shape) * step, 0.0, 1.0)


# -- classification --------------------------------------------------------------------------------------------


def _class_fit(model: BSGPClassifier, codes: np.ndarray, probability: np.ndarray) -> ClassFit:
    names = tuple(clean(label) for label in model.classes_)
    label = probability.argmax(axis=1)
    if len(names) == 2:
        reliability = _reliability(f"class is {names[1]}", probability[:, 1], codes == 1)
    else:
        reliability = _reliability("the most probable class is right", probability.max(axis=1), label == codes)
    return ClassFit(
        num_classes=len(names),
        reliability=reliability,
        true_probability=probability[np.arange(len(codes)), codes],
        confusion=_confusion(names, codes, label),
    )


def _reliability(event: str, predicted: np.ndarray, happened: np.ndarray) -> Reliability:
    from scipy.stats import beta

    edges = np.linspace(0.0, 1.0, 11)
    bins = np.clip(np.digitize(predicted, edges[1:-1]), 0, 9)
    counts = np.bincount(bins, minlength=10)
    some = counts > 0
    hits = np.bincount(bins, weights=happened.astype(np.float64), minlength=10)[some]
    misses = counts[some] - hits
    return Reliability(
        event=event,
        predicted=np.bincount(bins, weights=predicted, minlength=10)[some] / counts[some],
        observed=hits / counts[some],
        low=np.where(hits > 0, beta.ppf(0.025, hits + 0.5, misses + 0.5), 0.0),  # Jeffreys' interval
        high=np.where(misses > 0, beta.ppf(0.975, hits + 0.5, misses + 0.5), 1.0),
        edges=edges,
        counts=counts,
    )


def _confusion(names: tuple[str, ...], actual: np.ndarray, predicted: np.ndarray) -> Confusion:
    """Count actual and predicted classes. If there are many classes, the rarer ones are merged into one."""
    group = np.arange(len(names))
    if len(names) > MAX_CONFUSED:
        often = np.bincount(actual, minlength=len(names)) + np.bincount(predicted, minlength=len(names))
        kept = np.sort(np.argsort(-often, kind="stable")[: MAX_CONFUSED - 1])
        group = np.full(len(names), len(kept))
        group[kept] = np.arange(len(kept))
        names = (*(names[k] for k in kept), f"{len(names) - len(kept)} others")
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (group[actual], group[predicted]), 1)
    return Confusion(names, counts)
