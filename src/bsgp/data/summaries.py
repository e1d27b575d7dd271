"""What must be known of a table before it can be encoded, gathered in one pass over its chunks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsgp.data.schema import (
    MAX_CATEGORIES,
    ColumnFacts,
    InputSchema,
    check_few_words,
    check_range,
    never_changes,
    odd_one,
    says_number,
)
from bsgp.data.tables import Column, Table, shown, ticked
from bsgp.data.targets import MAX_CLASSES, MAX_NUMBER, Targets, task_of

SAMPLE_ROWS = 100_000
"""Medians and quantiles are those of so many rows; exact where there are no more."""
_SAMPLE_CELLS = 1 << 24  # 128 MB: of very wide tables fewer rows are kept
_NAN_BITS = np.float64(np.nan).view(np.uint64)
_MIXER = np.uint64(0x9E3779B97F4A7C15)


class ColumnSummary:
    """One column over its chunks: counts, moments, ends and words. Text is seen as codes in order of appearance."""

    def __init__(self, name: str):
        self.name = name
        self.kind: str | None = None
        """None as long as no value was seen."""
        self.num_rows = self.count = 0
        self._origin = self._shift = self._squares = 0.0
        """A first value, how far the mean is from it, and the sum of squared deviations from the mean."""
        self.low, self.high = math.inf, -math.inf
        self.code_of: dict[str, int] = {}
        self._word_counts = np.zeros(0, np.int64)
        self.first_odd: tuple[int, str] | None = None
        """The first word that is no number, with its row."""
        self._hash = 0

    @property
    def num_missing(self) -> int:
        return self.num_rows - self.count

    def add(self, column: Column, weights: np.ndarray) -> np.ndarray:
        """Take in a chunk, and give it as floats: numbers as they are, words as codes, NaN where missing."""
        is_text = column.values.dtype == object
        values = self._codes(column.values) if is_text else column.values
        missing = np.isnan(values)
        there = values[~missing] if missing.any() else values
        if there.size:
            self.kind = _joined(self.name, self.kind, column.kind)
            self._add_moments(there)
        if is_text:
            counts = np.bincount(there.astype(np.int64), minlength=len(self.code_of))
            counts[: len(self._word_counts)] += self._word_counts
            self._word_counts = counts
        self._hash = (self._hash + _hashed(values, missing, weights)) % (1 << 64)
        self.num_rows += len(values)
        return values

    def _codes(self, words: np.ndarray) -> np.ndarray:
        for value in dict.fromkeys(words.tolist()):
            if value is not None and value not in self.code_of:
                self.code_of[value] = len(self.code_of)
                if self.first_odd is None and not says_number(value):
                    self.first_odd = (self.num_rows + 1 + words.tolist().index(value), value)
        lookup: dict[Any, float] = {None: math.nan, **self.code_of}
        return np.fromiter(map(lookup.__getitem__, words), np.float64, len(words))

    def _add_moments(self, there: np.ndarray) -> None:
        """Chan's formula, in distances from a first value: the mean itself is too coarse where an offset is large."""
        if not self.count:
            self._origin = float(there[0])
        distances = there - self._origin
        shift = float(distances.mean())
        total = self.count + there.size
        apart = shift - self._shift
        distances -= shift
        squares = np.square(distances, out=distances).sum().item()  # not by BLAS, whose threads wait for busy cores
        self._squares += squares + apart**2 * self.count * there.size / total
        self._shift += apart * there.size / total
        self.low, self.high = min(self.low, float(there.min())), max(self.high, float(there.max()))
        self.count = total

    @property
    def mean(self) -> float:
        """Of the values that are there."""
        return self._origin + self._shift

    @property
    def counts(self) -> dict[str, int]:
        return dict(zip(self.code_of, self._word_counts.tolist(), strict=True))

    def odd(self, known: tuple[int, str] | None = None) -> str:
        """Names the word that keeps it from being a column of numbers, where most are: `known`, if not yet seen."""
        num_words = sum(count for value, count in self.counts.items() if not says_number(value))
        odd = self.first_odd or known
        return odd_one(*odd) if odd is not None and num_words < 0.5 * self.count else ""

    def standardisation(self, fill: float = 0.0) -> tuple[float, float]:
        """Mean and scale once `fill` stands for what is missing, as `Standardiser` would find them."""
        filled = fill - self._origin
        shift = (self.count * self._shift + self.num_missing * filled) / self.num_rows
        apart = self.count * (self._shift - shift) ** 2 + self.num_missing * (filled - shift) ** 2
        mean, scale = self._origin + shift, math.sqrt((self._squares + apart) / self.num_rows)
        limits = np.finfo(np.float64)
        return mean, 1.0 if scale <= 8.0 * limits.eps * max(abs(mean), limits.tiny) else scale

    def facts(self, sample: np.ndarray, known_odd: tuple[int, str] | None = None) -> ColumnFacts:
        """What the schema asks of a column. `sample` holds values of random rows, for the quantiles."""
        kind = self.kind or "number"
        common = (kind, self.num_rows, self.num_missing)
        identity = (kind in ("text", "date"), self._hash, tuple(self.code_of))
        if kind in ("text", "date"):
            is_constant = len(self.code_of) == 1 and not self.num_missing
            return ColumnFacts(*common, is_constant, identity, self.counts, self.odd(known_odd))
        if not self.count:
            return ColumnFacts(*common, False, identity)
        fill, low, high = self.mean, 0.0, 1.0
        if kind == "number":
            there = sample[~np.isnan(sample)]
            # where values are so rare that the sample has none, what is known of all rows must do
            low, high = np.quantile(there, [0.05, 0.95]).tolist() if there.size else (self.low, self.high)
            fill = float(np.median(there)) if there.size else self.mean
        is_constant = not self.num_missing and never_changes(self.low, self.high)
        return ColumnFacts(*common, is_constant, identity, {}, "", fill, *self.standardisation(fill), low, high)


