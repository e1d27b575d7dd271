"""Checks of user input. Every error states what was expected, what was given, and what to do."""

import numpy as np


def check_positive(name: str, value: int | float) -> None:
    """Raises a `ValueError` unless `value` is positive and finite."""
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be a positive finite number, got {value}. Pass a value above zero.")


def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Returns `value` as an int, or raises a `ValueError` unless it is a whole number of at least `minimum`."""
    if isinstance(value, bool) or int(value) != value or value < minimum:
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}, got {value!r}. Raise it.")
    return int(value)


def check_option(name: str, value: str, options) -> str:
    """Returns `value`, or raises a `ValueError` unless it is one of `options`."""
    if value not in options:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}, got {value!r}. Choose one of them.")
    return value


def check_matrix(name: str, value, *, columns: int | None = None, rows: int | None = None) -> np.ndarray:
    """Returns a finite, non-empty, two-dimensional float array, or raises a `ValueError`.

    float32 and float64 keep their precision; other numbers become float64.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"`{name}` must hold numbers, got dtype {array.dtype}. Encode text and dates as numbers first."
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != 2:
        raise ValueError(
            f"`{name}` must be two-dimensional (rows, columns), got shape {array.shape}. "
            f"For a single column use `{name}.reshape(-1, 1)`."
        )
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(
            f"`{name}` must have at least one row and one column, got shape {array.shape}. Pass some data."
        )
    if columns is not None and array.shape[1] != columns:
        raise ValueError(
            f"`{name}` must have {columns} columns, got {array.shape[1]}. Pass the same columns as in training."
        )
    if rows is not None and array.shape[0] != rows:
        raise ValueError(f"`{name}` must have {rows} rows like `X`, got {array.shape[0]}. Pass one row per row of `X`.")
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"`{name}` must be finite, got {int(bad.sum())} NaN or infinite entries, the first at row {row}, "
            f"column {column}. Drop or impute them."
        )
    return array


def check_varies(name: str, array: np.ndarray) -> None:
    """Raises a `ValueError` if a column is constant: such a target has no scale to learn."""
    constant = np.flatnonzero(np.ptp(array, axis=0) == 0)
    if constant.size:
        raise ValueError(
            f"`{name}` must vary, got a constant column at {constant.tolist()} (value {array[0, constant[0]]}). "
            "Drop it: there is nothing to predict."
        )
