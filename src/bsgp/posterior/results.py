"""What a posterior says about rows, as named arrays."""

from typing import NamedTuple

import numpy as np


class AtTargets(NamedTuple):
    """The predictive distribution evaluated at known targets; each array is `[N P]`."""

    mean: np.ndarray
    log_density: np.ndarray
    cdf: np.ndarray
    """`P(Y <= y)` at the target y."""


class MeanAndVariances(NamedTuple):
    """Mean of the predictive distribution, and its variance in two parts; each array is `[N P]`."""

    mean: np.ndarray
    epistemic: np.ndarray
    """Variance of `E[y | f]`: what is unknown about the function, which more data would remove."""
    aleatoric: np.ndarray
    """Mean of `Var[y | f]`: the noise, which remains however many rows there are."""


class Entropies(NamedTuple):
    """Entropy of the predicted classes, in nats, and its two parts, whose sum it is; each array is `[N]`."""

    total: np.ndarray
    """Entropy of the predicted probabilities."""
    epistemic: np.ndarray
    """Mutual information between class and model: what more data would remove."""
    aleatoric: np.ndarray
    """Mean entropy of the classes given the model: what remains however many rows there are."""
