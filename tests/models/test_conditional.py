"""The hand-written gradients agree with automatic differentiation to 1e-9 in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular
from numpy.testing import assert_allclose

from bsgp.models.linalg.conditional import (
    block_edges,
    invert_lower,
    row_blocks,
    sparse_conditional,
    whiten,
)

SIZES = [1, 12, 65, 258]  # one block, one, two, four; blocks of unequal sizes


def autodiff_conditional(Kzz, Kzx, V):
    A = solve_triangular(jnp.linalg.cholesky(Kzz), Kzx, lower=True)
    return A.T @ V, jnp.sum(A * A, axis=0)


def assert_same(got, want):
    assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())


def positive_definite(rng, size):
    root = rng.standard_normal((size, size))
    return jnp.asarray(root @ root.T / size + np.eye(size))


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_the_conditional(rng, size, num_outputs):
    num_rows = 40
    Kzz, Kzx = positive_definite(rng, size), jnp.asarray(rng.standard_normal((size, num_rows)))
    V = jnp.asarray(rng.standard_normal((size, num_outputs)))
    weights = jnp.asarray(rng.standard_normal((num_rows, num_outputs))), jnp.asarray(rng.standard_normal(num_rows))

    def with_gradient(conditional):
        def value(Kzz, Kzx, V):
            mean, explained = conditional(Kzz, Kzx, V)
            return jnp.sum(weights[0] * mean) + jnp.sum(weights[1] * explained**2)

        # compiled as a whole: one operation at a time takes ten seconds
        return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))(Kzz, Kzx, V)

    value, gradient = with_gradient(lambda Kzz, Kzx, V: sparse_conditional(Kzz, row_blocks(Kzx), V))
    expected_value, expected = with_gradient(autodiff_conditional)
    assert_allclose(value, expected_value, rtol=1e-10)
    assert_same(gradient[0], (expected[0] + expected[0].T) / 2)  # only the symmetric part of d/dKzz means anything
    assert_same(gradient[1], expected[1])
    assert_same(gradient[2], expected[2])


@pytest.mark.parametrize("size", [12, 65])
def test_whitening(rng, size):
    Kzz, Kzx = positive_definite(rng, size), jnp.asarray(rng.standard_normal((size, 40)))
    weights = jnp.asarray(rng.standard_normal((size, 40)))

    def with_gradient(whitening):
        return jax.jit(jax.value_and_grad(lambda *a: jnp.sum(weights * whitening(*a) ** 2), argnums=(0, 1)))(Kzz, Kzx)

    value, gradient = with_gradient(lambda Kzz, Kzx: jnp.concatenate(whiten(Kzz, row_blocks(Kzx))))
    expected_value, expected = with_gradient(
        lambda Kzz, Kzx: solve_triangular(jnp.linalg.cholesky(Kzz), Kzx, lower=True)
    )
    assert_allclose(value, expected_value, rtol=1e-10)
    assert_same(gradient[0], (expected[0] + expected[0].T) / 2)
    assert_same(gradient[1], expected[1])


@pytest.mark.parametrize("size", SIZES)
def test_inverse_of_a_triangle(rng, size):
    L = jnp.linalg.cholesky(positive_definite(rng, size))
    assert_allclose(jax.jit(invert_lower)(L) @ L, np.eye(size), atol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_blocks_cover_all_rows(rng, size):
    matrix = jnp.asarray(rng.standard_normal((size, 3)))
    assert_allclose(jnp.concatenate(row_blocks(matrix)), matrix)
    assert block_edges(size)[-1] == size
