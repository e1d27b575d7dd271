"""Encoding of a table as a matrix of inputs: learned from training rows, applied to any rows."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from bsgp.data.encoding.checks import LEAVE_OUT, NOT_NUMBERS, OddValue, check_range, find_odd_value, require
from bsgp.data.encoding.feature import Feature
from bsgp.data.encoding.standardise import Standardiser
from bsgp.data.encoding.weighted import weighted_median, weighted_quantiles
from bsgp.data.tables.columns import OBJECT_KINDS, Column, Table, column_from_values, quoted, shortened

MAX_CATEGORIES = 50
QUANTILES = (0.05, 0.95)
MAX_FRACTIONS = 8
"""A column with more numbers like 2.75 than this holds numbers, and a word in it is a mistake."""

_KINDS = ("number", "boolean", "category")
_FRACTION = re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True)
class ColumnFacts:
    """Everything about a column of training rows that decides its feature, or why it is left out."""

    kind: str
    num_rows: int
    num_missing: int
    is_constant: bool
    """Whether all values are equal and none is missing."""
    identity: Hashable
    """Equal for two columns if they have equal values in all rows; true equals 1."""
    counts: Mapping[str, int | float] = field(default_factory=dict)
    """Number of rows with each value, or their total weight, for text, dates and durations."""
    odd: OddValue | None = None
    """The first word among numbers, in a text column of mostly numbers."""
    # for numbers and booleans, with the meaning that they have in `Feature`
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 1.0
    total_weight: float | None = None
    """Sum of the weights of all rows; None if every row counts once."""
    missing_weight: float = 0.0
    """Sum of the weights of rows without a value."""

    @classmethod
    def of(cls, column: Column, weight: np.ndarray | None = None) -> "ColumnFacts":
        """The facts about a column of rows, of which each counts `weight [N]` times, if given."""
        missing = column.missing
        there = column.values[~missing]
        common = (column.kind, len(missing), int(missing.sum()))
        weights: dict[str, Any] = {}
        of_there = None
        if weight is not None:
            of_there = weight[~missing]
            weights = {"total_weight": float(weight.sum()), "missing_weight": float(weight[missing].sum())}
        if column.kind in OBJECT_KINDS:
            counts = _counts(there, of_there)
            is_constant = len(counts) == 1 and not missing.any()
            return cls(*common, is_constant, _fingerprint(column), counts, find_odd_value(column), **weights)
        if not there.size:
            return cls(*common, False, _fingerprint(column), **weights)
        fill, low, high = location(there, of_there) if column.kind == "number" else (_mean(there, of_there), 0.0, 1.0)
        units = Standardiser.fit(np.where(missing, fill, column.values)[:, None], weight)
        is_constant = not missing.any() and is_constant_range(there.min(), there.max())
        # plain floats: np.float64 may be written differently in JSON
        moments = (fill, units.mean[0].item(), units.scale[0].item(), low, high)
        return cls(*common, is_constant, _fingerprint(column), {}, None, *moments, **weights)

    @property
    def reason_to_drop(self) -> str | None:
        """Why the column carries no information, or None. A constant with missing values may: they get an indicator."""
        if self.num_missing == self.num_rows:
            return "all values are missing"
        return "constant" if self.is_constant else None

    def feature(self, name: str) -> Feature:
        total, missing = self.num_rows, self.num_missing
        if self.total_weight is not None:
            total, missing = self.total_weight, self.missing_weight
        options: dict[str, Any] = {"has_missing": self.num_missing > 0, "missing_share": missing / total}
        if self.kind != "text":
            ends = {"low": self.low, "high": self.high}
            return Feature(name, self.kind, fill=self.fill, mean=self.mean, scale=self.scale, **ends, **options)
        levels = tuple(sorted(self.counts))
        shares = tuple(self.counts[level] / total for level in levels)
        if len(levels) == 2 and not self.num_missing:
            options |= {"mean": shares[1], "scale": math.sqrt(shares[0] * shares[1])}
        return Feature(name, "category", levels, shares, **options)


def _counts(values: np.ndarray, weight: np.ndarray | None) -> Mapping[str, int | float]:
    """Number of rows with each value, or their total weight."""
    if weight is None:
        return dict(Counter(values.tolist()))
    counts: dict[str, int | float] = {}
    for value, one in zip(values.tolist(), weight.tolist(), strict=True):
        counts[value] = counts.get(value, 0.0) + one
    return counts


def _mean(values: np.ndarray, weight: np.ndarray | None) -> float:
    return float(values.mean() if weight is None else np.average(values, weights=weight))


def location(values: np.ndarray, weight: np.ndarray | None) -> tuple[float, float, float]:
    """Median, and the quantiles that reports plot."""
    if weight is None:
        low, high = np.quantile(values, QUANTILES)
        return float(np.median(values)), float(low), float(high)
    low, high = weighted_quantiles(values, QUANTILES, weight)
    return weighted_median(values, weight), low, high


def is_constant_range(low: float, high: float) -> bool:
    """Whether minimum and maximum differ by rounding only, with the tolerance of `Standardiser`."""
    return bool(high - low <= 8.0 * np.finfo(np.float64).eps * max(abs(low), abs(high)))


class Note(str):
    """A sentence for the user about one column of a table."""

    column: str

    @classmethod
    def about(cls, column: str, text: str) -> "Note":
        note = cls(f"`{shortened(column)}`{text}")
        note.column = column
        return note


@dataclass(frozen=True)
class InputSchema:
    """The input columns of a model in the order of its matrix, and the columns that were left out."""

    features: tuple[Feature, ...]
    dropped: dict[str, str]
    """Why each dropped column was left out: "constant", "same as `other`" or "all values are missing"."""

    @classmethod
    def learn(cls, table: Table, weight: np.ndarray | None = None) -> tuple["InputSchema", list[Note]]:
        """Learns the schema of a table of inputs. Returns it with notes for the user, one sentence each.

        Each row counts `weight [N]` times, if given, for shares, medians, means and scales.
        """
        for name, column in table.columns.items():
            if column.kind in ("number", "boolean"):
                check_range(name, column.values)
        return cls.from_facts({name: ColumnFacts.of(column, weight) for name, column in table.columns.items()})

    @classmethod
    def from_facts(cls, facts: Mapping[str, ColumnFacts]) -> tuple["InputSchema", list[Note]]:
        """Makes a schema, and notes for the user, from the facts about each column."""
        features: list[Feature] = []
        dropped: dict[str, str] = {}
        notes: list[Note] = []
        first_with: dict[Hashable, str] = {}
        for name, one in facts.items():
            reason = one.reason_to_drop
            if reason is None:
                check_usable(name, one)
                other = first_with.setdefault(one.identity, name)
                reason = None if other == name else f"same as {quoted([other])}"
            if reason is not None:
                dropped[name] = reason
                notes.append(Note.about(name, f" is left out: {reason}."))
                continue
            feature = one.feature(name)
            features.append(feature)
            if feature.has_missing:
                notes.append(_missing_note(feature, one.num_missing, one.num_rows))
        if not features:
            why = "; ".join(f"`{shortened(name)}`: {reason}" for name, reason in list(dropped.items())[:5])
            raise ValueError(f"The inputs must have a column that varies, got none ({why or 'no columns'}). Add one.")
        return cls(tuple(features), dropped), notes

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that new tables must have."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the columns of the matrix, such as `age`, `colour = red`, `age is missing`."""
        return tuple(name for feature in self.features for name in feature.encoded_names)

    @property
    def width(self) -> int:
        return len(self.encoded_names)

    @cached_property
    def _slices(self) -> dict[str, slice]:
        ends = np.cumsum([feature.width for feature in self.features]).tolist()
        return {one.name: slice(end - one.width, end) for one, end in zip(self.features, ends, strict=True)}

    def columns_of(self, name: str) -> slice:
        """Returns the columns of the matrix that belong to an input column."""
        if name not in self._slices:
            raise ValueError(f"`name` must be an input column, got {quoted([name])}. Choose from {quoted(self.names)}.")
        return self._slices[name]

    def encode(self, table: Table, ignore: Collection[str] = ()) -> tuple[np.ndarray, list[Note]]:
        """Returns `X [N D]`, and notes. Finds columns by name; those in `dropped` and `ignore` are optional."""
        absent = [name for name in self.names if name not in table.columns]
        if absent:
            raise ValueError(
                f"The table must have all input columns of training, got no {quoted(absent)} "
                f"among {quoted(table.columns)}. Add the missing columns; their values may be empty."
            )
        known = {*self.names, *self.dropped, *ignore}
        unknown = [name for name in table.columns if name not in known]
        if unknown:
            raise ValueError(
                f"The table must have only columns known from training, got {quoted(unknown)}. "
                "Remove them: pass only the columns of training."
            )
        X = np.empty((table.num_rows, self.width))
        notes = []
        for feature in self.features:
            column = table.columns[feature.name]
            X[:, self.columns_of(feature.name)] = feature.encode(column)
            count = int(column.missing.sum())
            if count and not feature.has_missing:
                phrase = _missing_phrase(count, table.num_rows)
                text = f": {phrase} filled with {_filling(feature)}; training had none."
                notes.append(Note.about(feature.name, text))
        return X, notes

    def encode_values(self, name: str, values: Any) -> np.ndarray:
        """Encodes raw values of one input column as its columns of the matrix, `[K width]`."""
        self.columns_of(name)  # raises if there is no such column
        feature = next(feature for feature in self.features if feature.name == name)
        return feature.encode(column_from_values(name, values))

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON types, from which `from_json` restores exactly this schema."""
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
            require(bool(names) and len(set(names)) == len(names), "features must have distinct names")
            require(all(isinstance(text, str) for pair in dropped.items() for text in pair), "`dropped` must hold text")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"The input schema must be as it was saved, got a damaged one ({shortened(error, 80)}). Train again."
            ) from None
        return cls(features, dropped)


def _feature_from_json(saved: Any) -> Feature:
    expected = {field.name: field.type for field in fields(Feature)}
    require(isinstance(saved, dict) and set(saved) == set(expected), "a feature has unknown or missing fields")
    for name, kind in expected.items():
        value = saved[name]
        if kind is float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            require(is_number and math.isfinite(value), f"`{name}` must be finite")
        elif kind in (str, bool):
            require(isinstance(value, kind), f"`{name}` has another type")
    require(isinstance(saved["categories"], list), "`categories` must be a list")
    categories, frequencies = tuple(saved["categories"]), tuple(map(float, saved["frequencies"]))
    require(saved["kind"] in _KINDS, "`kind` is unknown")
    require(all(isinstance(level, str) for level in categories), "`categories` must hold text")
    require(list(categories) == sorted(set(categories)), "`categories` must be sorted")
    require(bool(categories) == (saved["kind"] == "category"), "only a category has `categories`")
    require(len(categories) == len(frequencies), "`frequencies` must match `categories`")
    require(all(0 < share <= 1 for share in frequencies), "`frequencies` must be shares")
    require(saved["scale"] > 0, "`scale` must be positive")
    require((saved["missing_share"] > 0) == saved["has_missing"], "`missing_share` must match `has_missing`")
    numbers = {name: float(saved[name]) for name, kind in expected.items() if kind is float}
    return Feature(**{**saved, **numbers, "categories": categories, "frequencies": frequencies})


def _fingerprint(column: Column) -> bytes:
    """Returns a hash that is equal for columns with equal values in all rows; true equals 1."""
    if column.kind in OBJECT_KINDS:
        content = repr(column.values.tolist()).encode("utf-8", "surrogatepass")
    else:
        content = np.where(column.missing, np.nan, column.values + 0.0).tobytes()  # a single NaN, and no -0.0
    return hashlib.sha256(content).digest()


def check_usable(name: str, facts: ColumnFacts) -> None:
    """Raises if a column is neither numbers nor a category of few values."""
    if facts.kind in NOT_NUMBERS:
        raise ValueError(
            f"`{shortened(name)}` must hold numbers or categories, got {facts.kind}s such as "
            f"`{shortened(next(iter(facts.counts)))}`. {NOT_NUMBERS[facts.kind]}, or {LEAVE_OUT}."
        )
    num_values, odd = len(facts.counts), facts.odd
    if odd and sum(_FRACTION.fullmatch(value) is not None for value in facts.counts) > MAX_FRACTIONS:
        raise ValueError(
            f"`{shortened(name)}` must hold numbers or categories, got both: {odd}. Correct it or leave it empty."
        )
    if num_values > MAX_CATEGORIES:
        got = f"{num_values} ({odd}). Correct it or leave it empty" if odd else f"{num_values}. Group its values"
        raise ValueError(
            f"`{shortened(name)}` must have at most {MAX_CATEGORIES} different values to be a category, got {got}, "
            f"or {LEAVE_OUT}."
        )


def _missing_phrase(count: int, num_rows: int) -> str:
    percent = 100 * count / num_rows
    share = "under 1%" if percent < 1 else f"{percent:.0f}%"
    return f"{count} missing value ({share}) is" if count == 1 else f"{count} missing values ({share}) are"


def _filling(feature: Feature) -> str:
    if feature.kind == "number":
        return f"the median {feature.fill:.6g}"
    return f"the mean {feature.fill:.3g}" if feature.kind == "boolean" else "the average category"


def _missing_note(feature: Feature, count: int, num_rows: int) -> Note:
    phrase = _missing_phrase(count, num_rows)
    if feature.kind == "category":
        return Note.about(feature.name, f": {phrase} treated as one more category.")
    return Note.about(feature.name, f": {phrase} filled with {_filling(feature)} and marked by an indicator.")
