"""Checks that input columns, target columns and saved descriptions share. Rows count from 1 below the header."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bsgp.data.tables.columns import Column, shortened

LARGEST_NUMBER = 1e100
"""Sums of squares of larger numbers overflow float64."""
NOT_NUMBERS = {
    "date": "Turn them into numbers (days since a start, month, weekday)",
    "duration": "Turn them into numbers (such as seconds)",
}
"""Kinds of columns that are neither numbers nor categories, and how to convert them."""
LEAVE_OUT = "leave the column out (`--ignore` in `bsgp fit`)"
"""Advice about columns that cannot be learned from."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class OddValue(NamedTuple):
    """The first word of a text column that otherwise holds mostly numbers."""

    row: int
    value: str

    def __str__(self) -> str:
        return f"most values are numbers, but row {self.row} holds `{shortened(self.value)}`"


def require(condition: bool, message: str) -> None:
    """Raises a ValueError if a saved description is damaged."""
    if not condition:
        raise ValueError(message)


def reads_as_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def first_where(mask: np.ndarray, values: Sequence[Any] | np.ndarray, before: int = 0) -> tuple[int, Any]:
    """The first row of a mask, and its value. `before` is the number of rows of the table that came before these."""
    at = int(np.argmax(mask))
    return before + at + 1, values[at]


def check_range(name: str, values: np.ndarray, before: int = 0, advice: str = "Correct it or leave it empty.") -> None:
    """Raises if a number is infinite or too large; NaN passes."""
    bad = np.abs(values) > LARGEST_NUMBER
    if bad.any():
        row, value = first_where(bad, values, before)
        raise ValueError(
            f"`{shortened(name)}` must hold finite numbers of at most {LARGEST_NUMBER:g}, got {value:g} in row {row}. "
            f"{advice}"
        )


def find_odd_value(column: Column) -> OddValue | None:
    """Returns the first word that is no number, if fewer than half of the values of a text column are such words."""
    is_word = np.array([value is not None and not reads_as_number(value) for value in column.values])
    if not 0 < is_word.sum() < 0.5 * (~column.missing).sum():
        return None
    return OddValue(*first_where(is_word, column.values))
