"""Standardisation of columns by the mean and standard deviation of the training rows."""

from typing import NamedTuple

import numpy as np


class Standardiser(NamedTuple):
    """`(x - mean) / scale` per column. A constant column is centred only: its scale is 1."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, X: np.ndarray, weight: np.ndarray | None = None) -> "Standardiser":
        """Mean and standard deviation of rows, of which each counts `weight [N]` times, if given."""
        if weight is None:
            mean, scale = X.mean(axis=0), X.std(axis=0)
        else:
            mean = np.average(X, axis=0, weights=weight)
            scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
        # by rounding, a constant column has a standard deviation of a few units in the last place
        constant = scale <= 8.0 * np.finfo(X.dtype).eps * np.maximum(np.abs(mean), np.finfo(X.dtype).tiny)
        return cls(mean, np.where(constant, 1.0, scale).astype(X.dtype))

    @classmethod
    def none(cls, X: np.ndarray) -> "Standardiser":
        """A standardiser that leaves the columns of X as they are."""
        return cls(np.zeros(X.shape[1], X.dtype), np.ones(X.shape[1], X.dtype))

    def transform(self, X: np.ndarray) -> np.ndarray:
        return (X - self.mean) / self.scale

    def inverse(self, X: np.ndarray) -> np.ndarray:
        return X * self.scale + self.mean
