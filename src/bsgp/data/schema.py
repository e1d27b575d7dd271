"""How a table becomes a matrix of inputs: learned from the training rows, applied to any others."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from bsgp.data.standardise import Standardiser
from bsgp.data.tables import Column, Table, column_from_values, shown, ticked, word

MAX_CATEGORIES = 50
MAX_FRACTIONS = 8
"""A column with more numbers like 2.75 than this is one of numbers, and a word among them a slip."""
LARGEST = 1e100
"""Squares of larger numbers, and sums of them, leave float64."""

_KINDS = ("number", "boolean", "category")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_FRACTION = re.compile(r"[+-]?\d*\.\d+")
_UNSEEN = -2


@dataclass(frozen=True)
class Feature:
    """One input column, and all that is needed to encode new values of it."""

    name: str
    kind: str
    """`number`, `boolean` or `category`."""
    categories: tuple[str, ...] = ()
    """The levels of a category, sorted."""
    frequencies: tuple[float, ...] = ()
    """The share of the training rows in each of `categories`."""
    fill: float = 0.0
    """What stands for a missing value: the median of numbers, the mean of booleans."""
    has_missing: bool = False
    """Whether training rows had missing values; then an indicator column marks them."""
    missing_share: float = 0.0
    """The share of the training rows that had none."""
    mean: float = 0.0
    scale: float = 1.0
    """With `mean`, the standardisation of a column that is not one-hot, after missing values are filled."""
    low: float = 0.0
    high: float = 1.0
    """The 0.05 and 0.95 quantiles of numbers, between which a report may draw a grid."""

    @property
    def median(self) -> float:
        return self.fill

    @property
    def is_one_hot(self) -> bool:
        """Two categories and no missing value are a single column of 0 and 1, like a boolean."""
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
        """The columns of X that belong to this feature: `[N width]`, centred as in training."""
        if self.kind != "category":
            return self.encode_numbers(self._numbers(column))
        codes = self._codes(column)
        return self.encode_numbers(np.where(codes < 0, np.nan, codes))

    def encode_numbers(self, values: np.ndarray) -> np.ndarray:
        """The same from floats, NaN where missing; those of a category are positions in `categories`."""
        missing = np.isnan(values)
        indicator = [missing - self.missing_share] if self.has_missing else []
        if not self.is_one_hot:
            filled = np.where(missing, self.mean if self.kind == "category" else self.fill, values)
            return np.stack([(filled - self.mean) / self.scale, *indicator], axis=1)
        shares = np.array(self.frequencies)
        block = (values[:, None] == np.arange(len(shares))[None, :]) - shares[None, :]
        if not self.has_missing:
            block[missing] = 0.0  # training knew of no such rows, so they stand in the middle of all categories
        return np.concatenate([block, *(one[:, None] for one in indicator)], axis=1)

    def _numbers(self, column: Column) -> np.ndarray:
        """The values as floats, NaN where missing; words that say a number or a truth value are taken as such."""
        if column.kind == "text":
            values = _from_text(self.name, self.kind, column)
        elif column.kind == "date":
            raise ValueError(
                f"`{shown(self.name)}` must hold {_plural(self.kind)} as in training, got dates such as "
                f"`{shown(_first(column.values, ~column.missing)[1])}`. Convert them as for training."
            )
        else:
            values = column.values
        check_range(self.name, values)
        if self.kind == "boolean":
            odd = ~np.isnan(values) & (values != 0) & (values != 1)
            if odd.any():
                row, value = _first(values, odd)
                raise ValueError(
                    f"`{shown(self.name)}` must hold true or false as in training, got {value:g} in row {row}. "
                    "Pass 0 and 1, or train again."
                )
        return values

    def _codes(self, column: Column) -> np.ndarray:
        """Positions in `categories`, -1 where missing."""
        words = column.values
        if column.kind in ("number", "boolean"):
            # a file that holds 1 and 2 only is read as numbers, though training saw "1", "2" and "x"
            distinct = np.unique(words[~np.isnan(words)])
            name_of = {value: _known_as(value, column.kind, self.categories) for value in distinct.tolist()}
            words = [None if value != value else name_of[value] for value in words.tolist()]
        lookup: dict[Any, int] = {None: -1, **{level: code for code, level in enumerate(self.categories)}}
        codes = np.array([lookup.get(one, _UNSEEN) for one in words], dtype=np.int64)
        unseen = codes == _UNSEEN
        if unseen.any():
            row = int(np.argmax(unseen)) + 1
            raise ValueError(
                f"`{shown(self.name)}` must be one of the categories seen in training ({ticked(self.categories)}), "
                f"got `{shown(words[row - 1])}` in row {row}. Replace it, leave it empty, or train again with it."
            )
        return codes


@dataclass(frozen=True)
class ColumnFacts:
    """What is learned from a column of training rows: its feature, or why it is left out, depends on this alone."""

    kind: str
    num_rows: int
    num_missing: int
    is_constant: bool
    """Whether no value is missing and all are the same."""
    identity: Hashable
    """The same for columns with the same values in all rows; true and 1 are the same value."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows have each word of text or dates."""
    odd: str = ""
    """Names the word that keeps it from being a column of numbers, where there are few."""
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 1.0
    """As in `Feature`, for numbers and booleans."""

    @classmethod
    def of(cls, column: Column) -> "ColumnFacts":
        missing = column.missing
        there = column.values[~missing]
        common = (column.kind, len(missing), int(missing.sum()))
        if column.kind in ("text", "date"):
            counts = dict(Counter(there.tolist()))
            is_constant = len(counts) == 1 and not missing.any()
            return cls(*common, is_constant, _fingerprint(column), counts, odd_one_out(column))
        if not there.size:
            return cls(*common, False, _fingerprint(column))
        fill = float(np.median(there) if column.kind == "number" else there.mean())
        low, high = np.quantile(there, [0.05, 0.95]) if column.kind == "number" else (0.0, 1.0)
        units = Standardiser.fit(np.where(missing, fill, column.values)[:, None])
        is_constant = not missing.any() and never_changes(there.min(), there.max())
        # np.float64 counts as a float, but not in JSON to the letter: all numbers are made plain
        moments = (fill, units.mean[0].item(), units.scale[0].item(), float(low), float(high))
        return cls(*common, is_constant, _fingerprint(column), {}, "", *moments)

    @property
    def why_useless(self) -> str | None:
        """Why nothing can be learned from it, if so. A missing value counts: that it is missing may tell."""
        if self.num_missing == self.num_rows:
            return "all values are missing"
        return "constant" if self.is_constant else None

    def feature(self, name: str) -> Feature:
        marks: dict[str, Any] = {
            "has_missing": self.num_missing > 0,
            "missing_share": self.num_missing / self.num_rows,
        }
        if self.kind != "text":
            ends = {"low": self.low, "high": self.high}
            return Feature(name, self.kind, fill=self.fill, mean=self.mean, scale=self.scale, **ends, **marks)
        levels = tuple(sorted(self.counts))
        shares = tuple(self.counts[level] / self.num_rows for level in levels)
        if len(levels) == 2 and not self.num_missing:
            marks |= {"mean": shares[1], "scale": math.sqrt(shares[0] * shares[1])}
        return Feature(name, "category", levels, shares, **marks)


