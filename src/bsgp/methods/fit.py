"""The result of every method."""

from typing import NamedTuple

from bsgp.inference.history import History
from bsgp.inference.sampling import Run
from bsgp.posterior.posterior import Posterior


class Fit(NamedTuple):
    """A posterior, and how the fit went."""

    posterior: Posterior
    history: History
    run: Run | None = None
    """The run of a method whose chains can be continued, else None."""
