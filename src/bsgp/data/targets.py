"""The columns that are to be predicted: taken from a table, and turned into numbers or labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bsgp.data.schema import odd_one_out
from bsgp.data.tables import Column, Table, ticked

MAX_NUMBER = 1e100
MAX_CLASSES = 100


@dataclass(frozen=True)
class Targets:
    """Target columns by name, without missing values."""

    columns: dict[str, Column]

    def values(self, task: str) -> np.ndarray:
        """Numbers `[N]` or `[N P]` for a regression, labels `[N]` for a classification."""
        if task == "classification":
            return self._labels()
        arrays = [_numbers(name, column) for name, column in self.columns.items()]
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)

    def _labels(self) -> np.ndarray:
        if len(self.columns) > 1:
            raise ValueError(
                f"The target must be one column for a classification, got {ticked(self.columns)}. Fit one at a time."
            )
        ((name, column),) = self.columns.items()
        if column.kind == "text":
            num_classes, odd = len(set(column.values)), odd_one_out(column)
            if odd or num_classes > MAX_CLASSES:
                raise ValueError(
                    f"`{name}` must have at most {MAX_CLASSES} classes that are words, got {num_classes} values{odd}."
                )
            return column.values.astype(str)
        if column.kind == "boolean":
            return column.values.astype(bool)
        values = _numbers(name, column)
        fractions = values[values != np.round(values)]
        if fractions.size:
            raise ValueError(
                f"`{name}` must hold classes, got numbers with fractions such as {fractions[0]:g}. "
                "Pass `--task regression`."
            )
        return values.astype(np.int64)


def targets_of(table: Table, names: Sequence[str]) -> tuple[Targets, Table]:
    """The targets of a table, and the rest of it."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"The target must be one column, or several that differ, got {ticked(names) or 'none'}.")
    columns = table.select(names).columns
    for name, column in columns.items():
        _check_complete(name, column)
    return Targets(columns), table.without(names)


def task_of(targets: Targets, wanted: str | None) -> str:
    """`wanted`, else classification for text and booleans, and regression for numbers."""
    if wanted is not None:
        return wanted
    kinds = {column.kind for column in targets.columns.values()}
    return "regression" if kinds == {"number"} else "classification"


def _check_complete(name: str, column: Column) -> None:
    if column.kind == "date":
        raise ValueError(f"`{name}` must be numbers or classes, got dates. Turn them into numbers, such as days.")
    missing = np.flatnonzero(column.missing)
    if missing.size:
        raise ValueError(
            f"`{name}` must be known in every row, got {missing.size} missing values, the first in row "
            f"{missing[0] + 1}. Drop such rows."
        )


def _numbers(name: str, column: Column) -> np.ndarray:
    if column.kind == "text":
        raise ValueError(
            f"`{name}` must hold numbers for a regression, got {column.values[0]!r}. Pass `--task classification`."
        )
    bad = np.flatnonzero(~(np.abs(column.values) <= MAX_NUMBER))
    if bad.size:
        raise ValueError(
            f"`{name}` must lie within {MAX_NUMBER:g}, got {column.values[bad[0]]} in row {bad[0] + 1}. Drop such rows."
        )
    return column.values
