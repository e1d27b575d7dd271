import numpy as np
import pytest

from bsgp.posterior.statistics import ess, rhat


def test_rhat_and_ess_distinguish_good_chains_from_bad_ones(rng):
    good = rng.standard_normal((4, 500, 2))
    assert rhat(good).max() < 1.02
    assert ess(good).min() > 1500
    apart = good + np.arange(4)[:, None, None]
    assert rhat(apart).min() > 1.5
    slow = np.cumsum(good, axis=1)
    assert ess(slow).max() < 100


def test_rhat_of_one_chain_compares_its_halves(rng):
    draws = rng.standard_normal((1, 400, 2))
    draws[..., 1] += np.linspace(0, 3, 400)
    still, moving = rhat(draws)
    assert still < 1.02
    assert moving > 1.2


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="chains, draws"):
        rhat(np.zeros(10))
    with pytest.raises(ValueError, match="at least 4"):
        ess(np.zeros((2, 3)))
