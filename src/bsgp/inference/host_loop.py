"""The host loop of every method: between compiled chunks, the clock, progress, Ctrl-C and a look at energies."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bsgp.inference.events import Dropped
from bsgp.inference.history import Report
from bsgp.runtime.errors import DivergenceError


class Clock:
    """When a fit started and when it must end."""

    def __init__(self, max_seconds: float | None = None):
        self._started, self.max_seconds = time.monotonic(), max_seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def is_past(self, share: float = 1.0) -> bool:
        """Whether that share of the time limit is over."""
        return self.max_seconds is not None and self.seconds > share * self.max_seconds

    def resume_from(self, seconds: float) -> None:
        """Count the seconds that an earlier process has spent on this fit."""
        self._started = time.monotonic() - seconds


class EnergyTrace:
    """Energies per row of every phase so far, `[C T]`."""

    def __init__(self, by_phase: dict[str, np.ndarray] | None = None):
        self.by_phase = dict(by_phase or {})

    def done(self, phase: str) -> int:
        """Updates of a phase so far."""
        return self.by_phase[phase].shape[1] if phase in self.by_phase else 0

    def record(self, phase: str, energy: np.ndarray) -> None:
        """Append the energies of a chunk `[C T]`, or raise `DivergenceError` if one is not finite."""
        finite = np.isfinite(energy)
        if not finite.all():
            chain = int(np.argmin(finite.all(axis=1)))
            update = self.done(phase) + int(np.argmin(finite[chain]))
            event = Dropped(chain, phase, update, "became non-finite in the energy")
            raise DivergenceError(event.as_error, event)
        earlier = [self.by_phase[phase]] if phase in self.by_phase else []
        self.by_phase[phase] = np.concatenate([*earlier, energy], axis=1)

    def keep(self, chains: np.ndarray) -> None:
        """Forget all chains but those at these places."""
        self.by_phase = {phase: energy[chains] for phase, energy in self.by_phase.items()}


class HostLoop:
    """Hands out chunks of a phase until it is done, its share of the time is over, or the user presses Ctrl-C.

    The body of the loop runs a compiled chunk and calls `energy.record`. With several processes `agreed` turns a flag
    of the first process into that of all of them: all must stop at the same chunk.
    """

    def __init__(
        self,
        report: Report,
        clock: Clock,
        energy: EnergyTrace | None = None,
        agreed: Callable[[bool], bool] = bool,
    ):
        self.report, self.clock, self._agreed = report, clock, agreed
        self.energy = EnergyTrace() if energy is None else energy
        self.interrupted = False

    def chunks(
        self, phase: str, total: int, chunk: int, *, share: float = 1.0, planned: int | None = None
    ) -> Iterator[int]:
        """Sizes of the chunks that are left of a phase of `total` updates; progress is reported out of `planned`."""
        planned = total if planned is None else planned
        while self.energy.done(phase) < total:
            size = min(chunk, total - self.energy.done(phase))
            yield size
            done = self.energy.done(phase)
            latest = float(np.mean(self.energy.by_phase[phase][:, -size:]))
            self.report(phase, min(done, planned), planned, latest)
            if done < total and self._is_late(share):
                self.interrupted = True
                break

    def _is_late(self, share: float) -> bool:
        return self.clock.max_seconds is not None and self._agreed(self.clock.is_past(share))

    @contextmanager
    def stoppable(self, has_result: Callable[[], bool]) -> Iterator[None]:
        """A block that Ctrl-C ends early if there is a result to keep; otherwise Ctrl-C is raised as usual."""
        try:
            yield
        except KeyboardInterrupt:
            if not has_result():
                raise
            self.interrupted = True


def even_chunk(total: int, most: int) -> int:
    """A size of chunks that divides `total`, if one is near `most`: a smaller last chunk would be compiled again."""
    return next((size for size in range(min(most, total), most // 2, -1) if total % size == 0), most)
