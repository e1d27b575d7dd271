"""The evidence with u integrated out, and its hand-written gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal
from numpy.testing import assert_allclose

from bsgp.models.linalg.conditional import row_blocks
from bsgp.models.linalg.evidence import log_evidence


def problem(rng, size, num_rows=7):
    A = jnp.asarray(rng.standard_normal((size, num_rows)))
    return A, jnp.asarray(rng.standard_normal(num_rows)), jnp.asarray(rng.uniform(0.1, 2.0, num_rows))


@pytest.mark.parametrize("size", [1, 12, 65, 258])  # one block, one, two, four
def test_it_is_the_density_of_y_with_u_integrated_out(rng, size):
    A, y, variance = problem(rng, size)
    want = multivariate_normal.logpdf(y, jnp.zeros(len(y)), A.T @ A + jnp.diag(variance))
    assert_allclose(log_evidence(list(row_blocks(A)), y, variance, 1.0), want, rtol=1e-9)


def test_a_row_that_counts_three_times_is_three_rows(rng):
    A, y, variance = problem(rng, 12)
    thrice = [list(row_blocks(jnp.tile(A, 3))), jnp.tile(y, 3), jnp.tile(variance, 3)]
    assert_allclose(log_evidence(list(row_blocks(A)), y, variance, 3.0), log_evidence(*thrice, 1.0), rtol=1e-9)


@pytest.mark.parametrize("times", [1.0, 2.5])
@pytest.mark.parametrize("size", [1, 65, 258])
def test_its_gradient_is_that_of_autodiff(rng, size, times):
    A, y, variance = problem(rng, size)

    def by_autodiff(A, y, variance):  # N(y; 0, A^T A + variance / times), and what a row's other copies add
        fewer = multivariate_normal.logpdf(y, jnp.zeros(len(y)), A.T @ A + jnp.diag(variance / times))
        return fewer - 0.5 * jnp.sum((times - 1) * jnp.log(variance))

    got = jax.grad(lambda A, y, v: log_evidence(list(row_blocks(A)), y, v, times), (0, 1, 2))(A, y, variance)
    for one, other in zip(got, jax.grad(by_autodiff, (0, 1, 2))(A, y, variance), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-9 * np.abs(other).max())
