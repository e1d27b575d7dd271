"""What an experiment is: runs that any process can do alone, and what is shown of their records.

A file of an experiment has `ABOUT`, a sentence; `plan(choice)`, its runs in the order in which they are worth doing;
and `show(records, paper)`, its figures and tables from whatever records are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bsgp.checks import check_option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bsgp.experiments.paper import Paper

EXPERIMENTS = (
    "banana", "priors", "ablation", "objectives", "objective-by-depth", "uci-dgp", "training-time", "prediction-time",
    "structured", "airline", "higgs", "peers",
)  # fmt: skip
KINDS = ("uci", "banana", "prediction-time", "classification", "peers")
"""Kinds of runs; most experiments are made of `uci` runs."""


class Run(Protocol):
    """Settings of one run: a frozen dataclass of plain values, so that it can be sent to another process."""

    kind: ClassVar[str]
    """Its file in this folder, with `Settings`, the dataclass, and `run(settings, data_dir)`, which gives a record."""

    @property
    def key(self) -> str:
        """Its name in the results: two runs with one key are the same run."""
        ...


@dataclass(frozen=True)
class Choice:
    """What a user narrows an experiment down to; None leaves it to the experiment."""

    datasets: tuple[str, ...] | None = None
    folds: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    depths: tuple[int, ...] | None = None
    seed: int = 0
    quick: bool = False
    """A form that ends within minutes and shows that everything works; its figures mean nothing."""


@dataclass(frozen=True)
class Drawing:
    """A figure, under the name of its files, with a caption that says what was run."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Sheet:
    """A table of words and numbers that are printed already."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """Cells (row, column) to be set in bold."""


class Experiment(Protocol):
    """A file of an experiment."""

    ABOUT: str

    def plan(self, choice: Choice) -> Sequence[Run]: ...

    def show(self, records: Sequence[dict], paper: "Paper") -> list[Drawing | Sheet]: ...


def load_experiment(name: str) -> Experiment:
    check_option("experiment", name, EXPERIMENTS)
    module: Any = import_module(f"bsgp.experiments.{name.replace('-', '_')}")
    return module


def load_kind(kind: str) -> Any:
    """The file of a kind of runs."""
    check_option("kind", kind, KINDS)
    return import_module(f"bsgp.experiments.{kind.replace('-', '_')}")


def kind_of(record: dict) -> str:
    return record.get("kind", "uci")
