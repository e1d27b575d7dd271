import numpy as np
from numpy.testing import assert_allclose
from scipy.stats import norm

from bsgp.evaluate import coverage, error_rate, mnll, rmse


def test_mnll_in_original_units_is_that_of_the_unscaled_density(rng):
    y, scale = rng.standard_normal((50, 2)) * 3 + 1, np.array([2.0, 5.0])
    standardised = norm.logpdf(y / scale, 0.1, 0.7)
    assert_allclose(mnll(standardised, scale), -norm.logpdf(y, 0.1 * scale, 0.7 * scale).mean())


def test_rmse_and_coverage():
    y = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert_allclose(rmse(y, y + np.array([[1.0], [-1.0], [1.0], [-1.0]])), 1.0)
    assert coverage(y, np.full_like(y, 0.5), np.full_like(y, 2.5)) == 0.5
    assert coverage(y, y, y) == 1.0


def test_error_rate_of_two_and_of_several_classes():
    assert error_rate(np.array([[1.0], [0.0], [1.0]]), np.array([[0.9], [0.6], [0.4]])) == 2 / 3
    probability = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    assert error_rate(np.array([[1.0], [2.0]]), probability) == 0.5


def test_rhat_of_one_chain_compares_its_halves(rng):
    from bsgp.diagnostics import rhat

    draws = rng.standard_normal((1, 400, 2))
    draws[..., 1] += np.linspace(0, 3, 400)
    still, moving = rhat(draws)
    assert still < 1.02
    assert moving > 1.2
