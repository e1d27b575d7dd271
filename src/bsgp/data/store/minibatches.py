"""Random minibatches of row numbers."""

import numpy as np

from bsgp.runtime.checks import check_count


class Minibatches:
    """Row numbers of one chain's minibatches: consecutive slices of a permutation, with a new one each epoch.

    Every row is equally likely in every batch. If the batch size does not divide the number of rows, an epoch skips
    the last rows of its permutation.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int):
        self.num_rows = check_count("num_rows", num_rows)
        self.batch_size = min(check_count("batch_size", batch_size), num_rows)
        self._rng = np.random.default_rng(seed)
        self._order = np.empty(0, np.int32)

    def take(self, num_batches: int) -> np.ndarray:
        """Returns the next batches, `[num_batches batch_size]`."""
        rows = np.empty((num_batches, self.batch_size), np.int32)
        for index in range(num_batches):
            rows[index] = self._next()
        return rows

    def skip(self, num_batches: int) -> None:
        """Skips batches, to continue where an earlier run stopped."""
        for _ in range(num_batches):
            self._next()

    def _next(self) -> np.ndarray:
        if self._order.size < self.batch_size:
            self._order = self._rng.permutation(self.num_rows).astype(np.int32)
        batch, self._order = np.split(self._order, [self.batch_size])
        return batch
