"""Kernel matrices with gradients written by hand, held to automatic differentiation at 1e-8 in float64."""

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose

from bsgp.models.kernels import RBF, Linear, Matern32, Matern52, Sum
from bsgp.models.linalg.gram import linear_gram, matern32, matern52, rbf_gram, stationary_gram

LENGTHSCALES, VARIANCE = jnp.asarray([0.5, 1.0, 2.0]), jnp.asarray(0.7)


def distances(X, X2, lengthscales):
    difference = (X[:, None, :] - X2[None, :, :]) / lengthscales[None, None, :]
    return jnp.sum(difference**2, axis=2)


def rbf_by_differences(X, X2, lengthscales, variance):
    return variance * jnp.exp(-0.5 * distances(X, X2, lengthscales))


def matern32_by_differences(X, X2, lengthscales, variance):
    r = jnp.sqrt(3.0 * distances(X, X2, lengthscales))
    return variance * (1.0 + r) * jnp.exp(-r)


def matern52_by_differences(X, X2, lengthscales, variance):
    r = jnp.sqrt(5.0 * distances(X, X2, lengthscales))
    return variance * (1.0 + r + r**2 / 3.0) * jnp.exp(-r)


def linear_by_differences(X, X2, variances, bias_variance):
    return jnp.sum(X[:, None, :] * X2[None, :, :] * variances[None, None, :], axis=2) + bias_variance


@pytest.mark.parametrize(
    ("gram", "by_differences"),
    [
        (rbf_gram, rbf_by_differences),
        (lambda *a: stationary_gram(matern32, *a), matern32_by_differences),
        (lambda *a: stationary_gram(matern52, *a), matern52_by_differences),
        (linear_gram, linear_by_differences),
    ],
    ids=["rbf", "matern32", "matern52", "linear"],
)
def test_a_matrix_and_its_gradient_are_those_of_autodiff(gram, by_differences, rng):
    X, X2 = jnp.asarray(rng.standard_normal((7, 3))), jnp.asarray(rng.standard_normal((9, 3)))
    weights = jnp.asarray(rng.standard_normal((7, 9)))

    def with_gradient(gram):
        value_and_grad = jax.value_and_grad(lambda *a: jnp.sum(weights * gram(*a)), argnums=(0, 1, 2, 3))
        return jax.jit(value_and_grad)(X, X2, LENGTHSCALES, VARIANCE)

    value, gradient = with_gradient(gram)
    expected_value, expected = with_gradient(by_differences)
    assert_allclose(value, expected_value, rtol=1e-10)
    for got, want in zip(gradient, expected, strict=True):
        assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "by_differences"),
    [
        (Matern32(VARIANCE, LENGTHSCALES), lambda X: matern32_by_differences(X, X, LENGTHSCALES, VARIANCE)),
        (Matern52(VARIANCE, LENGTHSCALES), lambda X: matern52_by_differences(X, X, LENGTHSCALES, VARIANCE)),
        (
            Sum(Linear(LENGTHSCALES, VARIANCE), RBF(VARIANCE, LENGTHSCALES)),
            lambda X: (
                linear_by_differences(X, X, LENGTHSCALES, VARIANCE) + rbf_by_differences(X, X, LENGTHSCALES, VARIANCE)
            ),
        ),
    ],
    ids=["matern32", "matern52", "linear + rbf"],
)
def test_points_against_themselves(kernel, by_differences, rng):
    """As Kzz is made: both arguments move, and pairs on the diagonal are at distance zero."""
    X, weights = jnp.asarray(rng.standard_normal((6, 3))), jnp.asarray(rng.standard_normal((6, 6)))
    apart = ~jnp.eye(6, dtype=bool)  # off the diagonal, where autodiff has no root of zero to differentiate

    def far(X):
        moved = jnp.where(apart, by_differences(X + 0.0), 0.0)
        return jnp.sum(weights * moved)

    got = jax.grad(lambda X: jnp.sum(jnp.where(apart, weights, 0.0) * kernel(X, X)))(X)
    step = 1e-6 * jnp.asarray(rng.standard_normal(X.shape))
    slope = (far(X + step) - far(X - step)) / 2.0
    assert_allclose(jnp.sum(got * step), slope, rtol=1e-6)
    on_diagonal = jax.grad(lambda X: jnp.sum(jnp.diag(kernel(X, X))))(X)
    assert_allclose(on_diagonal, jax.grad(lambda X: jnp.sum(kernel.diag(X)))(X), atol=1e-12)
