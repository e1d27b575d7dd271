"""Have the chains converged? R-hat and effective sample size of draws `[C S ...]`, as ArviZ computes them."""

import numpy as np

from bsgp.checks import check_count


def rhat(draws) -> np.ndarray:
    """Rank-normalised split R-hat of every scalar; near 1 where chains agree. One chain is split in two."""
    from arviz_stats.base import array_stats

    chains = _as_draws(draws)
    if chains.shape[0] == 1:  # ArviZ gives NaN
        half = chains.shape[1] // 2
        chains = np.stack([chains[0, :half], chains[0, -half:]])
    return np.asarray(array_stats.rhat(chains, chain_axis=0, draw_axis=1))


def ess(draws, method: str = "bulk") -> np.ndarray:
    """Effective number of independent draws of every scalar."""
    from arviz_stats.base import array_stats

    return np.asarray(array_stats.ess(_as_draws(draws), chain_axis=0, draw_axis=1, method=method))


def _as_draws(draws) -> np.ndarray:
    draws = np.asarray(draws)
    if draws.ndim < 2:
        raise ValueError(f"`draws` must start with (chains, draws), got shape {draws.shape}. Stack the chains first.")
    check_count("the number of draws", draws.shape[1], minimum=4)
    return draws
