"""The parts of an experiment: settings of runs that any process can do alone, figures and tables of their records.

Every file in `paper` ends with the `Experiment` objects that it defines; `load_experiment` finds them by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from bsgp.runtime.checks import check_option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bsgp.experiments.figures.authors import Paper

EXPERIMENT_OBJECTS = {
    "banana": "banana:BANANA",
    "priors": "priors:PRIORS",
    "ablation": "ablation:ABLATION",
    "objectives": "objectives:OBJECTIVES",
    "objective-by-depth": "objective_by_depth:OBJECTIVE_BY_DEPTH",
    "uci-dgp": "uci_dgp:UCI_DGP",
    "training-time": "training_time:TRAINING_TIME",
    "prediction-time": "prediction_time:PREDICTION_TIME",
    "structured": "structured:STRUCTURED",
    "airline": "airline_and_higgs:AIRLINE",
    "higgs": "airline_and_higgs:HIGGS",
    "peers": "peers:PEER_COMPARISON",
}
"""Module in `bsgp.experiments.paper` and name of the `Experiment` in it, imported when they are asked for."""
EXPERIMENTS = tuple(EXPERIMENT_OBJECTS)
KINDS = ("uci", "banana", "prediction-time", "classification", "peers")
"""Kinds of runs. Most experiments consist of `uci` runs."""


class RunSettings(Protocol):
    """Settings of one run: a frozen dataclass of plain values, so that it can be sent to another process."""

    kind: ClassVar[str]
    """One of `KINDS`: a module in `kinds` with the dataclass `Settings` and `run(settings, data_dir)`."""

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        ...


Read = TypeVar("Read")


def read_fields(cls: type[Read], record: dict, **given: Any) -> Read:
    """Build a dataclass from the entries of a record that have its fields' names, and from the fields given.

    Fields that an older record lacks have their defaults.
    """
    names = {one.name for one in fields(cls)} - given.keys()  # pyright: ignore[reportArgumentType]: it is a dataclass
    return cls(**given, **{name: record[name] for name in names if name in record})


@dataclass(frozen=True)
class Choice:
    """Part of an experiment that a user selects. None: the experiment's own choice."""

    datasets: tuple[str, ...] | None = None
    folds: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    depths: tuple[int, ...] | None = None
    seed: int = 0
    quick: bool = False
    """Whether to plan a short form of some minutes. It shows that everything works; its scores mean nothing."""


@dataclass(frozen=True)
class Drawing:
    """A figure with the stem of its file names and a caption that describes the runs."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Sheet:
    """A table of formatted cells."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """Cells (row, column) set in bold."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper: the runs behind it, and how their records are shown."""

    name: str
    about: str
    """One sentence for `bsgp bench list`."""
    plan: "Callable[[Choice], Sequence[RunSettings]]"
    """Returns the runs of a choice, the most useful ones first."""
    show: "Callable[[Sequence[dict], Paper], list[Drawing | Sheet]]"
    """Returns figures and tables of all records that belong to the experiment, beside the authors' numbers."""


def load_experiment(name: str) -> Experiment:
    """Import the experiment of that name."""
    module, attribute = EXPERIMENT_OBJECTS[check_option("experiment", name, EXPERIMENTS)].split(":")
    return getattr(import_module(f"bsgp.experiments.paper.{module}"), attribute)


def load_kind(kind: str) -> Any:
    """Import the module of a kind of runs."""
    check_option("kind", kind, KINDS)
    return import_module(f"bsgp.experiments.kinds.{kind.replace('-', '_')}")


def kind_of(record: dict) -> str:
    """Kind of a recorded run. The oldest records name none and are all `uci` runs."""
    return record.get("kind", "uci")
