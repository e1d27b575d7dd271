"""The Fisher mass: a preconditioner and a friction learned from the noise of minibatch gradients.

The gradient of one row varies by that row's share of the Fisher information, so the covariance of minibatch gradients
shows the posterior's precision: `precision = 1 + N B' cov(g)`. Here g is the gradient of energy / N, the 1 is the
prior's, and `B' = B / (1 - B / N)` because rows are drawn without replacement. With a power of the likelihood, the
first N is the effective number of rows and the N in B' is the number of rows that minibatches are drawn from.

The eigenvectors of that covariance are axes along which gradient noise is uncorrelated. Along each axis, friction is
raised by exactly what removes the heat of its noise; a Nose-Hoover thermostat per axis removes the rest.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MAX_AXES = 1_500  # up to this many coordinates, two products with a square matrix cost less than a gradient
MIN_WINDOW = 4_000  # gradients that the covariance averages over; four per coordinate if that is more
THERMOSTAT_RATE = 3e-4  # its friction then varies by 0.017, a third of the sampler's own
MAX_FRICTION = 2.0
NOISE_SHARE = 0.3  # noise that the gradient may add, relative to the noise that the sampler injects


class GradientNoise(NamedTuple):
    """Running estimate of a chain's gradient noise. Above `MAX_AXES` coordinates, the axes are the coordinates."""

    thermostat: Float[Array, " d"]
    """Friction of the thermostat along each axis, added to all other friction; may be negative."""
    num_gradients: Float[Array, ""]
    """Number of gradients in the covariance, including those that it has almost forgotten."""
    covariance: Float[Array, "d d"] | None
    """Running covariance of the gradients; recent gradients weigh the most."""
    axes: Float[Array, "d d"] | None
    """Eigenvectors of the covariance, as columns, when they were last computed."""
    leaf_shares: Float[Array, "leaves d"] | None
    """Share of each axis that lies in each leaf of the position; columns sum to 1."""


def init_gradient_noise(num_coordinates: int, leaf_of: np.ndarray, num_leaves: int, dtype) -> GradientNoise:
    """Returns the estimate before any gradient; `leaf_of` holds the leaf number of each coordinate."""
    zeros, no_gradients = jnp.zeros(num_coordinates, dtype), jnp.zeros((), dtype)
    if num_coordinates > MAX_AXES:
        return GradientNoise(zeros, no_gradients, None, None, None)
    axes = jnp.eye(num_coordinates, dtype=dtype)
    return GradientNoise(zeros, no_gradients, jnp.zeros_like(axes), axes, _leaf_shares(axes, leaf_of, num_leaves))


def updates_between_axes(num_coordinates: int) -> int:
    """Returns how many updates pass before the axes are computed again: half a window."""
    return max(MIN_WINDOW, 4 * num_coordinates) // 2


def longest_step(friction: float, batch_size: int, num_counted: int | float) -> float:
    """Returns the step size at which the gradient adds `NOISE_SHARE` of the injected noise.

    Along an axis of unit precision the gradient of the energy has the variance N / B.
    """
    injected = 1.0 / (1.0 - friction) ** 2 - 1.0
    return (NOISE_SHARE * injected * batch_size / num_counted) ** 0.5


def to_axes(noise: GradientNoise | None, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """Converts a vector from coordinates to components along the axes."""
    return vector if noise is None or noise.axes is None else vector @ noise.axes


def from_axes(noise: GradientNoise | None, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """Converts components along the axes to coordinates."""
    return vector if noise is None or noise.axes is None else noise.axes @ vector


def update_covariance(noise: GradientNoise, gradients: Float[Array, "T d"]) -> GradientNoise:
    """Adds gradients to the covariance, which averages over all of them first and over about a window later."""
    num_new, num_coordinates = gradients.shape
    if noise.covariance is None or num_new < 2:  # a single gradient has no variance
        return noise
    num_gradients = noise.num_gradients + num_new
    rate = num_new / jnp.minimum(num_gradients, max(num_new, MIN_WINDOW, 4 * num_coordinates))
    centred = gradients - jnp.mean(gradients, axis=0, keepdims=True)
    latest = centred.T @ centred / max(1, num_new - 1)
    covariance = noise.covariance + rate * (latest - noise.covariance)
    return noise._replace(num_gradients=num_gradients, covariance=covariance)


def renew_axes(noise: GradientNoise, leaf_of: np.ndarray) -> tuple[GradientNoise, Float[Array, " d"]]:
    """Computes new axes from the covariance and resets the thermostat; also returns the variance along each axis."""
    assert noise.covariance is not None  # these for the type checker
    assert noise.leaf_shares is not None
    variances, axes = jnp.linalg.eigh(noise.covariance)
    leaf_shares = _leaf_shares(axes, leaf_of, noise.leaf_shares.shape[0])
    thermostat = jnp.zeros_like(noise.thermostat)
    return noise._replace(thermostat=thermostat, axes=axes, leaf_shares=leaf_shares), jnp.maximum(variances, 0.0)


def momentum_factor(noise: GradientNoise, heat: Float[Array, " d"]) -> Float[Array, " d"]:
    """Returns the factor on momenta that removes `heat`, the temperature that gradient noise adds per update."""
    return jnp.exp(-noise.thermostat) / jnp.sqrt(1.0 + heat)


def next_thermostat(
    noise: GradientNoise, temperature: Float[Array, " d"], heat: Float[Array, " d"], friction: float
) -> Float[Array, " d"]:
    """Returns the thermostat after an update with this temperature. Total friction stays above zero."""
    other_friction = -jnp.log1p(-friction) + 0.5 * jnp.log1p(heat)
    return jnp.clip(noise.thermostat + THERMOSTAT_RATE * (temperature - 1.0), -0.9 * other_friction, MAX_FRICTION)


def _leaf_shares(axes: Float[Array, "d d"], leaf_of: np.ndarray, num_leaves: int) -> Float[Array, "leaves d"]:
    return jax.ops.segment_sum(axes**2, leaf_of, num_segments=num_leaves, indices_are_sorted=True)
