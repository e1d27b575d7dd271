"""The last fit of an estimator, which `warm_start` continues."""

from typing import NamedTuple

from bsgp.estimators.settings import Settings
from bsgp.methods.fit import Fit


class Session(NamedTuple):
    """A fit, the rows it was of, and its settings."""

    fitted: Fit
    fingerprint: str
    settings: Settings
