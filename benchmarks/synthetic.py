"""A large synthetic table with known truth: correlated inputs of three shapes, and labels from a probit.

It tests the handling of many millions of rows. The best possible score is that of `true_probability`.
"""

import os
from collections.abc import Iterator

import numpy as np

from bsgp.data.tables.write import TableWriter
from bsgp.runtime.checks import check_count, check_matrix

TARGET = "label"
MIN_INPUTS = 10
"""Inputs that the truth depends on: it is curved along the first six and linear along the next four."""

_NUM_CAUSES = 4
_SHARED = 0.4  # share of an input's variance that it has in common with others
_SPREAD = 0.6  # standard deviation of the logarithm of a log-normal input
_SLOPES = np.array([0.35, -0.3, 0.25, -0.15])
_BOUND = 4.0


def write_synthetic(
    path: str | os.PathLike,
    num_rows: int,
    num_inputs: int = 28,
    seed: int = 0,
    chunk_rows: int = 100_000,
    sorted_by_target: bool = False,
) -> None:
    """Write a table of float32 inputs and a 0/1 `label`, chunk by chunk. A failure leaves no file.

    The truth does not depend on the seed: files of two seeds are samples of one population. The same arguments give
    the same rows. `sorted_by_target` writes the rows of label 0 first.
    """
    check_count("num_rows", num_rows)
    check_count("num_inputs", num_inputs, minimum=MIN_INPUTS)
    check_count("seed", seed, minimum=0)
    check_count("chunk_rows", chunk_rows)
    names = [f"x{at:02d}" for at in range(num_inputs)]
    with TableWriter(path) as writer:
        for wanted in (0, 1) if sorted_by_target else (None,):  # two passes, since memory holds only one chunk
            for X, label in _chunks(num_rows, num_inputs, seed, chunk_rows):
                rows = slice(None) if wanted is None else label == wanted
                columns = dict(zip(names, np.ascontiguousarray(X[rows].T), strict=True))
                writer.write({**columns, TARGET: label[rows]})


def true_probability(X: np.ndarray) -> np.ndarray:
    """True `P(label = 1)` of inputs `[N D]` from the table, `[N]`."""
    from scipy.special import ndtr

    return ndtr(_truth(check_matrix("X", X)))


def _chunks(num_rows: int, num_inputs: int, seed: int, chunk_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for index, start in enumerate(range(0, num_rows, chunk_rows)):
        rng = np.random.default_rng([seed, index])
        X = _inputs(rng, min(chunk_rows, num_rows - start), num_inputs)
        yield X, (rng.random(len(X)) < true_probability(X)).astype(np.int8)


def _inputs(rng: np.random.Generator, num_rows: int, num_inputs: int) -> np.ndarray:
    """Inputs that are in turn normal, log-normal and uniform, made from normals with a few common causes."""
    from scipy.special import ndtr

    loadings = np.random.default_rng(0).standard_normal((_NUM_CAUSES, num_inputs))
    loadings = (loadings / np.linalg.norm(loadings, axis=0)).astype(np.float32)
    causes = rng.standard_normal((num_rows, _NUM_CAUSES), np.float32)
    own = rng.standard_normal((num_rows, num_inputs), np.float32)
    X = np.float32(_SHARED**0.5) * (causes @ loadings) + np.float32((1.0 - _SHARED) ** 0.5) * own
    X[:, 1::3] = np.exp(np.float32(_SPREAD) * X[:, 1::3])
    X[:, 2::3] = ndtr(X[:, 2::3])
    return X


def _truth(X: np.ndarray) -> np.ndarray:
    """Argument of the probit."""
    used = X[:, :MIN_INPUTS].astype(np.float64)  # float64 also for float32 inputs: the truth is exact
    used[:, 1::3] = np.log(used[:, 1::3]) / _SPREAD
    used[:, 2::3] = 12.0**0.5 * (used[:, 2::3] - 0.5)
    a, b, c, d, e, f = used[:, :6].T
    curved = 0.9 * np.sin(1.5 * a) + 0.5 * b * c + 0.6 * np.tanh(2.0 * d) * e - 0.35 * (f**2 - 1.0)
    # bounded, so that no label is certain and all log probabilities are finite
    return _BOUND * np.tanh((curved + used[:, 6:] @ _SLOPES) / _BOUND)
