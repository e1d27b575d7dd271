"""Draws of a fitted model, their predictions, and statistics of both."""

from bsgp.posterior.posterior import AtTargets, Entropies, MeanAndVariances, Posterior, Thinned

__all__ = ["AtTargets", "Entropies", "MeanAndVariances", "Posterior", "Thinned"]
