import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

from bsgp.models.linalg.numerics import (
    add_jitter,
    gauss_hermite,
    log_mean_exp,
    normal_lattice,
    relative_jitter,
    squared_distance,
)


def test_squared_distance(rng):
    X, X2 = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    assert_allclose(squared_distance(jnp.asarray(X), jnp.asarray(X2)), cdist(X, X2) ** 2, atol=1e-12)
    assert (squared_distance(jnp.asarray(X), jnp.asarray(X)) >= 0).all()


def test_jitter_follows_the_scale_of_the_matrix():
    K = jnp.eye(3) * 50.0
    assert_allclose(add_jitter(K, 1e-3), np.eye(3) * 50.05)
    assert relative_jitter(jnp.float64) == 1e-7
    assert 1e-4 < relative_jitter(jnp.float32) < 1e-3


def test_gauss_hermite_integrates_moments_exactly():
    nodes, weights = gauss_hermite(10)
    for power, moment in ((0, 1), (1, 0), (2, 1), (4, 3), (8, 105)):
        assert_allclose(np.sum(weights * nodes**power), moment, atol=1e-10)


def test_lattice_has_the_moments_of_a_standard_normal():
    points = normal_lattice(512, 4)
    assert_allclose(points.mean(axis=0), 0, atol=1e-12)
    assert_allclose(np.cov(points.T, bias=True), np.eye(4), atol=0.05)


def test_log_mean_exp_does_not_overflow():
    assert_allclose(log_mean_exp(jnp.asarray([1000.0, 1000.0]), axis=0), 1000.0)
    assert_allclose(log_mean_exp(jnp.log(jnp.asarray([1.0, 3.0])), axis=0), np.log(2.0))
