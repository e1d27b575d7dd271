"""Everything that encoding a table requires, gathered in one pass over its chunks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bsgp.data.encoding.checks import OddValue, check_range, reads_as_number
from bsgp.data.encoding.schema import (
    MAX_CATEGORIES,
    ColumnFacts,
    InputSchema,
    Note,
    check_usable,
    is_constant_range,
    location,
)
from bsgp.data.tables.columns import OBJECT_KINDS, Column, Table, shortened

SAMPLE_ROWS = 100_000
"""Size of the random sample for medians and quantiles, which are exact for smaller tables."""
_SAMPLE_CELLS = 1 << 24  # 128 MB: the sample of a very wide table has fewer rows
_NAN_BITS = np.float64(np.nan).view(np.uint64)
_MIXER = np.uint64(0x9E3779B97F4A7C15)


class ColumnSummary:
    """Running summary of one column: counts, moments, range and distinct words, coded in order of appearance."""

    def __init__(self, name: str):
        self.name = name
        self.kind: str | None = None
        """None until a value is seen."""
        self.num_rows = self.count = 0
        self._total = self._missing = 0.0
        """Weight of the values, and of the rows without one; equal to their number if rows have no weights."""
        self._origin = self._shift = self._squares = 0.0
        """The first value, the mean's distance from it, and the sum of squared deviations from the mean."""
        self.low, self.high = math.inf, -math.inf
        self.code_of: dict[str, int] = {}
        self._word_counts = np.zeros(0)
        self._has_weights = False
        self.first_word: OddValue | None = None
        """The first value that is no number."""
        self._hash = 0

    @property
    def num_missing(self) -> int:
        return self.num_rows - self.count

    def add(self, column: Column, weights: np.ndarray, row_weight: np.ndarray | None = None) -> np.ndarray:
        """Adds a chunk. Returns its values as floats: numbers as they are, words as codes, NaN where missing.

        `weights` are those of the hash. Each row counts `row_weight` times, if given.
        """
        is_text = column.values.dtype == object
        values = self._codes(column.values) if is_text else column.values
        missing = np.isnan(values)
        there = values[~missing] if missing.any() else values
        of_there = None if row_weight is None else row_weight[~missing]
        self._has_weights = row_weight is not None
        self._missing += float(missing.sum() if row_weight is None else row_weight[missing].sum())
        if there.size:
            self.kind = _checked_kind(self.name, self.kind, column.kind)
            self._add_moments(there, of_there)
        if is_text:
            counts = np.bincount(there.astype(np.int64), of_there, minlength=len(self.code_of)).astype(np.float64)
            counts[: len(self._word_counts)] += self._word_counts
            self._word_counts = counts
        self._hash = (self._hash + _hashed(values, missing, weights)) % (1 << 64)
        self.num_rows += len(values)
        return values

    def _codes(self, words: np.ndarray) -> np.ndarray:
        for value in dict.fromkeys(words.tolist()):
            if value is not None and value not in self.code_of:
                self.code_of[value] = len(self.code_of)
                if self.first_word is None and not reads_as_number(value):
                    self.first_word = OddValue(self.num_rows + 1 + words.tolist().index(value), value)
        lookup: dict[Any, float] = {None: math.nan, **self.code_of}
        return np.fromiter(map(lookup.__getitem__, words), np.float64, len(words))

    def _add_moments(self, there: np.ndarray, weight: np.ndarray | None) -> None:
        """Updates the moments by Chan's formula, relative to the first value: the mean of large offsets rounds."""
        if not self.count:
            self._origin = float(there[0])
        distances = there - self._origin
        added = float(there.size if weight is None else weight.sum())
        shift = float(distances.mean() if weight is None else (weight * distances).sum() / added)
        total = self._total + added
        apart = shift - self._shift
        distances -= shift
        squares = np.square(distances, out=distances)
        if weight is not None:
            squares *= weight
        self._squares += squares.sum().item() + apart**2 * self._total * added / total  # no BLAS: its threads wait
        self._shift += apart * added / total
        self.low, self.high = min(self.low, float(there.min())), max(self.high, float(there.max()))
        self.count, self._total = self.count + there.size, total

    @property
    def mean(self) -> float:
        """Mean of the values that are not missing."""
        return self._origin + self._shift

    @property
    def counts(self) -> dict[str, float]:
        """Number of rows with each word, or their total weight."""
        return dict(zip(self.code_of, self._word_counts.tolist(), strict=True))

    def odd_value(self, known: OddValue | None = None) -> OddValue | None:
        """The first word among numbers, if most values so far are numbers. `known` is used if no word was seen yet."""
        num_words = sum(count for value, count in self.counts.items() if not reads_as_number(value))
        return (self.first_word or known) if num_words < 0.5 * self._total else None

    def standardisation(self, fill: float = 0.0) -> tuple[float, float]:
        """Returns mean and scale with missing values replaced by `fill`, as `Standardiser` would."""
        filled = fill - self._origin
        total = self._total + self._missing
        shift = (self._total * self._shift + self._missing * filled) / total
        apart = self._total * (self._shift - shift) ** 2 + self._missing * (filled - shift) ** 2
        mean, scale = self._origin + shift, math.sqrt((self._squares + apart) / total)
        limits = np.finfo(np.float64)
        return mean, 1.0 if scale <= 8.0 * limits.eps * max(abs(mean), limits.tiny) else scale

    def facts(
        self, sample: np.ndarray, known_odd: OddValue | None = None, sample_weight: np.ndarray | None = None
    ) -> ColumnFacts:
        """Returns the facts that decide the column's feature. `sample` holds values of random rows, for quantiles."""
        weights: dict[str, Any] = {}
        if self._has_weights:
            weights = {"total_weight": self._total + self._missing, "missing_weight": self._missing}
        kind = self.kind or "number"
        common = (kind, self.num_rows, self.num_missing)
        identity = (kind in OBJECT_KINDS, self._hash, tuple(self.code_of))
        if kind in OBJECT_KINDS:
            is_constant = len(self.code_of) == 1 and not self.num_missing
            return ColumnFacts(*common, is_constant, identity, self.counts, self.odd_value(known_odd), **weights)
        if not self.count:
            return ColumnFacts(*common, False, identity, **weights)
        fill, low, high = self.mean, 0.0, 1.0
        if kind == "number":
            is_there = ~np.isnan(sample)
            # if values are so rare that the sample has none, use the statistics of all rows
            low, high = self.low, self.high
            if is_there.any():
                fill, low, high = location(sample[is_there], None if sample_weight is None else sample_weight[is_there])
        is_constant = not self.num_missing and is_constant_range(self.low, self.high)
        moments = (fill, *self.standardisation(fill), low, high)
        return ColumnFacts(*common, is_constant, identity, {}, None, *moments, **weights)


