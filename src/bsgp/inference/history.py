"""How a fit went, whichever method made it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bsgp.inference.events import Event

PHASES = ("network", "optimise", "warm start", "warm-up", "burn-in", "draws")
"""Phases of any method in order of time. Model files and checkpoints hold them in alphabetical order."""
Report = Callable[[str, int, int, float], None]
"""`report(phase, updates done, updates planned, energy / N)`, called after every chunk."""


def silent(phase: str, done: int, total: int, energy: float) -> None:
    """A `Report` that says nothing."""


@dataclass(frozen=True)
class History:
    """Energies, cost and events of a fit."""

    energy: dict[str, np.ndarray]
    """By phase: what was minimised or sampled, per row of the data, at every update, `[C T]`."""
    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool = False
    """Whether Ctrl-C or a time limit ended it before its plan."""
    events: tuple[Event, ...] = ()
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """Mean kinetic temperature of each chain during the draws, `[C]`, by leaf; empty for samplers without one."""
    step_sizes: tuple[np.ndarray, ...] = ()
    """Step sizes after every chunk of burn-in, `[C leaves]`; empty for methods without one."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about chains that should not be trusted."""
        return tuple(str(event) for event in self.events if event.is_warning)

    @property
    def step_size(self) -> float | None:
        """The longest step at the end."""
        return float(np.max(self.step_sizes[-1])) if self.step_sizes else None

    def then(self, later: "History") -> "History":
        """This history followed by a later one of the same chains."""
        both = self.energy.keys() & later.energy.keys()
        joined = {phase: np.concatenate([self.energy[phase], later.energy[phase]], axis=1) for phase in both}
        return History(
            energy={**self.energy, **later.energy, **joined},
            evaluations=self.evaluations + later.evaluations,
            seconds=self.seconds + later.seconds,
            interrupted=self.interrupted or later.interrupted,
            events=(*self.events, *later.events),
            temperature=self._temperature_with(later),
            step_sizes=self.step_sizes or later.step_sizes,
        )

    def _temperature_with(self, later: "History") -> dict[str, np.ndarray]:
        """Means over the draws of both."""
        if not self.temperature:
            return later.temperature
        before, after = (one.energy["draws"].shape[1] for one in (self, later))
        share = after / (before + after)
        return {
            name: (1 - share) * self.temperature[name] + share * later.temperature[name] for name in later.temperature
        }
