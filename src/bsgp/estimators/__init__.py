"""scikit-learn estimators: a table in, calibrated predictive distributions out, in the units of the table."""

from bsgp.estimators.classifier import BSGPClassifier
from bsgp.estimators.files import load
from bsgp.estimators.regressor import BSGPRegressor

__all__ = ["BSGPClassifier", "BSGPRegressor", "load"]
