"""How good predictions are. Arrays in, numbers out; nothing here knows a model.

`log_density` is that of the mixture over draws, per row and output: averaging the logs of single draws, or scoring
one moment-matched Gaussian, is another and worse thing.
"""

import numpy as np


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


def error_rate(y: np.ndarray, probability: np.ndarray) -> float:
    """Share of labels other than the most probable one; `probability` is `[N 1]` for two classes, else `[N K]`."""
    label = (probability > 0.5).astype(float) if probability.shape[1] == 1 else probability.argmax(1)[:, None]
    return float(np.mean(label != y))
