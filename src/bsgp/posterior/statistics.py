"""Convergence statistics: R-hat and effective sample size of draws `[C S ...]`, computed by ArviZ."""

import numpy as np

from bsgp.runtime.checks import check_count

TAILS = (0.05, 0.95)


def rhat(draws) -> np.ndarray:
    """Rank-normalised split R-hat of every scalar: near 1 if chains agree. A single chain is split in two."""
    chains = _as_draws(draws)
    if chains.shape[0] == 1:  # ArviZ would return NaN
        half = chains.shape[1] // 2
        chains = np.stack([chains[0, :half], chains[0, -half:]])
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that do not move
        return np.asarray(_array_stats().rhat(chains, chain_axis=0, draw_axis=1))


def ess(draws, method: str = "bulk") -> np.ndarray:
    """Effective sample size of every scalar: `bulk`, or `tail` for that of the 5% and 95% quantiles."""
    prob = TAILS if method == "tail" else None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(_array_stats().ess(_as_draws(draws), chain_axis=0, draw_axis=1, method=method, prob=prob))


def _array_stats():
    """ArviZ's functions on plain arrays."""
    # not `arviz_stats.rhat` and `.ess`: they exist only with the optional dependency xarray-einstats. If `base` moves,
    # R-hat and ESS fail here with an ImportError, and nothing else does
    from arviz_stats.base import array_stats

    return array_stats


def _as_draws(draws) -> np.ndarray:
    draws = np.asarray(draws)
    if draws.ndim < 2:
        raise ValueError(f"`draws` must start with (chains, draws), got shape {draws.shape}. Stack the chains.")
    check_count("the number of draws", draws.shape[1], minimum=4)
    return draws
