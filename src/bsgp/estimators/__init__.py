"""scikit-learn estimators: a table in, calibrated predictive distributions out, in the units of the table."""

from typing import TYPE_CHECKING

from bsgp.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from bsgp.estimators.base import BSGPEstimator
    from bsgp.estimators.classifier import BSGPClassifier
    from bsgp.estimators.persistence import load
    from bsgp.estimators.regressor import BSGPRegressor
    from bsgp.estimators.settings import Settings

__all__ = ["BSGPClassifier", "BSGPEstimator", "BSGPRegressor", "Settings", "load"]

# the command line reads `Settings` for its help texts, and should not wait for JAX
__getattr__ = lazy_names(
    "bsgp.estimators",
    {
        "BSGPClassifier": "classifier",
        "BSGPEstimator": "base",
        "BSGPRegressor": "regressor",
        "Settings": "settings",
        "load": "persistence",
    },
)
