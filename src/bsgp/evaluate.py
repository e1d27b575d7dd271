"""How good predictions are. Arrays in, numbers out; nothing here knows a model.

`log_density` is that of the mixture over draws, per row and output: averaging the logs of single draws, or scoring
one moment-matched Gaussian, is another and worse thing.
"""

import numpy as np

_AUC_ROWS = 1_000_000  # counted at a time: tables may have many millions


def mnll(log_density: np.ndarray, y_scale: np.ndarray | float = 1.0) -> float:
    """Mean negative log density over rows and outputs, in the original units of y.

    `y_scale [P]` is what y was divided by before fitting: it shifts the density by its log.
    """
    return float(-np.mean(log_density - np.log(y_scale)))


def rmse(y: np.ndarray, mean: np.ndarray) -> float:
    """In the units of y. Of a standardised y it is the paper's normalised RMSE."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def coverage(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Share of targets inside their intervals."""
    return float(np.mean((y >= low) & (y <= high)))


def gaussian_crps(y: np.ndarray, mean: np.ndarray, sd: np.ndarray | float) -> np.ndarray:
    """Continuous ranked probability score of Gaussian predictions, per entry, in the units of y."""
    from scipy.stats import norm

    z = (y - mean) / sd
    return sd * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / np.sqrt(np.pi))


def auc(is_positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve; NaN where there is only one class.

    `sklearn.metrics.roc_auc_score` gives the same, but takes some 80 bytes a row and refuses infinite scores.
    """
    positive, negative = np.sort(score[is_positive]), np.sort(score[~is_positive])
    if not positive.size or not negative.size:
        return float("nan")
    doubled = 0  # the number of pairs in order, those that tie by half: twice that is a whole number
    for start in range(0, positive.size, _AUC_ROWS):
        some = positive[start : start + _AUC_ROWS]
        doubled += int(sum(np.searchsorted(negative, some, side).sum() for side in ("left", "right")))
    return doubled / (2 * positive.size * negative.size)


def mean_auc(codes: np.ndarray, probability: np.ndarray) -> float:
    """Of two classes the usual AUC; of more the mean of each class against the rest.

    `probability` is `[N K]`, or `[N 1]` of the second of two classes. Anything that grows with it will do.
    """
    if probability.shape[1] <= 2:
        return auc(codes == 1, probability[:, -1])
    each = [auc(codes == label, probability[:, label]) for label in range(probability.shape[1])]
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")


def error_rate(y: np.ndarray, probability: np.ndarray) -> float:
    """Share of labels other than the most probable one; `probability` is `[N 1]` for two classes, else `[N K]`."""
    label = (probability > 0.5).astype(float) if probability.shape[1] == 1 else probability.argmax(1)[:, None]
    return float(np.mean(label != y))
