"""Probability that one of several independent Gaussians is the largest: an integral over one variable.

With `t = m_c + s_c z` the value of Gaussian c, `P(c is the largest) = E_z prod_{j != c} Phi(a_j z + d_j)`, where
`a_j = s_c / s_j` and `d_j = (m_c - m_j) / s_j`. Time and memory are linear in the number of Gaussians. Arrays have rows
last, which are many, so that the compiler vectorises over them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bsgp.models.linalg.normal_cdf import log_ndtr, slope_of_log_ndtr
from bsgp.models.linalg.numerics import gauss_hermite

FEW = 4
"""Gaussians up to which the integrand is close to a normal density, so that fewer nodes and steps do."""
NUM_COMMON_NODES = 48
"""Nodes for all Gaussians together."""
FAR = 1e3
"""Distance in standard deviations at which `Phi` is 1."""


def log_prob_largest(
    index: Int[Array, " N"], mean: Float[Array, "K N"], variance: Float[Array, "K N"]
) -> Float[Array, " N"]:
    """Log probability that Gaussian `index` of each row is the largest.

    The integrand is log-concave: Gauss-Hermite quadrature around its mode, on the scale of its curvature there, takes
    few nodes, and is as good where the probability is tiny.
    """
    is_one = jnp.arange(mean.shape[0], dtype=index.dtype)[:, None] == index[None, :]
    std = jnp.sqrt(variance)
    own_mean, own_std = jnp.sum(jnp.where(is_one, mean, 0.0), axis=0), jnp.sum(jnp.where(is_one, std, 0.0), axis=0)
    a = jnp.where(is_one, 0.0, own_std[None, :] / std)
    d = jnp.where(is_one, FAR, (own_mean[None, :] - mean) / std)
    # the integral does not depend on where its nodes are, so nothing flows back through them
    mode, scale = _mode_and_scale(jax.lax.stop_gradient(a), jax.lax.stop_gradient(d))
    nodes, weights = (jnp.asarray(one, mean.dtype)[:, None] for one in gauss_hermite(_num_nodes(len(mean))))
    z = mode[None, :] + scale[None, :] * nodes  # [Q N]
    log_weights = jnp.log(weights * scale[None, :]) + 0.5 * (nodes**2 - z**2)
    log_below = jnp.sum(log_ndtr(a[None] * z[:, None, :] + d[None]), axis=1)
    return jax.nn.logsumexp(log_weights + log_below, axis=0)


def _mode_and_scale(a: Float[Array, "K N"], d: Float[Array, "K N"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Mode of the integrand, and the inverse root of its curvature, by Newton's method.

    The slope of the log integrand is decreasing and convex, so steps from the left never go too far. The start is the
    mode if there were one rival, with the tail of its `Phi` in place of `Phi`: it is on the left.
    """
    z = jnp.maximum(0.0, jnp.max(-a * d / (1.0 + a * a), axis=0))
    curvature = jnp.ones_like(z)
    for _ in range(_num_newton_steps(a.shape[0])):
        x = a * z[None, :] + d
        h = slope_of_log_ndtr(x)
        curvature = 1.0 + jnp.sum(a * a * h * (h + x), axis=0)
        z = z - (z - jnp.sum(a * h, axis=0)) / curvature
    return z, 1.0 / jnp.sqrt(curvature)


def _num_nodes(num_gaussians: int) -> int:
    """Nodes around the mode with which log p is right to about 1e-5, and to 1e-3 for a hundred Gaussians."""
    return 8 if num_gaussians <= FEW else 10


def _num_newton_steps(num_gaussians: int) -> int:
    """Many rivals push the mode far out, which takes more steps."""
    return 2 if num_gaussians <= FEW else 3 if num_gaussians <= 32 else 4


def log_probs_largest(mean: Float[Array, "K N"], variance: Float[Array, "K N"]) -> Float[Array, "K N"]:
    """Log probability of being the largest for every Gaussian, normalised over them.

    All share the nodes, where the product of all `Phi` is computed once. Absolute errors are below 1e-6 and relative
    ones below 1e-4 down to probabilities of about 1e-20.
    """
    std = jnp.sqrt(variance)
    low = jnp.max(mean - 8.0 * std, axis=0)
    high = jnp.max(mean + 7.0 * std, axis=0)
    log_std = jnp.log(std)

    def log_terms(share):
        t = low + (high - low) * share
        x = (t[None, :] - mean) / std
        log_below = log_ndtr(x)
        return jnp.sum(log_below, axis=0)[None, :] - log_below - 0.5 * x * x - log_std

    def add(total, share):  # one node at a time: rows, classes and draws are many already
        return jnp.logaddexp(total, log_terms(share)), None

    shares = jnp.linspace(0.0, 1.0, NUM_COMMON_NODES, dtype=mean.dtype)
    total, _ = jax.lax.scan(add, log_terms(shares[0]), shares[1:])
    # the constants of the density and the width of a node are the same for all, and leave with the normalisation
    return jax.nn.log_softmax(total, axis=0)
