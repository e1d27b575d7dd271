"""An input column of a model, and its encoding as columns of the input matrix."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bsgp.data.encoding.checks import NOT_NUMBERS, check_range, first_where, reads_as_number
from bsgp.data.tables.columns import Column, category_name, quoted, shortened

_UNSEEN = -2


@dataclass(frozen=True)
class Feature:
    """An input column, with everything that is needed to encode new values."""

    name: str
    kind: str
    """`number`, `boolean` or `category`."""
    categories: tuple[str, ...] = ()
    """The names of the categories, sorted."""
    frequencies: tuple[float, ...] = ()
    """The share of the training rows in each category."""
    fill: float = 0.0
    """Replaces missing values: the median of numbers, the mean of booleans."""
    has_missing: bool = False
    """Whether training rows had missing values, which an indicator column then marks."""
    missing_share: float = 0.0
    """The share of the training rows with a missing value."""
    mean: float = 0.0
    scale: float = 1.0
    """Mean and scale standardise a column that is not one-hot, after missing values are filled."""
    low: float = 0.0
    high: float = 1.0
    """`low` and `high` are the 0.05 and 0.95 quantiles of numbers, the range that reports plot."""

    @property
    def median(self) -> float:
        return self.fill

    @property
    def is_one_hot(self) -> bool:
        """Whether each category has its own column. Two categories without missing values share one, like booleans."""
        return self.kind == "category" and (len(self.categories) != 2 or self.has_missing)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        if self.kind == "category":
            levels = self.categories if self.is_one_hot else self.categories[1:]
            names = [f"{self.name} = {level}" for level in levels]
        else:
            names = [self.name]
        return (*names, f"{self.name} is missing") if self.has_missing else tuple(names)

    @property
    def width(self) -> int:
        return len(self.encoded_names)

    def encode(self, column: Column) -> np.ndarray:
        """Returns the columns of X that belong to this feature, `[N width]`, centred as in training."""
        if self.kind != "category":
            return self.encode_numbers(self._numbers(column))
        codes = self._codes(column)
        return self.encode_numbers(np.where(codes < 0, np.nan, codes))

    def encode_numbers(self, values: np.ndarray) -> np.ndarray:
        """Encodes floats, NaN where missing, `[N width]`; for a category they are positions in `categories`."""
        missing = np.isnan(values)
        indicator = [missing - self.missing_share] if self.has_missing else []
        if not self.is_one_hot:
            filled = np.where(missing, self.mean if self.kind == "category" else self.fill, values)
            return np.stack([(filled - self.mean) / self.scale, *indicator], axis=1)
        shares = np.array(self.frequencies)
        block = (values[:, None] == np.arange(len(shares))[None, :]) - shares[None, :]
        if not self.has_missing:
            block[missing] = 0.0  # training had no such rows: they get the average of all categories
        return np.concatenate([block, *(one[:, None] for one in indicator)], axis=1)

    def _numbers(self, column: Column) -> np.ndarray:
        """Returns the values as floats, NaN where missing; parses text that holds numbers, true or false."""
        if column.kind == "text":
            values = _from_text(self.name, self.kind, column)
        elif column.kind in NOT_NUMBERS:
            _, example = first_where(~column.missing, column.values)
            raise ValueError(
                f"`{shortened(self.name)}` must hold {_plural(self.kind)} as in training, got {column.kind}s such as "
                f"`{shortened(example)}`. Convert them as for training."
            )
        else:
            values = column.values
        check_range(self.name, values)
        if self.kind == "boolean":
            odd = ~np.isnan(values) & (values != 0) & (values != 1)
            if odd.any():
                row, value = first_where(odd, values)
                raise ValueError(
                    f"`{shortened(self.name)}` must hold true or false as in training, got {value:g} in row {row}. "
                    "Pass 0 and 1, or train again."
                )
        return values

    def _codes(self, column: Column) -> np.ndarray:
        """Returns positions in `categories`, -1 where missing."""
        words = column.values
        if column.kind in ("number", "boolean"):
            # a file with only 1 and 2 is read as numbers, even if training had "1", "2" and "x"
            distinct = np.unique(words[~np.isnan(words)])
            name_of = {value: _matching_category(value, column.kind, self.categories) for value in distinct.tolist()}
            words = [None if value != value else name_of[value] for value in words.tolist()]
        lookup: dict[Any, int] = {None: -1, **{level: code for code, level in enumerate(self.categories)}}
        codes = np.array([lookup.get(one, _UNSEEN) for one in words], dtype=np.int64)
        unseen = codes == _UNSEEN
        if unseen.any():
            row, value = first_where(unseen, words)
            raise ValueError(
                f"`{shortened(self.name)}` must be one of the categories seen in training ({quoted(self.categories)}), "
                f"got `{shortened(value)}` in row {row}. Replace it, leave it empty, or train again with it."
            )
        return codes


def _from_text(name: str, kind: str, column: Column) -> np.ndarray:
    """Parses text as numbers or truth values; raises on the first word that is neither."""
    parsed = np.array([_parsed(value, kind) for value in column.values], dtype=np.float64)
    bad = np.isnan(parsed) & ~column.missing
    if bad.any():
        row, value = first_where(bad, column.values)
        raise ValueError(
            f"`{shortened(name)}` must hold {_plural(kind)} as in training, got `{shortened(value)}` in row {row}. "
            "Correct it or leave it empty."
        )
    return parsed


def _parsed(value: str | None, kind: str) -> float:
    if value is None:
        return math.nan
    if kind == "boolean" and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    return float(value) if reads_as_number(value) else math.nan


def _plural(kind: str) -> str:
    return "numbers" if kind == "number" else "true or false"


def _matching_category(value: float, kind: str, categories: tuple[str, ...]) -> str:
    """The category that a number or truth value stands for: the only one of equal value, else its shortest name."""
    if kind == "boolean":
        text = str(bool(value))
        same = [level for level in categories if level.lower() == text.lower()]
    else:
        text = category_name(value)
        same = [level for level in categories if reads_as_number(level) and float(level) == value]
    return same[0] if len(same) == 1 else text
