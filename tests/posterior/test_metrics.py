import numpy as np
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from bsgp.posterior.metrics import auc, coverage, error_rate, gaussian_crps, mean_auc, mnll, rmse


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


def test_crps_of_a_gaussian_is_its_integral():
    grid = np.linspace(-12, 12, 200_001)
    for y in (-1.0, 0.3, 2.5):
        integral = np.trapezoid((norm.cdf(grid, 0.5, 1.7) - (grid >= y)) ** 2, grid)
        assert_allclose(gaussian_crps(np.array(y), np.array(0.5), 1.7), integral, rtol=1e-4)


def test_auc_counts_pairs_in_order(rng):
    positive = rng.random(60) < 0.4
    score = np.round(rng.standard_normal(60) + positive, 1)  # with ties
    higher = score[positive][:, None] - score[~positive][None, :]
    assert_allclose(auc(positive, score), np.mean((higher > 0) + 0.5 * (higher == 0)))
    assert_allclose(auc(positive, score), roc_auc_score(positive, score), rtol=1e-12)
    score[:2] = -np.inf, np.inf
    assert_allclose(auc(positive, score), auc(positive, np.clip(score, -100, 100)), rtol=1e-12)
    assert np.isnan(auc(np.ones(3, bool), np.arange(3.0)))


def test_auc_of_several_classes_is_the_mean_against_the_rest():
    codes = np.array([0, 1, 2, 2])
    probability = np.eye(3)[codes]
    assert mean_auc(codes, probability) == 1.0
    assert mean_auc(codes, np.full((4, 3), 1 / 3)) == 0.5
    assert mean_auc(np.array([0, 1]), np.array([[0.3, 0.7], [0.8, 0.2]])) == 0.0
