"""Probability of being the largest of several Gaussians, against fine grids and counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from numpy.testing import assert_allclose

from bsgp.models.likelihoods.classes import Categorical
from bsgp.models.likelihoods.largest import log_prob_largest, log_probs_largest
from bsgp.models.linalg.normal_cdf import log_ndtr
from bsgp.models.linalg.numerics import Marginals

NUM_ROWS = 45
one_of = jax.jit(log_prob_largest)
all_of = jax.jit(lambda mean, variance: jnp.exp(log_probs_largest(mean, variance)))
slopes_of = jax.jit(jax.grad(lambda index, m, v: jnp.sum(log_prob_largest(index, m, v)), (1, 2)))


def gaussians(num, spread, uneven=0.0):
    """Means and variances `[K N]`, and one Gaussian of each row."""
    rng = np.random.default_rng(num)
    variance = 1.0 + np.exp(uneven * rng.standard_normal((num, NUM_ROWS)))
    return spread * rng.standard_normal((num, NUM_ROWS)), variance, rng.integers(0, num, NUM_ROWS)


def log_prob_on_a_grid(index, mean, variance):
    std = np.sqrt(variance)
    low, high = (mean - 9 * std).min(axis=0), (mean + 9 * std).max(axis=0)
    t = np.linspace(low, high, 4_001)
    x = (t[:, None] - mean) / std
    rows = np.arange(len(index))
    log_below = scipy.special.log_ndtr(x)
    log_own = -0.5 * np.log(2 * np.pi * variance[index, rows]) - 0.5 * x[:, index, rows] ** 2
    log_terms = log_below.sum(axis=1) - log_below[:, index, rows] + log_own
    return scipy.special.logsumexp(log_terms, axis=0) + np.log(t[1] - t[0])


@pytest.mark.parametrize("num", [2, 3, 10, 100])
def test_the_integrals_are_those_of_a_fine_grid_however_small(num):
    mean, variance, index = gaussians(num, np.repeat([0.3, 3.0, 30.0], NUM_ROWS // 3))
    dense = log_prob_on_a_grid(index, mean, variance)
    assert dense.min() < -200  # rows whose class is as good as impossible are among them
    assert_allclose(one_of(index, mean, variance), dense, atol=1e-4 if num <= 10 else 2e-3)
    every = all_of(mean, variance)
    assert_allclose(every[index, np.arange(NUM_ROWS)], np.exp(dense), atol=1e-6)
    assert_allclose(every.sum(axis=0), 1.0, atol=1e-12)


def test_the_integrals_are_right_where_variances_differ():
    mean, variance, index = gaussians(10, 1.0, uneven=0.5)
    dense = log_prob_on_a_grid(index, mean, variance)
    assert_allclose(one_of(index, mean, variance), dense, atol=2e-3)
    assert_allclose(all_of(mean, variance)[index, np.arange(NUM_ROWS)], np.exp(dense), atol=1e-6)


def test_small_probabilities_keep_their_digits():
    mean, variance, _ = gaussians(3, 3.0)
    mean[:, 0] = 0.0, 6.0, -4.0
    dense = log_prob_on_a_grid(np.full(NUM_ROWS, 2), mean, variance)
    assert dense[0] < -12
    assert_allclose(np.log(all_of(mean, variance)[2]), dense, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("num", [2, 3, 10])
def test_gradients_are_those_of_differences_on_the_grid(num):
    mean, variance, index = gaussians(num, 2.0, uneven=0.2)
    by_mean, by_variance = slopes_of(index, mean, variance)
    for c in range(min(num, 3)):
        step = 1e-4 * (np.arange(num) == c)[:, None]
        both = [log_prob_on_a_grid(index, mean + sign * step, variance) for sign in (1, -1)]
        assert_allclose(by_mean[c], (both[0] - both[1]) / 2e-4, atol=2e-3)
        both = [log_prob_on_a_grid(index, mean, variance + sign * step) for sign in (1, -1)]
        assert_allclose(by_variance[c], (both[0] - both[1]) / 2e-4, atol=2e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_extreme_latent_values_have_finite_gradients(dtype):
    """A mislabelled row far from its class pulls as hard as a Gaussian tail does, and no harder."""
    f = jnp.asarray([[-300.0, 300.0, 0.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [40.0, 0.0, -40.0]], dtype)
    y = jnp.zeros((4, 1), dtype)
    likelihood = Categorical(3)
    value_and_slopes = jax.jit(
        jax.value_and_grad(lambda m, v: jnp.sum(likelihood.log_expected_prob(y, Marginals(m, v))), (0, 1))
    )
    for variance in (0.0, 1.0, 1e4):
        value, slopes = value_and_slopes(f, jnp.full_like(f, variance))
        assert np.isfinite(value)
        assert value < 0
        assert all(np.isfinite(slope).all() for slope in slopes)
        assert slopes[0][0, 0] > 0 > slopes[0][0, 1]


def test_log_ndtr_and_its_slope_are_scipys():
    x = np.concatenate([-np.logspace(-4, 4, 200), np.linspace(-40, 12, 521)])
    expected = scipy.special.log_ndtr(x)
    assert_allclose(jax.jit(log_ndtr)(jnp.asarray(x)), expected, rtol=1e-9, atol=1e-10)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(log_ndtr(x))))(jnp.asarray(x))
    assert_allclose(slope, np.exp(-0.5 * x**2 - expected) / np.sqrt(2 * np.pi), rtol=1e-7, atol=1e-300)


def test_memory_of_a_gradient_is_linear_in_the_number_of_classes():
    def temporary_bytes(num):
        f = Marginals(jnp.zeros((500, num)), jnp.ones((500, num)))
        loss = jax.jit(jax.grad(lambda f: jnp.sum(Categorical(num).log_expected_prob(jnp.zeros((500, 1)), f))))
        return loss.lower(f).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(100) < 13 * temporary_bytes(10)
