"""The rows of a fit at the door: weights and known noise are checked, and rows of weight zero are left out."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from bsgp.data.encoding.targets import Targets
from bsgp.data.tables.columns import Table, from_frame, is_frame


class TrainingRows(NamedTuple):
    """What `fit` was given, without rows of weight zero."""

    X: Any
    y: Any
    weight: np.ndarray | None
    """Above zero, `[N]`; None if every row counts once."""
    noise_std: np.ndarray | None
    """As it was given, `[N]` or `[N P]`."""
    num_left_out: int


def training_rows(X, y, sample_weight=None, noise_std=None) -> TrainingRows:
    """Check weights and known noise against the rows of `X`, and leave out rows of weight zero.

    It happens before anything is learned from the rows, so that a fit is the same, bit for bit, as one without them.
    """
    if sample_weight is None and noise_std is None:
        return TrainingRows(X, y, None, None, 0)
    num_rows = X.num_rows if isinstance(X, Table) else _num_samples(X)
    noise = None if noise_std is None else checked_noise_std(noise_std, num_rows)
    weight = None if sample_weight is None else checked_weight("sample_weight", sample_weight, num_rows)
    if weight is None or (weight > 0).all():
        return TrainingRows(X, y, weight, noise, 0)
    kept = np.flatnonzero(weight)
    noise = None if noise is None else noise[kept]
    return TrainingRows(_taken(X, kept), _taken(y, kept), weight[kept], noise, num_rows - len(kept))


def unless_all_one(weight: np.ndarray | None) -> np.ndarray | None:
    """Weights, or None if every row counts once: such a fit is then the same, bit for bit, as one without weights."""
    return None if weight is None or (weight == 1).all() else weight


def _taken(values: Any, rows: np.ndarray) -> Any:
    """Some rows of a table, a data frame, a column or an array."""
    if isinstance(values, Table):
        return values.take(rows)
    if isinstance(values, Targets):
        return Targets({name: column.take(rows) for name, column in values.columns.items()})
    if is_frame(values) and not hasattr(values, "iloc"):
        return from_frame(values).take(rows)
    return None if values is None else _safe_indexing(values, rows)


def checked_weight(name: str, weight, num_rows: int) -> np.ndarray:
    """Weights as floats `[N]`, not all zero, or a `ValueError`."""
    array = _numbers(name, weight)
    if array.shape != (num_rows,):
        raise ValueError(f"`{name}` must have one weight per row, {num_rows}, got shape {array.shape}. Align the two.")
    _check_at_least_zero(name, array)
    if not array.any():
        raise ValueError(f"`{name}` must be above zero in some row, got {num_rows} zeros. Leave `{name}` out.")
    return array


def checked_noise_std(noise_std, num_rows: int) -> np.ndarray:
    """Known standard deviations as floats, `[N]` or `[N P]`, or a `ValueError`."""
    array = _numbers("noise_std", noise_std)
    if array.ndim not in (1, 2) or array.shape[0] != num_rows:
        raise ValueError(
            f"`noise_std` must have one standard deviation per row of `X`, {num_rows}, got shape {array.shape}. "
            "Align the two."
        )
    _check_at_least_zero("noise_std", array)
    return array


def known_variance(noise_std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Variance `[N P]` of checked standard deviations in units of the targets' `scale [P]`."""
    array = noise_std.reshape(-1, 1) if noise_std.ndim == 1 else noise_std
    if array.shape[1] != len(scale):
        raise ValueError(
            f"`noise_std` must have one column per target, {len(scale)}, got shape {noise_std.shape}. "
            "Pass the same shape as `y`."
        )
    return (array / scale) ** 2


def _numbers(name: str, values) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"`{name}` must hold numbers, got dtype {array.dtype}. Convert them.") from None
    return array.astype(np.float64)


def _check_at_least_zero(name: str, array: np.ndarray) -> None:
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"`{name}` must be finite and at least zero, got {array[bad][0]:g} in row {row + 1}. Correct such rows."
        )


def target_names(y, num_targets: int) -> tuple[str, ...]:
    """Names of the targets, from `y` itself if it has them."""
    if isinstance(y, Targets):
        return tuple(y.columns)
    if getattr(y, "columns", None) is not None:
        return tuple(str(name) for name in y.columns)
    if num_targets == 1 and getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if num_targets == 1 else tuple(f"y{index}" for index in range(num_targets))
