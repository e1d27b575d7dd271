"""Statistics of weighted values: those of a list in which a value of weight w occurs w times."""

from collections.abc import Sequence

import numpy as np


def weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    """The value with half the weight on either side, or the mean of two values if it lies between them."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    half = 0.5 * below[-1]
    # by rounding, a sum of weights may miss half of all by a little; those of tables on disk are float32
    slack = float(np.finfo(np.float32).eps) * below[-1]
    first, last = np.searchsorted(below, [half - slack, half + slack], side="left")
    return float(0.5 * (values[order[first]] + values[order[min(last, len(values) - 1)]]))


def weighted_quantiles(values: np.ndarray, levels: Sequence[float], weight: np.ndarray) -> list[float]:
    """The smallest values with at least these shares of the weight at or below them."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    at = np.searchsorted(below, np.asarray(levels) * below[-1], side="left")
    return values[order[np.minimum(at, len(values) - 1)]].tolist()
