"""The exposure of counts: a column of the table that scales their mean and is no input."""

import logging

import numpy as np

from bsgp.data.tables.columns import Table, shortened

logger = logging.getLogger("bsgp")


def exposure_name(table: Table, column: str | int | None) -> str | None:
    """Name of the column of a training table that is its exposure, given the name or the position."""
    if not isinstance(column, int):
        return column
    names = list(table.columns)
    if not 0 <= column < len(names):
        raise ValueError(
            f"`exposure` must be a column of `X`, 0 to {len(names) - 1}, got {column}. Pass a position, or a name."
        )
    return names[column]


def without_exposure(table: Table, name: str | None, *, is_training: bool) -> tuple[Table, np.ndarray | None]:
    """The other columns, and the log of the exposure of each row, if there is a `name` of its column.

    A new table may leave the column out; its rows then have an exposure of 1.
    """
    if name is None:
        return table, None
    if name not in table.columns and not is_training:
        logger.warning(f"`{shortened(name)}`: no such column. Predictions are for an exposure of 1.")
        return table, np.zeros(table.num_rows)
    return table.without([name]), _log_exposure(name, table)


def _log_exposure(name: str, table: Table) -> np.ndarray:
    column = table.select([name]).columns[name]
    values = column.values if column.kind == "number" else np.full(table.num_rows, np.nan)
    is_bad = ~(np.isfinite(values) & (values > 0))
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise ValueError(
            f"`{shortened(name)}` must hold positive numbers, as it is the exposure, got `{column.values[row]}` in row "
            f"{row + 1}. Correct or drop such rows."
        )
    return np.log(values)


def with_offset(inputs: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
    """Inputs `[N D]` with the offset as their last column, if there is one."""
    return inputs if offset is None else np.concatenate([inputs, offset[:, None]], axis=1)
