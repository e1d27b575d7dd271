"""A warm start that learns how far u spreads, instead of its mode.

The mode of u, Z and the kernel together overfits: a larger kernel variance lets a smaller V give the same function, at
no cost in the prior of V. A factorised Gaussian over V has no such mode, since its entropy counts. Adam ascends the
evidence bound of this Gaussian, with Z, kernel and noise as points; every step draws one V. The chains then start at
draws from it, in the typical set of the posterior rather than at its peak.
"""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from bsgp.inference.sghmc import normal_like
from bsgp.models.parameters import block_of

START_LOG_SPREAD = -2.0
"""Log standard deviation of V at the start, where the prior's is 0."""


def start_spreads(positions: PyTree, is_learned: bool) -> PyTree:
    """Log spreads of the leaves of u of `positions`, all at their start; None elsewhere, or everywhere."""

    def spread(path, leaf):
        return jnp.full_like(leaf, START_LOG_SPREAD) if is_learned and block_of(path) == "u" else None

    return jtu.tree_map_with_path(spread, positions)


def drawn_position(position: PyTree, log_spreads: PyTree, key: Array) -> PyTree:
    """The position with a draw of every leaf that has a spread."""
    noise = normal_like(key, log_spreads)

    def draw(log_spread, leaf, z):
        return leaf if log_spread is None else leaf + jnp.exp(log_spread) * z

    return jax.tree.map(draw, log_spreads, position, noise, is_leaf=lambda node: node is None)


def entropy(log_spreads: PyTree) -> Float[Array, ""]:
    """Entropy of the Gaussian, up to a constant."""
    return jnp.sum(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(log_spreads)]))
