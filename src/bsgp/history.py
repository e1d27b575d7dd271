"""What was seen on the way to a fit, whichever method made it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Report = Callable[[str, int, int, float], None]
"""`report(phase, updates done, updates planned, energy / N)`, called after every chunk."""


def silent(phase: str, done: int, total: int, energy: float) -> None:
    """A `Report` that says nothing."""


@dataclass(frozen=True)
class History:
    """Length, cost and health of a fit."""

    energy: dict[str, np.ndarray]
    """Of every phase: what was minimised or sampled, per row of the data, at every update, `[C T]`."""
    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool = False
    """Whether Ctrl-C or a time limit ended it before its plan."""
    warnings: tuple[str, ...] = ()
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """Of samplers with a temperature, for every leaf of the position: that of each chain, `[C]`."""
    step_size: float | None = None
    """Of samplers with a step size: the longest at the end."""
