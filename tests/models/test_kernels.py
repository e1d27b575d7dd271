import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as sk
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.testing import assert_allclose

from bsgp.models.kernels import (
    RBF,
    ActiveDimensions,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    stationary,
)

LENGTHSCALES = jnp.asarray([0.7, 1.3])
VARIANCE = jnp.asarray(0.6)


def inputs(rng):
    return rng.standard_normal((9, 2)), rng.standard_normal((6, 2))


ARD = [
    (RBF(VARIANCE, LENGTHSCALES), sk.RBF([0.7, 1.3])),
    (Matern12(VARIANCE, LENGTHSCALES), sk.Matern([0.7, 1.3], nu=0.5)),
    (Matern32(VARIANCE, LENGTHSCALES), sk.Matern([0.7, 1.3], nu=1.5)),
    (Matern52(VARIANCE, LENGTHSCALES), sk.Matern([0.7, 1.3], nu=2.5)),
]
EVERY = [kernel for kernel, _ in ARD] + [
    RationalQuadratic(VARIANCE, LENGTHSCALES, jnp.asarray(1.4)),
    Periodic(VARIANCE, LENGTHSCALES, jnp.asarray([2.0, 3.0])),
    Linear(jnp.asarray([0.5, 2.0]), jnp.asarray(0.3)),
    ActiveDimensions(RBF(VARIANCE, jnp.asarray([0.9])), (1,)),
]
EVERY += [EVERY[0] + EVERY[6], EVERY[0] * EVERY[5], EVERY[0] * EVERY[1] + EVERY[6]]


@pytest.mark.parametrize(("kernel", "oracle"), ARD, ids=lambda k: type(k).__name__)
def test_stationary_kernels_are_scikit_learns(kernel, oracle, rng):
    X, X2 = inputs(rng)
    assert_allclose(kernel(jnp.asarray(X), jnp.asarray(X2)), 0.6 * oracle(X, X2), rtol=1e-9)


def test_rational_quadratic_and_periodic_are_scikit_learns(rng):
    X, X2 = inputs(rng)
    same = jnp.full(2, 0.8)
    rational = RationalQuadratic(VARIANCE, same, jnp.asarray(1.4))
    assert_allclose(rational(jnp.asarray(X), jnp.asarray(X2)), 0.6 * sk.RationalQuadratic(0.8, 1.4)(X, X2), rtol=1e-9)
    # scikit-learn's has 2 sin^2 / l^2 and one input; ours 1/2 sin^2 / l^2: its lengthscale is twice ours
    periodic = Periodic(VARIANCE, jnp.asarray([0.8]), jnp.asarray([2.5]))
    oracle = sk.ExpSineSquared(1.6, 2.5)(X[:, :1], X2[:, :1])
    assert_allclose(periodic(jnp.asarray(X[:, :1]), jnp.asarray(X2[:, :1])), 0.6 * oracle, rtol=1e-9)


def test_linear_kernel_is_a_weighted_inner_product(rng):
    X, X2 = inputs(rng)
    expected = X @ np.diag([0.5, 2.0]) @ X2.T + 0.3
    assert_allclose(EVERY[6](jnp.asarray(X), jnp.asarray(X2)), expected)


def test_sums_and_products_mix(rng):
    """`a * b + c` must not become `a + b + c`."""
    X, X2 = (jnp.asarray(v) for v in inputs(rng))
    a, b, c = EVERY[0], EVERY[1], EVERY[6]
    assert_allclose((a * b + c)(X, X2), a(X, X2) * b(X, X2) + c(X, X2))
    assert_allclose((a * (b + c))(X, X2), a(X, X2) * (b(X, X2) + c(X, X2)))


def test_active_dimensions_ignore_the_others(rng):
    X, X2 = (jnp.asarray(v) for v in inputs(rng))
    kernel = EVERY[7]
    assert_allclose(kernel(X, X2), kernel(X.at[:, 0].set(99.0), X2))
    with pytest.raises(ValueError, match="columns"):
        ActiveDimensions(EVERY[0], (5,))(X, X2)
    with pytest.raises(ValueError, match="dimensions"):
        ActiveDimensions(EVERY[0], ())


@pytest.mark.parametrize("index", range(len(EVERY)))
@settings(max_examples=15)
@given(seed=some.integers(0, 10_000))
def test_every_kernel_is_symmetric_positive_and_agrees_with_its_diagonal(index, seed):
    X = jnp.asarray(np.random.default_rng(seed).standard_normal((8, 2)) * 2)
    K = EVERY[index](X, X)
    assert_allclose(K, K.T, atol=1e-12)
    assert_allclose(jnp.diag(K), EVERY[index].diag(X), rtol=1e-7)
    assert np.linalg.eigvalsh(K).min() > -1e-9


@pytest.mark.parametrize("index", range(len(EVERY)))
def test_gradients_stay_finite_where_points_coincide(index):
    X = jnp.zeros((3, 2))
    gradient = jax.grad(lambda X: jnp.sum(EVERY[index](X, X)))(X)
    assert np.isfinite(gradient).all()


def test_stationary_starts_where_the_authors_start():
    kernel = stationary(RBF, 9, jnp.float64)
    assert_allclose(kernel.variance, 0.1)
    assert_allclose(kernel.lengthscales, 3.0)
