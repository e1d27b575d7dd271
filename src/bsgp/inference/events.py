"""Events of a run, one type each: what happened to which chain. Their sentences are made here and parsed nowhere."""

import abc
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

ADVICE = "Standardise X and y, lower `step_size` or `learning_rate`, or raise `jitter`."


@dataclass(frozen=True)
class Event(abc.ABC):
    """Something that happened to one chain."""

    chain: int

    @property
    def is_warning(self) -> bool:
        """Whether the user should hear of it."""
        return True

    @abc.abstractmethod
    def __str__(self) -> str: ...

    def of_chain(self, chain: int) -> "Event":
        """The event with another number of its chain."""
        return replace(self, chain=chain)


@dataclass(frozen=True)
class Failure(Event):
    """A chunk of updates in which a chain became non-finite or ran away."""

    kind: ClassVar[str]
    phase: str
    update: int
    """First bad update, counted from the start of the phase."""
    what: str
    """Such as `became non-finite in layers.0.Z`."""

    @property
    def _what_happened(self) -> str:
        return f"Chain {self.chain} {self.what} at update {self.update} of the {self.phase}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class SetBack(Failure):
    """The chain repeated the chunk with a shorter step or a lower rate."""

    kind = "set back"
    remedy: str

    @property
    def is_warning(self) -> bool:
        return self.phase == "draws"

    def __str__(self) -> str:
        return f"{self._what_happened}. It was set back to before that chunk and continued with {self.remedy}."


@dataclass(frozen=True)
class Dropped(Failure):
    """The chain failed however short its step, and was left out."""

    kind = "dropped"

    def __str__(self) -> str:
        return f"{self._what_happened}, however short its step, and was dropped. {ADVICE}"

    @property
    def as_error(self) -> str:
        """The sentence where no chain is left to continue with."""
        return f"{self._what_happened}. {ADVICE}"


@dataclass(frozen=True)
class Hot(Event):
    """The chain samples something visibly wider than the posterior."""

    block: str
    temperature: float

    def __str__(self) -> str:
        return (
            f"Chain {self.chain} runs hot: {self.block} has temperature {self.temperature:.2f} where 1 is right, "
            "so its draws are too wide."
        )


@dataclass(frozen=True)
class StillMoving(Event):
    """The chain's energy has a trend during the draws."""

    drift: float
    """Second half less first half of its energies, in standard errors."""

    def __str__(self) -> str:
        return (
            f"Chain {self.chain} still moves: its energy {'falls' if self.drift < 0 else 'rises'} during the draws "
            f"({abs(self.drift):.1f} standard errors between halves)."
        )


@dataclass(frozen=True)
class ManyDivergences(Event):
    """Too many of the chain's NUTS trajectories diverged."""

    share: float

    def __str__(self) -> str:
        return f"Chain {self.chain}: {self.share:.0%} of its draws diverged."


def failure_from_json(saved: dict[str, Any]) -> SetBack | Dropped:
    """The event that `Failure.to_json` wrote."""
    fields = {name: value for name, value in saved.items() if name != "kind"}
    return {one.kind: one for one in (SetBack, Dropped)}[saved["kind"]](**fields)
