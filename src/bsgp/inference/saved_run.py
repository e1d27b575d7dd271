"""A run's state between the host loop and its checkpoints, with one process or several."""

from typing import NamedTuple

from bsgp.inference.checkpoints import Checkpoints, Snapshot, pack, unpack
from bsgp.inference.run_state import RunState, does_not_belong
from bsgp.runtime.mesh import Layout


class LoopFacts(NamedTuple):
    """What the host loop needs to resume, beside the state of the chains."""

    seconds: float
    batches: int
    learning_rate: float


class SavedRun:
    """Loads and saves a run. Of several processes only the first uses the disk."""

    def __init__(self, checkpoints: Checkpoints, layout: Layout | None):
        self._checkpoints: Checkpoints | None = checkpoints
        """None in all processes but the first, once a run has started."""
        self._layout = layout
        self._num_saved = 0
        """Stretches of draws that are on disk."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return self._checkpoints is not None and self._checkpoints.is_due

    def load(self) -> Snapshot | None:
        """The checkpoint to resume from, if there is one."""
        if self._checkpoints is None:
            return None
        if self._layout is None:
            return self._checkpoints.load()
        saved = self._checkpoints.load() if self._layout.is_first else None
        packed = self._layout.broadcast_bytes_from_first(b"" if saved is None else pack(saved))
        if not self._layout.is_first:
            self._checkpoints = None
        return unpack(packed) if packed else None

    def save(self, state: RunState, phase: str, facts: dict) -> None:
        if self._checkpoints is not None and self._checkpoints.save(state.snapshot(phase, self._num_saved, facts)):
            self._num_saved = len(state.draws)

    def restore(self, state: RunState, snapshot: Snapshot) -> tuple[str, LoopFacts]:
        """Put `state` where a snapshot was taken; its phase, and the facts of the host loop."""
        phase, facts = state.restore(snapshot), snapshot.facts
        try:
            found = LoopFacts(float(facts["seconds"]), int(facts["batches"]), float(facts["learning_rate"]))
        except (KeyError, TypeError, ValueError) as error:
            raise does_not_belong(error) from None
        self._num_saved = len(state.draws)
        return phase, found
