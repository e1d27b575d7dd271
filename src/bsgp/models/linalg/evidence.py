"""Evidence of a sparse GP under Gaussian noise, u integrated out, with its gradient written by hand.

With u integrated out this is nearly all of the work of a gradient. Autodiff would go back through the Cholesky factor
of H; the closed form needs its inverse and a single M x M x n product. Tests compare the two.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bsgp.models.linalg.conditional import invert_lower, row_blocks
from bsgp.models.linalg.numerics import LOG_2PI

RowBlocks = list[Float[Array, "_ n"]]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def log_evidence(
    A: RowBlocks,
    y: Float[Array, " n"],
    variance: Float[Array, " n"],
    times: float,
    row_weight: Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Log of the integral over V ~ N(0, I) of `N(y; A^T V, variance)`, each row counted `times * row_weight` times.

    A row that counts w times has the density `N(y_n; a_n^T V, v_n)^w`. That is a Gaussian of variance `v_n / w` but for
    the factor `sqrt(2 pi v_n / w) / sqrt(2 pi v_n)^w`, which depends on `v_n` and is part of the value. There is no
    gradient with respect to the weights.
    """
    return _forward(A, y, variance, times, row_weight)[0]


def _forward(A, y, variance, times, row_weight):
    times = times if row_weight is None else times * row_weight
    weight = jnp.sqrt(times / variance)
    B, t = [a * weight[None, :] for a in A], y * weight
    Bt = jnp.concatenate([b @ t for b in B])
    root = jnp.linalg.cholesky(jnp.eye(Bt.shape[0], dtype=Bt.dtype) + _gram(B))
    inverse_root = invert_lower(root)
    half = inverse_root @ Bt
    value = -0.5 * (jnp.sum(times * (LOG_2PI + jnp.log(variance)) + t**2) - jnp.sum(half**2))
    value = value - jnp.sum(jnp.log(jnp.diag(root)))
    return value, (A, B, y, variance, weight, inverse_root, half, row_weight)


def _backward(times, residuals, cotangent):
    A, B, y, variance, weight, inverse_root, half, row_weight = residuals
    times = times if row_weight is None else times * row_weight
    mean = row_blocks((inverse_root.T @ half)[:, None])  # of V
    error = y * weight - reduce(jnp.add, [m[:, 0] @ b for m, b in zip(mean, B, strict=True)])
    H_inv = inverse_root.T @ inverse_root
    solved = [rows @ jnp.concatenate(B) for rows in row_blocks(H_inv)]  # H^-1 B
    # d value / dB = mean error^T - H^-1 B, and d value / dt = -error
    dB = [m * error[None, :] - s for m, s in zip(mean, solved, strict=True)]
    d_weight = reduce(jnp.add, [jnp.sum(a * d, axis=0) for a, d in zip(A, dB, strict=True)]) - y * error
    dA = [cotangent * d * weight[None, :] for d in dB]
    d_variance = -0.5 * (times + d_weight * weight) / variance
    no_slope = None if row_weight is None else jnp.zeros_like(row_weight)
    return dA, -cotangent * error * weight, cotangent * d_variance, no_slope


log_evidence.defvjp(_forward, _backward)


def _gram(B: RowBlocks) -> Float[Array, "M M"]:
    """`B B^T`, of which a block above the diagonal is the transpose of one below."""
    products = {(i, j): b @ c.T for i, b in enumerate(B) for j, c in enumerate(B) if j <= i}
    return jnp.block([[products[i, j] if j <= i else products[j, i].T for j in range(len(B))] for i in range(len(B))])
