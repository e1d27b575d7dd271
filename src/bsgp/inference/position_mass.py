"""The position mass: every coordinate moves on the scale on which the posterior varies. For exact gradients.

The root of the mean squared gradient, which minibatches leave us with, is half a preconditioner: it slows down
coordinates whose gradient varies for reasons of their own, such as the inducing inputs. Without gradient noise the
variance of the positions themselves can be learned during burn-in, and steps are then three times as long.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from bsgp.inference.sghmc import State
from bsgp.models.parameters import block_of

START_VARIANCES = {"u": 1.0, "Z": 1.0, "theta": 0.1, "noise": 1.0}
"""Variances of unconstrained coordinates before any was seen: u and Z are near their priors, theta is narrower."""
START_WEIGHT = 20.0
"""Positions of one chain that the start counts for."""
KEPT_SHARE = 0.5
"""Weight that earlier positions keep when those of another chunk are added: the first ones are on the way there."""
MAX_SEPARATE = 64
"""A leaf with more numbers has one variance per column, such as one per input for Z: a thousand cannot be learned."""


class Moments(NamedTuple):
    """Running moments of each chain's positions. Recent positions weigh the most."""

    weight: np.ndarray
    """Number of positions, less what was forgotten, `[C]`."""
    mean: np.ndarray
    """`[C d]`."""
    square: np.ndarray
    """Weighted sum of squared deviations from the mean, `[C d]`."""


def no_moments(num_chains: int, num_coordinates: int) -> Moments:
    """Moments before any position."""
    zeros = np.zeros((num_chains, num_coordinates))
    return Moments(np.zeros(num_chains), zeros, zeros)


def add_positions(moments: Moments, positions: PyTree) -> Moments:
    """Moments with the positions `[C S ...]` of another chunk."""
    flat = np.concatenate(
        [np.asarray(leaf).reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(positions)], axis=2
    )
    weight, new = KEPT_SHARE * moments.weight, flat.shape[1]
    total = weight + new
    mean = flat.mean(axis=1)
    shift = mean - moments.mean
    square = np.sum((flat - mean[:, None]) ** 2, axis=1) + KEPT_SHARE * moments.square
    square = square + shift**2 * (weight * new / total)[:, None]
    return Moments(total, moments.mean + shift * (new / total)[:, None], square)


def learned_variance(moments: Moments, position: PyTree) -> np.ndarray:
    """Variance of each coordinate within chains, `[d]`; `position` has the leaves of one chain.

    Within chains, because chains in different modes are farther apart than either mode is wide.
    """
    within = moments.square.sum(axis=0) / max(1.0, moments.weight.sum())
    share = moments.weight.mean() / (moments.weight.mean() + START_WEIGHT)
    variance = share * within + (1.0 - share) * start_variance(position)
    leaves = jax.tree.leaves(position)
    parts = np.split(variance, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return np.concatenate([_pooled(part, leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def _pooled(variance: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Flat variances of a leaf, pooled over its rows if they are too many to be learned one by one."""
    if variance.size <= MAX_SEPARATE:
        return variance
    by_row = variance.reshape(shape)
    return np.broadcast_to(by_row.mean(axis=0, keepdims=True), shape).ravel()


def start_variance(position: PyTree) -> np.ndarray:
    """Variance of each coordinate of a position of a model, before any was seen."""
    leaves = jtu.tree_leaves_with_path(position)
    return np.concatenate([np.full(leaf.size, START_VARIANCES[block_of(path) or "theta"]) for path, leaf in leaves])


def with_variance(sampler: State, variance: np.ndarray, num_counted: float) -> State:
    """Chains `[C ...]` whose stationary momenta are `eps` times the root of these variances `[d]`."""
    # the sampler's inverse mass is the inverse root of the mean squared gradient, in units of energy / N
    before, momentum = np.asarray(sampler.gradient_square), np.asarray(sampler.momentum)
    square = np.broadcast_to((num_counted * variance) ** -2.0, before.shape).astype(before.dtype)
    return sampler._replace(
        momentum=jnp.asarray(momentum * (before / square) ** 0.25), gradient_square=jnp.asarray(square)
    )