def _joined(name: str, before: str | None, kind: str) -> str:
    joined = joined_kind(before, kind)
    if joined == "text" and {before, kind} & {"number", "boolean"}:  # the codes of words say nothing of numbers
        raise ValueError(
            f"`{shown(name)}` must be of one kind in all chunks, got {before} and {kind}. Read it as text."
        )
    return joined


def joined_kind(before: str | None, kind: str) -> str:
    """The kind that a whole column has if its parts have these: text, unless they agree."""
    return kind if before in (None, kind) else "text"


def _hashed(values: np.ndarray, missing: np.ndarray, weights: np.ndarray) -> int:
    """A sum over rows of mixed bits by random weights: other values in any row give another sum, all but surely."""
    bits = (values + 0.0).view(np.uint64)  # no -0.0
    bits[missing] = _NAN_BITS
    # the bits of small whole numbers differ in the highest places only; products carry upwards, so mix them down
    bits ^= bits >> np.uint64(32)
    bits *= _MIXER
    bits ^= bits >> np.uint64(29)
    bits *= weights
    return bits.sum(dtype=np.uint64).item()


class RowSample:
    """Uniformly random rows of a stream, as many as `size`: a reservoir. All rows, in order, where there are fewer."""

    def __init__(self, size: int, num_columns: int, rng: np.random.Generator):
        self._values = np.empty((num_columns, size))
        self._rng = rng
        self._seen = 0

    def add(self, columns: Sequence[np.ndarray]) -> None:
        size = self._values.shape[1]
        at = np.arange(self._seen, self._seen + len(columns[0]))
        # row t takes one of t + 1 places at random, and is kept if the reservoir has it
        places = np.where(at < size, at, self._rng.integers(0, at + 1))
        rows = np.flatnonzero(places < size)
        places = places[rows]
        for kept, values in zip(self._values, columns, strict=True):
            kept[places] = values[rows]
        self._seen += len(at)

    def column(self, at: int) -> np.ndarray:
        return self._values[at, : self._seen]


