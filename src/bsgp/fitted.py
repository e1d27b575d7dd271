"""What every method returns."""

from typing import NamedTuple

from bsgp.history import History
from bsgp.infer import Run
from bsgp.posterior import Posterior


class Fit(NamedTuple):
    """A posterior, and how it came about."""

    posterior: Posterior
    history: History
    run: Run | None = None
    """Of methods whose chains can be gone on with."""
