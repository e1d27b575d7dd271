"""Draws of a fitted model, their predictions, and statistics of both."""

from bsgp.posterior.posterior import Posterior, Thinned
from bsgp.posterior.results import AtTargets, Entropies, MeanAndVariances

__all__ = ["AtTargets", "Entropies", "MeanAndVariances", "Posterior", "Thinned"]