def _checked_kind(name: str, before: str | None, kind: str) -> str:
    combined = combined_kind(before, kind)
    if combined == "text" and {before, kind} & {"number", "boolean"}:  # numbers seen earlier have no codes
        raise ValueError(
            f"`{shortened(name)}` must have one kind in all chunks, got {before} and {kind}. Read it as text."
        )
    return combined


def combined_kind(before: str | None, kind: str) -> str:
    """The kind of a column whose parts have these kinds: text, unless they agree."""
    return kind if before in (None, kind) else "text"


def _hashed(values: np.ndarray, missing: np.ndarray, weights: np.ndarray) -> int:
    """Hashes a column as a weighted sum of the mixed bits of its rows; a change in any row almost surely changes it."""
    bits = (values + 0.0).view(np.uint64)  # no -0.0
    bits[missing] = _NAN_BITS
    # small whole numbers differ in their highest bits only, and products carry upwards: so mix the bits down
    bits ^= bits >> np.uint64(32)
    bits *= _MIXER
    bits ^= bits >> np.uint64(29)
    bits *= weights
    return bits.sum(dtype=np.uint64).item()


class RowSample:
    """Reservoir sample: `size` uniformly random rows of a stream. All rows, in order, if there are fewer."""

    def __init__(self, size: int, num_columns: int, rng: np.random.Generator):
        self._values = np.empty((num_columns, size))
        self._rng = rng
        self._seen = 0

    def add(self, columns: Sequence[np.ndarray]) -> None:
        size = self._values.shape[1]
        at = np.arange(self._seen, self._seen + len(columns[0]))
        # row t draws one of t + 1 places, and is kept if that place is in the reservoir
        places = np.where(at < size, at, self._rng.integers(0, at + 1))
        rows = np.flatnonzero(places < size)
        places = places[rows]
        for kept, values in zip(self._values, columns, strict=True):
            kept[places] = values[rows]
        self._seen += len(at)

    def column(self, at: int) -> np.ndarray:
        return self._values[at, : self._seen]


class TableSummary:
    """Summaries of all input columns, gathered over chunks in bounded memory, from which a schema is made.

    `odd` holds the first word of text columns that an earlier pass took for numbers.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        odd: Mapping[str, OddValue] | None = None,
        sample_rows: int = SAMPLE_ROWS,
        seed: int = 0,
    ):
        self.columns = {name: ColumnSummary(name) for name in names}
        self.num_rows = 0
        self._odd = dict(odd or {})
        draws, weights = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
        size = min(sample_rows, max(1000, _SAMPLE_CELLS // max(len(names), 1)))
        self._sample = RowSample(size, len(names) + 1, draws)  # the last column holds the weights of the rows
        self._weights = weights
        self.total_weight: float | None = None
        """Sum of the weights of all rows; None if they have none."""

    def add(self, chunk: Table, row_weight: np.ndarray | None = None) -> list[np.ndarray]:
        """Adds a chunk. Returns its columns as floats: numbers as they are, words as codes, NaN where missing."""
        if row_weight is not None:
            self.total_weight = (self.total_weight or 0.0) + float(row_weight.sum())
        weights = self._weights.integers(0, 1 << 64, chunk.num_rows, dtype=np.uint64, endpoint=False) | np.uint64(1)
        values = []
        for name, summary in self.columns.items():
            column = chunk.columns[name]
            if column.kind in ("number", "boolean"):
                check_range(name, column.values, self.num_rows)
            values.append(summary.add(column, weights, row_weight))
            if len(summary.code_of) > MAX_CATEGORIES:  # later chunks cannot help
                check_usable(name, summary.facts(np.empty(0), self._odd.get(name)))
        if values:
            self._sample.add([*values, np.ones(chunk.num_rows) if row_weight is None else row_weight])
        self.num_rows += chunk.num_rows
        return values

    def facts(self) -> dict[str, ColumnFacts]:
        weight = None if self.total_weight is None else self._sample.column(len(self.columns))
        return {
            name: one.facts(self._sample.column(at), self._odd.get(name), weight)
            for at, (name, one) in enumerate(self.columns.items())
        }

    def schema(self) -> tuple[InputSchema, list[Note]]:
        """Returns the schema and the notes that `InputSchema.learn` gives for the whole table."""
        return InputSchema.from_facts(self.facts())
