"""Sources of the rows of a fit: one small interface for arrays in memory and tables on disk."""

import abc
import hashlib
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bsgp.runtime.checks import check_matrix


class Rows(NamedTuple):
    """Inputs `X [N D]` and targets `y [N P]`, standardised."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None = None
    """How many times each row counts, `[N]`, above zero; None: once each."""
    known_variance: np.ndarray | None = None
    """Known part of the noise variance of each row and target, `[N P]`, standardised as `y`; None: none."""

    def take(self, picked: np.ndarray) -> "Rows":
        """Some of the rows."""
        weight, known = (None if part is None else part[picked] for part in (self.weight, self.known_variance))
        return Rows(self.X[picked], self.y[picked], weight, known)


class AbstractStream(abc.ABC):
    """Minibatches of one chain, in an order that its seed determines."""

    batch_size: int

    @abc.abstractmethod
    def read(self, first_batch: int, num_batches: int) -> Rows:
        """Returns `X [num_batches B D]` and `y [num_batches B P]`, which depend only on the arguments."""


class AbstractSource(abc.ABC):
    """A source of standardised rows, `X [N D]` and `y [N P]`."""

    num_rows: int
    num_inputs: int
    num_targets: int
    total_weight: float | None = None
    """Sum of the weights of all rows; None if they have none, so that each counts once."""
    has_known_noise: bool = False
    """Whether rows come with a known part of their noise variance."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Hash of all rows."""

    @abc.abstractmethod
    def some_rows(self, count: int, seed: int) -> Rows:
        """Returns `count` distinct random rows, or all rows if there are fewer."""


class AbstractStreamedSource(AbstractSource):
    """A source that reads rows from disk as they are needed."""

    @abc.abstractmethod
    def stream(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> AbstractStream:
        """Returns an endless stream of minibatches.

        A share `(index, count)` holds `1 / count` of every batch, from rows that no other share reads.
        """


class ArraySource(AbstractSource):
    """Arrays in memory as a source. `weight [N]` and `known_variance [N P]` are those of `Rows`."""

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None = None,
        known_variance: np.ndarray | None = None,
    ):
        self.X, self.y = X, y
        self.num_rows, self.num_inputs = X.shape
        self.num_targets = y.shape[1]
        self.weight, self.known_variance = weight, known_variance
        self.has_known_noise = known_variance is not None
        if weight is not None:
            _check_all_positive(weight)
            self.total_weight = float(weight.sum(dtype=np.float64))

    @property
    def rows(self) -> Rows:
        return Rows(self.X, self.y, self.weight, self.known_variance)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, array in self.rows._asdict().items():
            if array is not None:
                label = "" if name in ("X", "y") else f"{name} "
                digest.update(f"{label}{array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def some_rows(self, count: int, seed: int) -> Rows:
        picked = np.random.default_rng(seed).permutation(self.num_rows)[:count]
        return self.rows.take(picked)


def _check_all_positive(weight: np.ndarray) -> None:
    if not (np.isfinite(weight) & (weight > 0)).all():
        raise ValueError(f"`weight` must be above zero in every row, got {weight.min()}. Leave such rows out.")


def as_source(X: Any, y: Any = None) -> AbstractSource:
    """Returns a source unchanged; wraps arrays `X [N D]` and `y [N P]` as one."""
    if isinstance(X, AbstractSource):
        return X
    X = check_matrix("X", X)
    return ArraySource(X, check_matrix("y", y, rows=X.shape[0]))
