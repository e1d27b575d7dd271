"""Draws of a fitted model, their predictions, and statistics of both."""

from bsgp.posterior.posterior import AtTargets, Posterior, Thinned

__all__ = ["AtTargets", "Posterior", "Thinned"]
