"""Scores of predictions. Functions take arrays and return numbers; they are independent of any model.

`log_density` is the log density of the mixture over draws, per row and output. Averaging the log densities of single
draws, or scoring one moment-matched Gaussian, gives different and worse scores.
"""

import numpy as np

_AUC_CHUNK = 1_000_000  # rows per step: tables may have many millions


def mnll(log_density: np.ndarray, y_scale: np.ndarray | float = 1.0) -> float:
    """Mean negative log density over rows and outputs, in the original units of y.

    `y_scale [P]` is the divisor that standardised y; its log is subtracted from the log density.
    """
    return float(-np.mean(log_density - np.log(y_scale)))


def rmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Root mean squared error in the units of y. For standardised y it is the paper's normalised RMSE."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def coverage(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Fraction of targets inside their intervals."""
    return float(np.mean((y >= low) & (y <= high)))


def gaussian_crps(y: np.ndarray, mean: np.ndarray, sd: np.ndarray | float) -> np.ndarray:
    """Continuous ranked probability score of Gaussian predictions, per entry, in the units of y."""
    from scipy.stats import norm

    z = (y - mean) / sd
    return sd * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / np.sqrt(np.pi))


def auc(is_positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve; NaN if there is only one class.

    `sklearn.metrics.roc_auc_score` gives the same value, but takes about 80 bytes per row and refuses infinite scores.
    """
    positive, negative = np.sort(score[is_positive]), np.sort(score[~is_positive])
    if not positive.size or not negative.size:
        return float("nan")
    doubled = 0  # twice the number of pairs in the right order, ties counted by half: a whole number
    for start in range(0, positive.size, _AUC_CHUNK):
        chunk = positive[start : start + _AUC_CHUNK]
        doubled += int(sum(np.searchsorted(negative, chunk, side).sum() for side in ("left", "right")))
    return doubled / (2 * positive.size * negative.size)


def mean_auc(codes: np.ndarray, probability: np.ndarray) -> float:
    """AUC for two classes; for more, the mean AUC of each class against the rest.

    `probability` is `[N K]`, or `[N 1]` for the second of two classes. Any increasing function of it gives the same.
    """
    if probability.shape[1] <= 2:
        return auc(codes == 1, probability[:, -1])
    each = [auc(codes == label, probability[:, label]) for label in range(probability.shape[1])]
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")


def error_rate(y: np.ndarray, probability: np.ndarray) -> float:
    """Fraction of labels that differ from the most probable class; `probability` is `[N 1]` or `[N K]`."""
    label = (probability > 0.5).astype(float) if probability.shape[1] == 1 else probability.argmax(1)[:, None]
    return float(np.mean(label != y))
