"""Where the rows of a fit come from: one small interface for tables in memory and on disk."""

import abc
import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bsgp.checks import check_matrix


class Rows(NamedTuple):
    """Some rows, inputs and targets as a model wants them."""

    X: np.ndarray
    y: np.ndarray


class AbstractStream(abc.ABC):
    """Minibatches of one chain, in an order that its seed decides."""

    batch_size: int

    @abc.abstractmethod
    def read(self, first_batch: int, num_batches: int) -> Rows:
        """`X [num_batches B D]` and `y [num_batches B P]`. The same arguments give the same rows, in any order."""


class AbstractSource(abc.ABC):
    """Standardised rows `X [N D]`, `y [N P]`."""

    num_rows: int
    num_inputs: int
    num_targets: int

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """The same for the same rows."""

    @abc.abstractmethod
    def some_rows(self, count: int, seed: int) -> Rows:
        """A random subset without replacement."""

    @abc.abstractmethod
    def chunks(self, num_rows: int = 100_000) -> Iterator[Rows]:
        """All rows, one stretch after the other."""


class AbstractStreamedSource(AbstractSource):
    """A source whose rows are read from disk as they are needed."""

    @abc.abstractmethod
    def stream(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> AbstractStream:
        """Minibatches without end. A share `(index, count)` of them has rows of its own, of which no other has any."""


class ArraySource(AbstractSource):
    """Rows in memory."""

    def __init__(self, X: np.ndarray, y: np.ndarray):
        self.X, self.y = X, y
        self.num_rows, self.num_inputs = X.shape
        self.num_targets = y.shape[1]

    @property
    def rows(self) -> Rows:
        return Rows(self.X, self.y)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.X, self.y):
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def some_rows(self, count: int, seed: int) -> Rows:
        picked = np.random.default_rng(seed).permutation(self.num_rows)[:count]
        return Rows(self.X[picked], self.y[picked])

    def chunks(self, num_rows: int = 100_000) -> Iterator[Rows]:
        for start in range(0, self.num_rows, num_rows):
            yield Rows(self.X[start : start + num_rows], self.y[start : start + num_rows])


def as_source(X: Any, y: Any = None) -> AbstractSource:
    """A source as it is, or one of the arrays `X [N D]` and `y [N P]`."""
    if isinstance(X, AbstractSource):
        return X
    X = check_matrix("X", X)
    return ArraySource(X, check_matrix("y", y, rows=X.shape[0]))