def never_changes(low: float, high: float) -> bool:
    """Whether the ends of a column are one number but for rounding, as `Standardiser` sees it."""
    return bool(high - low <= 8.0 * np.finfo(np.float64).eps * max(abs(low), abs(high)))


@dataclass(frozen=True)
class InputSchema:
    """The input columns of a model in the order of its matrix, and those that were left out."""

    features: tuple[Feature, ...]
    dropped: dict[str, str]
    """Column to reason: `constant`, "same as `other`" or `all values are missing`."""

    @classmethod
    def learn(cls, table: Table) -> tuple["InputSchema", list[str]]:
        """The schema of a table of inputs, and what its user should know of it, one sentence each."""
        for name, column in table.columns.items():
            if column.kind in ("number", "boolean"):
                check_range(name, column.values)
        return cls.from_facts({name: ColumnFacts.of(column) for name, column in table.columns.items()})

    @classmethod
    def from_facts(cls, facts: Mapping[str, ColumnFacts]) -> tuple["InputSchema", list[str]]:
        """The same from what is known of each column."""
        features: list[Feature] = []
        dropped: dict[str, str] = {}
        notes: list[str] = []
        first_with: dict[Hashable, str] = {}
        for name, one in facts.items():
            reason = one.why_useless
            if reason is None:
                check_few_words(name, one)
                other = first_with.setdefault(one.identity, name)
                reason = None if other == name else f"same as {ticked([other])}"
            if reason is not None:
                dropped[name] = reason
                notes.append(f"`{shown(name)}` is left out: {reason}.")
                continue
            feature = one.feature(name)
            features.append(feature)
            if feature.has_missing:
                notes.append(_missing_note(feature, one.num_missing, one.num_rows))
        if not features:
            why = "; ".join(f"`{shown(name)}`: {reason}" for name, reason in list(dropped.items())[:5])
            raise ValueError(f"The inputs must have a column that varies, got none ({why or 'no columns'}). Add one.")
        return cls(tuple(features), dropped), notes

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that new data must have."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def encoded_names(self) -> tuple[str, ...]:
        """A name for each column of the matrix, such as `age`, `colour = red`, `age is missing`."""
        return tuple(name for feature in self.features for name in feature.encoded_names)

    @property
    def width(self) -> int:
        return len(self.encoded_names)

    @cached_property
    def _slices(self) -> dict[str, slice]:
        ends = np.cumsum([feature.width for feature in self.features]).tolist()
        return {one.name: slice(end - one.width, end) for one, end in zip(self.features, ends, strict=True)}

    def columns_of(self, name: str) -> slice:
        """Which columns of the matrix belong to an input column."""
        if name not in self._slices:
            raise ValueError(f"`name` must be an input column, got {ticked([name])}. Choose from {ticked(self.names)}.")
        return self._slices[name]

    def encode(self, table: Table, ignore: Collection[str] = ()) -> tuple[np.ndarray, list[str]]:
        """`X [N D]`, and notes. Columns are found by name; those of `dropped` and `ignore` may be there or not."""
        absent = [name for name in self.names if name not in table.columns]
        if absent:
            raise ValueError(
                f"The table must have all input columns of training, got no {ticked(absent)} "
                f"among {ticked(table.columns)}. Add what is missing; empty values are allowed."
            )
        known = {*self.names, *self.dropped, *ignore}
        unknown = [name for name in table.columns if name not in known]
        if unknown:
            raise ValueError(
                f"The table must have only columns known from training, got {ticked(unknown)}. "
                "Remove them, or leave them out with `--ignore`."
            )
        X = np.empty((table.num_rows, self.width))
        notes = []
        for feature in self.features:
            column = table.columns[feature.name]
            X[:, self.columns_of(feature.name)] = feature.encode(column)
            count = int(column.missing.sum())
            if count and not feature.has_missing:
                notes.append(
                    f"`{shown(feature.name)}`: {_counted(count, table.num_rows)} filled with {_filling(feature)}; "
                    "training had none."
                )
        return X, notes

    def encode_values(self, name: str, values: Any) -> np.ndarray:
        """Raw values of one input column as its block of the matrix: `[K width]`."""
        self.columns_of(name)  # says so where there is no such column
        feature = next(feature for feature in self.features if feature.name == name)
        return feature.encode(column_from_values(name, values))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives the same schema, to the last digit."""
        features = [
            {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(feature).items()}
            for feature in self.features
        ]
        return {"features": features, "dropped": dict(self.dropped)}

    @classmethod
    def from_json(cls, saved: Any) -> "InputSchema":
        try:
            features = tuple(_feature_from_json(one) for one in saved["features"])
            dropped = dict(saved["dropped"].items())
            names = [feature.name for feature in features]
            _require(bool(names) and len(set(names)) == len(names), "its features must differ in name")
            _require(
                all(isinstance(text, str) for pair in dropped.items() for text in pair), "`dropped` must hold text"
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"The input schema must be as it was saved, got a damaged one ({shown(error, 80)}). Train again."
            ) from None
        return cls(features, dropped)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _feature_from_json(saved: Any) -> Feature:
    expected = {field.name: field.type for field in fields(Feature)}
    _require(isinstance(saved, dict) and set(saved) == set(expected), "a feature has other fields")
    for name, kind in expected.items():
        value = saved[name]
        if kind is float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            _require(is_number and math.isfinite(value), f"`{name}` must be finite")
        elif kind in (str, bool):
            _require(isinstance(value, kind), f"`{name}` has another type")
    _require(isinstance(saved["categories"], list), "`categories` must be a list")
    categories, frequencies = tuple(saved["categories"]), tuple(map(float, saved["frequencies"]))
    _require(saved["kind"] in _KINDS, "`kind` is unknown")
    _require(all(isinstance(level, str) for level in categories), "`categories` must hold text")
    _require(list(categories) == sorted(set(categories)), "`categories` must be sorted")
    _require(bool(categories) == (saved["kind"] == "category"), "only a category has `categories`")
    _require(len(categories) == len(frequencies), "`frequencies` must match `categories`")
    _require(all(0 < share <= 1 for share in frequencies), "`frequencies` must be shares")
    _require(saved["scale"] > 0, "`scale` must be positive")
    _require((saved["missing_share"] > 0) == saved["has_missing"], "`missing_share` must match `has_missing`")
    numbers = {name: float(saved[name]) for name, kind in expected.items() if kind is float}
    return Feature(**{**saved, **numbers, "categories": categories, "frequencies": frequencies})


def _fingerprint(column: Column) -> bytes:
    """The same for columns with the same values in all rows; true and 1 are the same value."""
    if column.kind in ("text", "date"):
        content = repr(column.values.tolist()).encode("utf-8", "surrogatepass")
    else:
        content = np.where(column.missing, np.nan, column.values + 0.0).tobytes()  # one NaN, and no -0.0
    return hashlib.sha256(content).digest()


def check_few_words(name: str, facts: ColumnFacts) -> None:
    """Text must have few words, and dates are no inputs as they are."""
    if facts.kind == "date":
        raise ValueError(
            f"`{shown(name)}` must hold numbers or categories, got dates such as "
            f"`{shown(next(iter(facts.counts)))}`. Turn them into numbers (days since a start, month, "
            "weekday), or leave the column out with `--ignore`."
        )
    distinct = len(facts.counts)
    if facts.odd and sum(_FRACTION.fullmatch(value) is not None for value in facts.counts) > MAX_FRACTIONS:
        raise ValueError(f"`{shown(name)}` must hold numbers or categories, got both{facts.odd}.")
    if distinct > MAX_CATEGORIES:
        raise ValueError(
            f"`{shown(name)}` must have at most {MAX_CATEGORIES} different values to be a category, got {distinct}"
            f"{facts.odd}. Group its values, or leave it out with `--ignore`."
        )


def odd_one_out(column: Column) -> str:
    """Names the value that keeps a column from being one of numbers, where most are."""
    there = ~column.missing
    is_word = np.array([value is not None and not says_number(value) for value in column.values])
    if not 0 < is_word.sum() < 0.5 * there.sum():
        return ""
    return odd_one(*_first(column.values, is_word))


def says_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def odd_one(row: int, value: str) -> str:
    return f" (numbers, but for `{shown(value)}` in row {row}: correct it or leave it empty)"


def check_range(name: str, values: np.ndarray, before: int = 0) -> None:
    """Numbers must be finite and not too large. `before` is the number of rows that came before these."""
    bad = np.abs(values) > LARGEST
    if bad.any():
        row, value = _first(values, bad)
        raise ValueError(
            f"`{shown(name)}` must hold finite numbers of at most {LARGEST:g}, got {value:g} in row {before + row}. "
            "Correct it or leave it empty."
        )


def _first(values: np.ndarray, where: np.ndarray) -> tuple[int, Any]:
    """The first row of a mask, counted from 1 below the header, and its value."""
    at = int(np.argmax(where))
    return at + 1, values[at]


def _from_text(name: str, kind: str, column: Column) -> np.ndarray:
    """Numbers or truth values from words that all say one, or an error with the first that does not."""
    parsed = np.array([_parsed(value, kind) for value in column.values], dtype=np.float64)
    bad = np.isnan(parsed) & ~column.missing
    if bad.any():
        row, value = _first(column.values, bad)
        raise ValueError(
            f"`{shown(name)}` must hold {_plural(kind)} as in training, got `{shown(value)}` in row {row}. "
            "Correct it or leave it empty."
        )
    return parsed


def _parsed(value: str | None, kind: str) -> float:
    if value is None:
        return math.nan
    if kind == "boolean" and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    return float(value) if _NUMBER.fullmatch(value) else math.nan


def _plural(kind: str) -> str:
    return "numbers" if kind == "number" else "true or false"


def _known_as(value: float, kind: str, categories: tuple[str, ...]) -> str:
    """The category that a number or truth value names: the only one of equal value, else by its shortest word."""
    if kind == "boolean":
        text = str(bool(value))
        same = [level for level in categories if level.lower() == text.lower()]
    else:
        text = word(value)
        same = [level for level in categories if _NUMBER.fullmatch(level) and float(level) == value]
    return same[0] if len(same) == 1 else text


def _counted(count: int, num_rows: int) -> str:
    percent = 100 * count / num_rows
    share = "under 1%" if percent < 1 else f"{percent:.0f}%"
    return f"{count} missing value ({share}) is" if count == 1 else f"{count} missing values ({share}) are"


def _filling(feature: Feature) -> str:
    if feature.kind == "number":
        return f"the median {feature.fill:.6g}"
    return f"the mean {feature.fill:.3g}" if feature.kind == "boolean" else "the average category"


def _missing_note(feature: Feature, count: int, num_rows: int) -> str:
    name, counted = shown(feature.name), _counted(count, num_rows)
    if feature.kind == "category":
        return f"`{name}`: {counted} treated as one more category."
    return f"`{name}`: {counted} filled with {_filling(feature)} and marked by an indicator."
