"""Columns that hold weights of the rows, or the known standard deviation of their noise."""

import numpy as np

from bsgp.data.encoding.checks import first_where
from bsgp.data.tables.columns import Table, shortened


def weights_in(table: Table, name: str, before: int = 0) -> np.ndarray:
    """The weights in a column of a table, checked: finite numbers of at least zero.

    `before` is the number of rows of the whole table that came before these.
    """
    return _at_least_zero(table, name, before, "weights")


def noise_in(table: Table, name: str) -> np.ndarray:
    """The known standard deviations in a column of a table, checked: finite numbers of at least zero."""
    return _at_least_zero(table, name, 0, "standard deviations")


def _at_least_zero(table: Table, name: str, before: int, what: str) -> np.ndarray:
    column = table.select([name]).columns[name]
    if column.kind not in ("number", "boolean"):
        raise ValueError(f"`{shortened(name)}` must hold {what}, got {column.kind}. Convert it to numbers.")
    bad = ~(np.isfinite(column.values) & (column.values >= 0))
    if bad.any():
        row, value = first_where(bad, column.values, before)
        raise ValueError(
            f"`{shortened(name)}` must hold finite {what} of at least zero, got {value:g} in row {row}. "
            "Correct such rows."
        )
    return column.values


def left_out_note(count: int) -> str:
    """What is said about rows of weight zero."""
    return f"{count:,} row{'s' * (count > 1)} of weight zero {'are' if count > 1 else 'is'} left out."