class TableSummary:
    """What `InputSchema.learn` needs to know of the input columns, gathered over chunks in bounded memory.

    `odd` may say which word, and in which row, is known to keep a column from being one of numbers.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        odd: Mapping[str, tuple[int, str]] | None = None,
        sample_rows: int = SAMPLE_ROWS,
        seed: int = 0,
    ):
        self.columns = {name: ColumnSummary(name) for name in names}
        self.num_rows = 0
        self._odd = dict(odd or {})
        draws, weights = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
        size = min(sample_rows, max(1000, _SAMPLE_CELLS // max(len(names), 1)))
        self._sample = RowSample(size, len(names), draws)
        self._weights = weights

    def add(self, chunk: Table) -> list[np.ndarray]:
        """Take in a chunk, and give its columns as floats: numbers as they are, words as codes, NaN where missing."""
        weights = self._weights.integers(0, 1 << 64, chunk.num_rows, dtype=np.uint64, endpoint=False) | np.uint64(1)
        values = []
        for name, summary in self.columns.items():
            column = chunk.columns[name]
            if column.kind in ("number", "boolean"):
                check_range(name, column.values, self.num_rows)
            values.append(summary.add(column, weights))
            if len(summary.code_of) > MAX_CATEGORIES:  # no later chunk can make it right
                check_few_words(name, summary.facts(np.empty(0), self._odd.get(name)))
        if values:
            self._sample.add(values)
        self.num_rows += chunk.num_rows
        return values

    def facts(self) -> dict[str, ColumnFacts]:
        return {
            name: one.facts(self._sample.column(at), self._odd.get(name))
            for at, (name, one) in enumerate(self.columns.items())
        }

    def schema(self) -> tuple[InputSchema, list[str]]:
        """The schema and the notes of `InputSchema.learn` on the whole table."""
        return InputSchema.from_facts(self.facts())


@dataclass(frozen=True)
class TargetState:
    """How targets were turned into numbers, and how to turn them back."""

    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    """The standardisation of each target of a regression."""
    kind: str = "number"
    """Of the classes: `text`, `boolean` or `number`."""
    classes: tuple[str | int | bool, ...] = ()
    """Sorted; the target of a classification is a position among them."""

    @property
    def task(self) -> str:
        return "classification" if self.classes else "regression"

    @property
    def labels(self) -> np.ndarray:
        """The classes as `Targets.values` would give them."""
        return np.array(self.classes, {"text": str, "boolean": bool, "number": np.int64}[self.kind])

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, saved: Any) -> "TargetState":
        try:
            listed: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
            state = cls(**listed)
            _check_state(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"The targets must be as they were saved, got damaged ones ({shown(error, 80)})."
            ) from None
        return state


def _check_state(state: TargetState) -> None:
    types = {"text": str, "boolean": bool, "number": int}
    moments = (*state.mean, *state.scale)
    good = [
        bool(state.names) and all(isinstance(name, str) for name in state.names),
        state.kind in types and all(type(one) is types[state.kind] for one in state.classes),
        all(isinstance(value, float) and math.isfinite(value) for value in moments) and min(state.scale, default=1) > 0,
        len(state.mean) == len(state.scale) == (0 if state.classes else len(state.names)),
    ]
    if not all(good):
        raise ValueError("names, numbers or classes")


class TargetSummary:
    """The target columns over their chunks: their task, and their standardisation or classes."""

    def __init__(self, names: Sequence[str], task: str | None):
        self.names = tuple(names)
        self._wanted = task
        self.task = task
        self._columns = {name: ColumnSummary(name) for name in names}
        self._classes: dict[float, int] = {}
        """Of numbers and booleans: value to code, in order of appearance."""

    def add(self, chunk: Table) -> list[np.ndarray]:
        """Take in a chunk, and give its columns as floats: numbers of a regression, codes of classes."""
        columns = chunk.select(self.names).columns
        for name, column in columns.items():
            self._check_known(name, column)
        self.task = task_of(Targets(columns), self._wanted)
        is_text = [column.kind for column in columns.values()] == ["text"]
        if self.task == "regression" or not is_text:
            Targets(columns).values(self.task)  # says what is wrong with them
        weights = np.ones(chunk.num_rows, np.uint64)
        values = [self._columns[name].add(column, weights) for name, column in columns.items()]
        if self.task == "classification":
            return [self._add_classes(columns[self.names[0]], values[0])]
        return values

    def _check_known(self, name: str, column: Column) -> None:
        if column.kind == "date":
            raise ValueError(f"`{name}` must be numbers or classes, got dates. Turn them into numbers, such as days.")
        before, missing = self._columns[name].num_rows, column.missing
        if missing.any():
            row = before + int(np.argmax(missing)) + 1
            raise ValueError(f"`{name}` must be known in every row, got a missing value in row {row}. Drop such rows.")
        if column.kind != "text":
            _check_numbers(name, column.values, before)

    def _add_classes(self, column: Column, values: np.ndarray) -> np.ndarray:
        name, summary = self.names[0], self._columns[self.names[0]]
        if column.kind == "text":
            if len(summary.code_of) > MAX_CLASSES:
                raise _too_many(name, len(summary.code_of), summary.odd())
            return values
        distinct, positions = np.unique(values, return_inverse=True)
        for value in distinct.tolist():
            self._classes.setdefault(value, len(self._classes))
        if len(self._classes) > MAX_CLASSES:
            raise ValueError(
                f"`{name}` must have at most {MAX_CLASSES} classes, got more than that. Pass `--task regression`."
            )
        return np.array([self._classes[value] for value in distinct.tolist()], np.float64)[positions]

    def state(self) -> TargetState:
        """Mean and scale or classes of all rows, once it is sure that there is something to predict."""
        if self.task == "classification":
            return self._class_state()
        moments = []
        for name, summary in self._columns.items():
            if summary.low == summary.high:
                raise ValueError(
                    f"`{name}` must vary, got {summary.low:g} in every row. Drop it: there is nothing to predict."
                )
            moments.append(summary.standardisation())
        mean, scale = zip(*moments, strict=True)
        return TargetState(self.names, mean, scale)

    def _class_state(self) -> TargetState:
        name, summary = self.names[0], self._columns[self.names[0]]
        kind = summary.kind or "number"
        if kind == "text":
            odd = summary.odd()
            if odd:
                raise _too_many(name, len(summary.code_of), odd)
            classes = tuple(sorted(summary.code_of))
        else:
            classes = tuple(bool(value) if kind == "boolean" else int(value) for value in sorted(self._classes))
        if len(classes) < 2:
            raise ValueError(
                f"`{name}` must have at least two classes, got {ticked(classes)} in every row. "
                "Drop it: there is nothing to predict."
            )
        return TargetState(self.names, kind=kind, classes=classes)

    def codes(self, state: TargetState) -> np.ndarray:
        """The position among the sorted classes of each code that `add` gave."""
        known = self._columns[self.names[0]].code_of if state.kind == "text" else self._classes
        return np.array([state.classes.index(value) for value in known], np.float64)


def _too_many(name: str, count: int, odd: str) -> ValueError:
    return ValueError(f"`{name}` must have at most {MAX_CLASSES} classes that are words, got {count} values{odd}.")


def _check_numbers(name: str, values: np.ndarray, before: int) -> None:
    bad = np.flatnonzero(~(np.abs(values) <= MAX_NUMBER))
    if bad.size:
        raise ValueError(
            f"`{name}` must lie within {MAX_NUMBER:g}, got {values[bad[0]]} in row {before + bad[0] + 1}. "
            "Drop such rows."
        )
