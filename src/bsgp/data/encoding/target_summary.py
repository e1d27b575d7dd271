"""Everything that training requires of the targets of a table on disk, gathered in one pass over its chunks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsgp.data.encoding.checks import OddValue, require
from bsgp.data.encoding.summaries import ColumnSummary
from bsgp.data.encoding.targets import (
    LABEL_TYPES,
    MAX_CLASSES,
    Targets,
    check_classes,
    check_not_constant,
    task_of,
)
from bsgp.data.tables.columns import Table, shortened

_CLASS_TYPES = {"text": str, "boolean": bool, "number": int}  # in JSON; `LABEL_TYPES` are those of arrays


@dataclass(frozen=True)
class TargetState:
    """The encoding of targets as numbers: a standardisation for a regression, classes for a classification."""

    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    """Mean and scale standardise each target of a regression."""
    kind: str = "number"
    """Kind of the classes: `text`, `boolean` or `number`."""
    classes: tuple[str | int | bool, ...] = ()
    """The sorted classes; targets are positions among them. Empty for a regression."""

    @property
    def task(self) -> str:
        return "classification" if self.classes else "regression"

    @property
    def labels(self) -> np.ndarray:
        """The classes as an array, with the type of `Targets.values`."""
        return np.array(self.classes, LABEL_TYPES[self.kind])

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, saved: Any) -> "TargetState":
        try:
            listed: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
            state = cls(**listed)
            _check_state(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = shortened(error, 80)
            raise ValueError(
                f"The targets must be as they were saved, got damaged ones ({why}). Train again."
            ) from None
        return state


def _check_state(state: TargetState) -> None:
    moments = (*state.mean, *state.scale)
    require(bool(state.names) and all(isinstance(name, str) for name in state.names), "`names` must be text")
    require(state.kind in _CLASS_TYPES, "`kind` is unknown")
    require(all(type(one) is _CLASS_TYPES[state.kind] for one in state.classes), "`classes` must be of one type")
    require(all(isinstance(value, float) and math.isfinite(value) for value in moments), "moments must be finite")
    require(min(state.scale, default=1) > 0, "`scale` must be positive")
    num_moments = 0 if state.classes else len(state.names)
    require(len(state.mean) == len(state.scale) == num_moments, "moments must match `names`")


class TargetSummary:
    """Running summary of the target columns over chunks: their task, and their standardisation or classes.

    `odd` holds the first word of text columns that an earlier pass took for numbers.
    """

    def __init__(self, names: Sequence[str], task: str | None, odd: Mapping[str, OddValue] | None = None):
        self.names = tuple(names)
        self.task = self._wanted = task
        self._odd = dict(odd or {})
        self._columns = {name: ColumnSummary(name) for name in names}
        self._code_of: dict[float, int] = {}
        """Codes of the classes that are numbers or booleans, in order of appearance."""

    def add(self, chunk: Table, row_weight: np.ndarray | None = None) -> list[np.ndarray]:
        """Adds a chunk. Returns its columns as floats: the numbers of a regression, the codes of classes."""
        columns = chunk.select(self.names).columns
        targets = Targets(columns, before=self._columns[self.names[0]].num_rows)
        self.task = task_of(targets, self._wanted)
        targets.check(self.task, self._odd)
        weights = np.ones(chunk.num_rows, np.uint64)
        values = [self._columns[name].add(column, weights, row_weight) for name, column in columns.items()]
        if self.task == "regression":
            return values
        name = self.names[0]
        codes = values[0] if columns[name].kind == "text" else self._add_classes(values[0])
        if len(self._codes) > MAX_CLASSES:  # later chunks cannot help
            check_classes(name, self._codes, self._odd_value)
        return [codes]

    def _add_classes(self, values: np.ndarray) -> np.ndarray:
        """Returns the codes of classes that are numbers or booleans."""
        distinct, positions = np.unique(values, return_inverse=True)
        codes = [self._code_of.setdefault(value, len(self._code_of)) for value in distinct.tolist()]
        return np.array(codes, np.float64)[positions]

    @property
    def _kind(self) -> str:
        return self._columns[self.names[0]].kind or "number"

    @property
    def _codes(self) -> Mapping[Any, int]:
        """Codes of the classes, in order of appearance."""
        return self._columns[self.names[0]].code_of if self._kind == "text" else self._code_of

    @property
    def _odd_value(self) -> OddValue | None:
        name = self.names[0]
        return self._columns[name].odd_value(self._odd.get(name)) if self._kind == "text" else None

    def state(self) -> TargetState:
        """Returns the standardisation or the classes of all rows; raises if there is nothing to learn."""
        if self.task == "classification":
            classes = tuple(_CLASS_TYPES[self._kind](value) for value in sorted(self._codes))
            check_classes(self.names[0], classes, self._odd_value)
            return TargetState(self.names, kind=self._kind, classes=classes)
        for name, summary in self._columns.items():
            check_not_constant(name, summary.low, summary.high)
        mean, scale = zip(*(summary.standardisation() for summary in self._columns.values()), strict=True)
        return TargetState(self.names, mean, scale)

    def class_positions(self, state: TargetState) -> np.ndarray:
        """Returns the position among the sorted classes of each code that `add` gave."""
        return np.array([state.classes.index(value) for value in self._codes], np.float64)
