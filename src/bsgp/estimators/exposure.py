"""The exposure of counts: a column of the table that scales their mean and is no input."""

import logging

import numpy as np

from bsgp.data.tables.columns import Table, shortened

logger = logging.getLogger("bsgp")


def without_exposure(table: Table, column: str | int | None, *, is_training: bool) -> tuple[Table, np.ndarray | None]:
    """The other columns, and the log of the exposure of each row, if `column` names one.

    A new table may leave the column out; its rows then have an exposure of 1.
    """
    if column is None:
        return table, None
    name = list(table.columns)[column] if isinstance(column, int) else column
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
