"""The columns to predict: taken from a table, checked, and turned into numbers or labels.

Tables in memory (`Targets`) and tables on disk (`TargetSummary`) pass the same checks and give the same messages.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bsgp.data.encoding.checks import NOT_NUMBERS, OddValue, check_range, find_odd_value, first_where, reads_as_number
from bsgp.data.tables.columns import Column, Table, quoted, shortened

MAX_CLASSES = 100
LABEL_TYPES = {"text": str, "boolean": bool, "number": np.int64}
"""Type of the labels of a classification, by the kind of the target column."""


@dataclass(frozen=True)
class Targets:
    """Target columns by name. None has missing values, dates or durations."""

    columns: Mapping[str, Column]
    before: int = 0
    """Number of rows of the table that came before these, since errors name rows of the whole table."""

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            check_known(name, column, self.before)

    def check(self, task: str, odd: Mapping[str, OddValue] | None = None) -> None:
        """Raises if some value does not suit the task. `odd` holds words that are known from other rows."""
        if task == "classification" and len(self.columns) > 1:
            raise ValueError(
                f"The target must be one column for a classification, got {quoted(self.columns)}. Fit one at a time."
            )
        for name, column in self.columns.items():
            if task == "regression":
                check_numbers(name, column, self.before, (odd or {}).get(name))
            elif column.kind == "number":
                check_whole_numbers(name, column, self.before)

    def values(self, task: str) -> np.ndarray:
        """Returns numbers `[N]` or `[N P]` for a regression, labels `[N]` for a classification."""
        self.check(task)
        arrays = [column.values for column in self.columns.values()]
        if task == "regression":
            return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
        ((column,), (array,)) = self.columns.values(), arrays
        return array.astype(LABEL_TYPES[column.kind])

    def training_values(self, task: str) -> np.ndarray:
        """Returns `values`; raises if there is nothing to learn: constant numbers, a single class, too many classes."""
        values = self.values(task)
        for name, column in self.columns.items():
            if task == "regression":
                check_not_constant(name, column.values.min(), column.values.max())
            else:
                odd = find_odd_value(column) if column.kind == "text" else None
                check_classes(name, np.unique(values).tolist(), odd)
        return values


def targets_of(table: Table, names: Sequence[str]) -> tuple[Targets, Table]:
    """Splits a table into its targets and the other columns."""
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"The target must be one column or several distinct ones, got {quoted(names) or 'none'}. Name each once."
        )
    return Targets(table.select(names).columns), table.without(names)


def task_of(targets: Targets, wanted: str | None) -> str:
    """`wanted` if given, else classification for text and booleans, and regression for numbers."""
    if wanted is not None:
        return wanted
    kinds = {column.kind for column in targets.columns.values()}
    return "regression" if kinds == {"number"} else "classification"


# -- checks; `before` is the number of rows of the table that came before these -----------------------------------


def check_known(name: str, column: Column, before: int = 0) -> None:
    """Raises on missing values, and on dates and durations, which are neither numbers nor classes."""
    if column.kind in NOT_NUMBERS:
        _, example = first_where(~column.missing, column.values)
        raise ValueError(
            f"`{shortened(name)}` must hold numbers or classes, got {column.kind}s such as `{shortened(example)}`. "
            f"{NOT_NUMBERS[column.kind]}."
        )
    if column.missing.any():
        row, _ = first_where(column.missing, column.values, before)
        raise ValueError(
            f"`{shortened(name)}` must be known in every row, got a missing value in row {row}. Drop such rows."
        )


def check_numbers(name: str, column: Column, before: int = 0, odd: OddValue | None = None) -> None:
    """Raises if a target of a regression holds text, or numbers that are infinite or too large."""
    if column.kind == "text":
        is_word = np.array([not reads_as_number(value) for value in column.values])
        row, value = odd or first_where(is_word, column.values, before)
        raise ValueError(
            f"`{shortened(name)}` must hold numbers for a regression, got `{shortened(value)}` in row {row}. "
            "Convert it to numbers, or fit a classification."
        )
    check_range(name, column.values, before, "Correct or drop such rows.")


def check_whole_numbers(name: str, column: Column, before: int = 0) -> None:
    """Raises if the numeric classes of a classification have fractions, or are infinite or too large."""
    check_numbers(name, column, before)
    has_fraction = column.values != np.round(column.values)
    if has_fraction.any():
        row, value = first_where(has_fraction, column.values, before)
        raise ValueError(
            f"`{shortened(name)}` must hold classes, got fractions such as {value:g} in row {row}. "
            "Round them, or fit a regression."
        )


def check_not_constant(name: str, low: float, high: float) -> None:
    """Raises if the smallest and the largest value of a training target are equal."""
    if low == high:
        raise ValueError(f"`{shortened(name)}` must vary, got {low:g} in every row. Choose another target.")


def check_classes(name: str, classes: Collection[object], odd: OddValue | None = None) -> None:
    """Raises unless a training target has 2 to `MAX_CLASSES` classes. `odd` is the first word among numbers."""
    if odd is not None:
        raise ValueError(
            f"`{shortened(name)}` must hold numbers or classes, got both: {odd}. Correct it or drop the row."
        )
    if len(classes) > MAX_CLASSES:
        raise ValueError(
            f"`{shortened(name)}` must have at most {MAX_CLASSES} classes, got more. "
            "Group them, or fit a regression to numbers."
        )
    if len(classes) < 2:
        raise ValueError(
            f"`{shortened(name)}` must have at least two classes, got {quoted(classes)} in every row. "
            "Choose another target, or add rows of other classes."
        )
