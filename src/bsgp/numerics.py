"""Linear algebra and quadrature that every higher room shares.

Shapes: `Kzz [M M]`, `Kzx [M N]`, `V [M P]` whitened, `A = Lz^-1 Kzx [M N]`.
"""

from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float


class Marginals(NamedTuple):
    """Independent Gaussians, one per row and output."""

    mean: Float[Array, "*rows P"]
    variance: Float[Array, "*rows P"]


def relative_jitter(dtype) -> float:
    """What is added to the diagonal of `Kzz`, as a share of its mean.

    The authors' 1e-7 in float64; the square root of the machine epsilon where that is larger.
    """
    return max(1e-7, float(jnp.finfo(dtype).eps) ** 0.5)


def add_jitter(K: Float[Array, "M M"], jitter: float) -> Float[Array, "M M"]:
    """`K + jitter * mean(diag K) * I`: relative, so that it follows the scale of the kernel."""
    size = K.shape[0]
    return K + (jitter / size) * jnp.trace(K) * jnp.eye(size, dtype=K.dtype)


def squared_distance(X: Float[Array, "N D"], X2: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """`|x - x'|^2` as one matrix product, never below zero."""
    square = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(X2 * X2, axis=1)[None, :]
    return jnp.maximum(square - 2.0 * X @ X2.T, 0.0)


@lru_cache
def gauss_hermite(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights with `sum_i w_i g(x_i) = E g(x)` for a standard normal x."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_points)
    return nodes, weights / weights.sum()


@lru_cache
def normal_lattice(num_points: int, num_dims: int) -> np.ndarray:
    """Quasi-random standard normal points `[num_points, num_dims]` (Sobol), symmetric about zero."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    half = ndtri(Sobol(num_dims, rng=0).random((num_points + 1) // 2))
    return np.concatenate([half, -half])


def log_mean_exp(values: Array, axis: int) -> Array:
    return logsumexp(values, axis=axis) - np.log(values.shape[axis])
