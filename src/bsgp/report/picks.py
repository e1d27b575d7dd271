"""Fewer rows and draws where all of them would cost too much: evenly spaced, and always the same."""

import jax
import numpy as np

from bsgp.posterior import Posterior


def evenly(num: int, most: int) -> np.ndarray:
    """At most `most` of `num` positions, from the first to the last."""
    return np.unique(np.round(np.linspace(0, num - 1, min(num, most))).astype(int))


def thinned(posterior: Posterior, most: int) -> Posterior:
    """At most that many draws in all, but one of each chain."""
    picked = evenly(posterior.num_draws, max(1, most // posterior.num_chains))
    with jax.enable_x64(True):  # else float64 would become float32 on the way
        return Posterior(jax.tree.map(lambda draws: draws[:, picked], posterior.model))
