"""What rows with known targets say about a model: scores beside its baselines, calibration, and errors."""

import math
from dataclasses import dataclass

import numpy as np

from bsgp.data.tables import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.report.picks import evenly
from bsgp.report.scores import METRICS, Metric, Remark, ScoreRow, baseline_remarks, headline, score_rows
from bsgp.report.words import clean, counted, percent
from bsgp.scoring import INTERVAL, baseline_scores, score

MAX_TARGETS = 4
MAX_POINTS = 300
MAX_REPEATED = 2_000
MAX_CONFUSED = 12
MIN_ROWS = 50
LEVELS = np.linspace(0.05, 0.95, 19)
ALARM = 0.99  # remarks are made of what chance does less often than once in a hundred tables


@dataclass(frozen=True)
class TargetFit:
    """Calibration and predictions of one target of a regression."""

    name: str
    pit_counts: np.ndarray
    pit_band: tuple[float, float]
    """Where 95% of bars lie if predictions are calibrated."""
    coverage: np.ndarray
    """Share of truths inside the central intervals of `LEVELS`."""
    actual: np.ndarray
    predicted: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """The last four are of at most 300 rows."""


@dataclass(frozen=True)
class RegressionFit:
    """Of the first targets, at most four."""

    targets: tuple[TargetFit, ...]
    coverage_band: np.ndarray
    """`[2 levels]`: where 95% of coverages lie if predictions are calibrated."""
    num_more: int
    """Targets that are not shown."""


@dataclass(frozen=True)
class Reliability:
    """Bins of a predicted probability, those that hold rows."""

    event: str
    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """The 95% interval of the observed share."""
    edges: np.ndarray
    counts: np.ndarray
    """Of all bins."""


@dataclass(frozen=True)
class Confusion:
    labels: tuple[str, ...]
    counts: np.ndarray
    """`[actual predicted]`."""


@dataclass(frozen=True)
class ClassFit:
    num_classes: int
    reliability: Reliability
    true_probability: np.ndarray
    confusion: Confusion


@dataclass(frozen=True)
class Quality:
    num_rows: int
    headline: str
    remarks: tuple[Remark, ...]
    metrics: tuple[Metric, ...]
    scores: tuple[ScoreRow, ...]
    detail: RegressionFit | ClassFit
    notes: tuple[str, ...]
    """What was done to the test table."""


def measure(model: BSGPRegressor | BSGPClassifier, X: Table, y) -> Quality:
    """All that the report says about the test table `X` with the targets `y`."""
    y = np.asarray(y)
    baselines, scores = baseline_scores(model, X, y), score(model, X, y)
    if isinstance(model, BSGPClassifier):
        codes, probability = model.codes(y), model.predict_proba(X)
        detail = _class_fit(model, codes, probability)
        calibration = _confidence_remark(codes, probability)
    else:
        detail = _regression_fit(model, X, y.astype(np.float64).reshape(X.num_rows, -1))
        calibration = _coverage_remark(scores["coverage90"], X.num_rows)
    return Quality(
        num_rows=X.num_rows,
        headline=headline(scores, baselines, X.num_rows, single=len(model.target_names_) == 1),
        remarks=(*_size_remark(X.num_rows), calibration, *baseline_remarks(scores, baselines)),
        metrics=tuple(METRICS[name] for name in scores),
        scores=score_rows({**baselines, model.method: scores}),
        detail=detail,
        notes=tuple(model.schema_.encode(X)[1]),
    )


def _size_remark(num_rows: int) -> list[Remark]:
    if num_rows >= MIN_ROWS:
        return []
    return [Remark(f"The test table has only {counted(num_rows, 'row')}: its figures are rough.", False)]


def _coverage_remark(coverage: float, num_rows: int) -> Remark:
    from scipy.stats import binom

    # targets of a row are not independent, so the number of rows counts
    low, high = np.asarray(binom.interval(ALARM, num_rows, 0.9)) / num_rows
    said = f"90% intervals hold {percent(coverage)} of the test targets"
    if low <= coverage <= high:
        return Remark(f"{said}: as they should, within chance.", True)
    fault = "narrow: predictions are surer than they should be" if coverage < low else "wide"
    return Remark(f"{said} where chance allows {percent(low)} to {percent(high)}: they are too {fault}.", False)


def _confidence_remark(codes: np.ndarray, probability: np.ndarray) -> Remark:
    """Compares the number of rows that are right with what the probabilities promise, a Poisson-binomial."""
    from scipy.stats import norm

    top = probability.max(axis=1)
    right, promised = float(np.mean(probability.argmax(axis=1) == codes)), float(np.mean(top))
    slack = float(norm.ppf(0.5 + 0.5 * ALARM)) * math.sqrt(float(np.sum(top * (1.0 - top)))) / len(codes)
    said = f"The most probable class has probability {percent(promised)} on average and is right in {percent(right)}"
    if abs(right - promised) <= slack + 0.5 / len(codes):
        return Remark(f"{said} of the test rows: the same within chance.", True)
    fault = "surer than they should be" if right < promised else "less sure than they could be"
    return Remark(f"{said} of the test rows, more apart than by chance: predictions are {fault}.", False)


# -- regression ------------------------------------------------------------------------------------------------


def _regression_fit(model: BSGPRegressor, X: Table, y: np.ndarray) -> RegressionFit:
    from scipy.stats import binom

    num_rows = X.num_rows
    pit = np.reshape(model.cdf(X, y if y.shape[1] > 1 else y[:, 0]), y.shape)
    rows = evenly(num_rows, MAX_POINTS)
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
            coverage=np.mean(np.abs(pit[:, p, None] - 0.5) <= 0.5 * LEVELS[None, :], axis=0),
            actual=y[rows, p],
            predicted=predicted[:, p],
            low=interval[:, p, 0],
            high=interval[:, p, 1],
        )
        for p in shown
    )
    band = np.stack(binom.interval(0.95, num_rows, LEVELS)) / num_rows
    return RegressionFit(targets, band, y.shape[1] - len(shown))


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
    """Of many classes the most frequent ones, and the others as one."""
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
