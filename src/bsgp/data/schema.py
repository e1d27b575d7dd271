"""How a table becomes a matrix of inputs: learned from the training rows, applied to any others."""

import hashlib
import math
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
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
        missing = column.missing
        indicator = [missing - self.missing_share] if self.has_missing else []
        if not self.is_one_hot:
            values = self._codes(column).astype(np.float64) if self.kind == "category" else self._numbers(column)
            filled = np.where(missing, self.mean if self.kind == "category" else self.fill, values)
            return np.stack([(filled - self.mean) / self.scale, *indicator], axis=1)
        codes = self._codes(column)
        shares = np.array(self.frequencies)
        block = (codes[:, None] == np.arange(len(shares))[None, :]) - shares[None, :]
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
        _check_range(self.name, values)
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
class InputSchema:
    """The input columns of a model in the order of its matrix, and those that were left out."""

    features: tuple[Feature, ...]
    dropped: dict[str, str]
    """Column to reason: `constant`, "same as `other`" or `all values are missing`."""

    @classmethod
    def learn(cls, table: Table) -> tuple["InputSchema", list[str]]:
        """The schema of a table of inputs, and what its user should know of it, one sentence each."""
        features: list[Feature] = []
        dropped: dict[str, str] = {}
        notes: list[str] = []
        first_with: dict[bytes, str] = {}
        for name, column in table.columns.items():
            if column.kind in ("number", "boolean"):
                _check_range(name, column.values)
            reason = _why_useless(column)
            if reason is None:
                if column.kind in ("text", "date"):
                    _check_few_words(name, column)
                other = first_with.setdefault(_fingerprint(column), name)
                reason = None if other == name else f"same as {ticked([other])}"
            if reason is not None:
                dropped[name] = reason
                notes.append(f"`{shown(name)}` is left out: {reason}.")
                continue
            feature = _learn_feature(name, column)
            features.append(feature)
            if feature.has_missing:
                notes.append(_missing_note(feature, int(column.missing.sum()), len(column.values)))
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


def _learn_feature(name: str, column: Column) -> Feature:
    missing = column.missing
    # np.float64 counts as a float, but not in JSON to the letter: all numbers are made plain
    marks: dict[str, Any] = {"has_missing": bool(missing.any()), "missing_share": float(missing.mean())}
    if column.kind == "text":
        levels = sorted({value for value in column.values if value is not None})
        lookup = {level: code for code, level in enumerate(levels)}
        codes = np.array([lookup.get(value, -1) for value in column.values])
        shares = tuple(np.mean(codes == code).item() for code in range(len(levels)))
        units = Standardiser.fit(codes[:, None].astype(np.float64))
        mean, scale = (units.mean[0], units.scale[0]) if len(levels) == 2 and not missing.any() else (0.0, 1.0)
        return Feature(name, "category", tuple(levels), shares, mean=float(mean), scale=float(scale), **marks)
    there = column.values[~missing]
    fill = float(np.median(there) if column.kind == "number" else there.mean())
    low, high = np.quantile(there, [0.05, 0.95]) if column.kind == "number" else (0.0, 1.0)
    units = Standardiser.fit(np.where(missing, fill, column.values)[:, None])
    return Feature(
        name,
        column.kind,
        fill=fill,
        mean=float(units.mean[0]),
        scale=float(units.scale[0]),
        low=float(low),
        high=float(high),
        **marks,
    )


def _why_useless(column: Column) -> str | None:
    """Why nothing can be learned from a column, if so. A missing value counts: that it is missing may tell."""
    missing = column.missing
    if missing.all():
        return "all values are missing"
    if missing.any():
        return None
    if column.kind in ("text", "date"):
        return "constant" if (column.values == column.values[0]).all() else None
    # `Standardiser` takes a spread of a few units in the last place for none
    spread, size = np.ptp(column.values), np.abs(column.values).max()
    return "constant" if spread <= 8.0 * np.finfo(np.float64).eps * size else None


def _fingerprint(column: Column) -> bytes:
    """The same for columns with the same values in all rows; true and 1 are the same value."""
    if column.kind == "text":
        content = repr(column.values.tolist()).encode("utf-8", "surrogatepass")
    else:
        content = np.where(column.missing, np.nan, column.values + 0.0).tobytes()  # one NaN, and no -0.0
    return hashlib.sha256(content).digest()


def _check_few_words(name: str, column: Column) -> None:
    if column.kind == "date":
        raise ValueError(
            f"`{shown(name)}` must hold numbers or categories, got dates such as "
            f"`{shown(_first(column.values, ~column.missing)[1])}`. Turn them into numbers (days since a start, month, "
            "weekday), or leave the column out with `--ignore`."
        )
    words, odd = set(column.values) - {None}, odd_one_out(column)
    distinct = len(words)
    if odd and sum(_FRACTION.fullmatch(value) is not None for value in words) > MAX_FRACTIONS:
        raise ValueError(f"`{shown(name)}` must hold numbers or categories, got both{odd}.")
    if distinct > MAX_CATEGORIES:
        raise ValueError(
            f"`{shown(name)}` must have at most {MAX_CATEGORIES} different values to be a category, got {distinct}"
            f"{odd}. Group its values, or leave it out with `--ignore`."
        )


def odd_one_out(column: Column) -> str:
    """Names the value that keeps a column from being one of numbers, where most are."""
    there = ~column.missing
    is_word = np.array([value is not None and not _NUMBER.fullmatch(value) for value in column.values])
    if not 0 < is_word.sum() < 0.5 * there.sum():
        return ""
    row, value = _first(column.values, is_word)
    return f" (numbers, but for `{shown(value)}` in row {row}: correct it or leave it empty)"


def _check_range(name: str, values: np.ndarray) -> None:
    bad = np.abs(values) > LARGEST
    if bad.any():
        row, value = _first(values, bad)
        raise ValueError(
            f"`{shown(name)}` must hold finite numbers of at most {LARGEST:g}, got {value:g} in row {row}. "
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
