"""Jitter, distances and quadrature.

Shapes throughout `bsgp.models`: `Kzz [M M]`, `Kzx [M N]`, whitened `V [M P]`, `A = Lz^-1 Kzx [M N]`.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

LOG_2PI = math.log(2.0 * math.pi)


class Marginals(NamedTuple):
    """Independent Gaussians, one per row and output."""

    mean: Float[Array, "*rows P"]
    variance: Float[Array, "*rows P"]


def relative_jitter(dtype) -> float:
    """Default jitter of `Kzz`, relative to its mean diagonal.

    The paper authors' 1e-7, or the square root of the machine epsilon if that is larger (float32).
    """
    return max(1e-7, float(jnp.finfo(dtype).eps) ** 0.5)


def add_jitter(K: Float[Array, "M M"], jitter: float) -> Float[Array, "M M"]:
    """`K + jitter * mean(diag K) * I`: the jitter scales with the kernel."""
    size = K.shape[0]
    return K + (jitter / size) * jnp.trace(K) * jnp.eye(size, dtype=K.dtype)


def squared_distance(X: Float[Array, "N D"], X2: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """`|x - x'|^2` from one matrix product; rounding never makes it negative."""
    square = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(X2 * X2, axis=1)[None, :]
    return jnp.maximum(square - 2.0 * X @ X2.T, 0.0)


@lru_cache
def gauss_hermite(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x and weights w such that `sum_i w_i g(x_i)` approximates `E g(x)` for a standard normal x."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_points)
    return nodes, weights / weights.sum()


@lru_cache
def normal_lattice(num_points: int, num_dims: int) -> np.ndarray:
    """Quasi-random standard normal points `[num_points, num_dims]`, from a Sobol sequence, symmetric about zero."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    half = ndtri(Sobol(num_dims, rng=0).random((num_points + 1) // 2))
    return np.concatenate([half, -half])


def log_mean_exp(values: Array, axis: int) -> Array:
    """`log(mean(exp(values)))` along an axis, without overflow."""
    return logsumexp(values, axis=axis) - np.log(values.shape[axis])
