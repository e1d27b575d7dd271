"""float64 columns as float32, while the scale and the centre of all rows are not known yet."""

import math

import numpy as np

from bsgp.data.encoding.checks import LEAVE_OUT
from bsgp.data.tables.columns import shortened


class Packing:
    """Stores a float64 column as float32 relative to a centre, so that timestamps and other offsets keep their digits.

    The centre is the median of the first chunk. It is close to the mean of all rows, relative to their spread, so the
    rounding error is small relative to the spread. The scale is a power of two that keeps extreme numbers in range.
    """

    def __init__(self, name: str):
        self._name = name
        self._centre: float | None = None
        self._scale: float | None = None

    def pack(self, values: np.ndarray) -> np.ndarray:
        if self._centre is None:
            there = values[~np.isnan(values)]
            self._centre = float(np.median(there)) if there.size else None
        apart = values - (self._centre or 0.0)
        if self._scale is None:
            largest = float(np.fmax.reduce(np.abs(apart), initial=0.0))
            self._scale = 2.0 ** math.frexp(largest)[1] if largest else None
        with np.errstate(over="ignore"):
            packed = (apart / (self._scale or 1.0)).astype(np.float32)
        if np.isinf(packed).any():
            raise ValueError(
                f"`{shortened(self._name)}` must hold numbers of similar size, got some 1e38 times larger than others. "
                f"Take their logarithms, or {LEAVE_OUT}."
            )
        return packed

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return packed.astype(np.float64) * (self._scale or 1.0) + (self._centre or 0.0)
