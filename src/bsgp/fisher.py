"""The noise of minibatch gradients: what it tells of the posterior, and what is done about the heat it brings.

A row's gradient varies by its share of the Fisher information, so the gradients of minibatches show the precision of
the posterior: `precision = 1 + N B cov(g)`, with g the gradient of energy / N, 1 for the prior, and `B / (1 - B / N)`
for B since rows are drawn without replacement. (Where a power of the likelihood has the rows count for fewer, the first
two N are what they count for and the last is what they are.) Its eigenvectors are axes along which the noise is not
correlated, and there every coordinate can be given the friction that takes up the heat of its own noise. What that
leaves is taken up by a thermostat (Nose-Hoover, one for each axis).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MAX_AXES = 1_500  # coordinates for which two products with their square matrix cost less than a gradient
LEAST_WINDOW = 4_000  # gradients that the covariance averages over, or four for every coordinate if that is more
THERMOSTAT_RATE = 3e-4  # its friction then varies by 0.017, a third of the friction that the sampler has by itself
MOST_FRICTION = 2.0
NOISE_SHARE = 0.3  # of the noise that is injected, what the gradient may add to it


class Noise(NamedTuple):
    """What a chain has learned of it. The axes are those of the coordinates themselves where they are too many."""

    thermostat: Float[Array, " d"]
    """Friction of each axis beyond the sampler's own and what the noise calls for, or below it."""
    num_seen: Float[Array, ""]
    covariance: Float[Array, "d d"] | None
    """Of the gradients that were seen, the latest count the most."""
    axes: Float[Array, "d d"] | None
    """Its eigenvectors, as columns, when it was last looked at."""
    weights: Float[Array, "leaves d"] | None
    """How much of each axis lies in each leaf of the position; columns add up to 1."""


def init_noise(num_coordinates: int, leaf_of: np.ndarray, num_leaves: int, dtype) -> Noise:
    zeros, nothing_seen = jnp.zeros(num_coordinates, dtype), jnp.zeros((), dtype)
    if num_coordinates > MAX_AXES:
        return Noise(zeros, nothing_seen, None, None, None)
    axes = jnp.eye(num_coordinates, dtype=dtype)
    return Noise(zeros, nothing_seen, jnp.zeros_like(axes), axes, _weights(axes, leaf_of, num_leaves))


def updates_between_turns(num_coordinates: int) -> int:
    """Half a window: two gradients for every coordinate at least."""
    return max(LEAST_WINDOW, 4 * num_coordinates) // 2


def longest_step(friction: float, batch_size: int, num_counted: int | float) -> float:
    """At which the gradient adds its share of noise: along an axis of unit precision it has a variance of N / B."""
    injected = 1.0 / (1.0 - friction) ** 2 - 1.0
    return (NOISE_SHARE * injected * batch_size / num_counted) ** 0.5


def along_axes(noise: Noise | None, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    return vector if noise is None or noise.axes is None else vector @ noise.axes


def from_axes(noise: Noise | None, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    return vector if noise is None or noise.axes is None else noise.axes @ vector


def with_gradients(noise: Noise, gradients: Float[Array, "T d"]) -> Noise:
    """The running covariance with these counted in: of all gradients at first, of about a window of them later."""
    num_gradients, num_coordinates = gradients.shape
    if noise.covariance is None or num_gradients < 2:  # one alone does not vary
        return noise
    num_seen = noise.num_seen + num_gradients
    rate = num_gradients / jnp.minimum(num_seen, max(num_gradients, LEAST_WINDOW, 4 * num_coordinates))
    apart = gradients - jnp.mean(gradients, axis=0, keepdims=True)
    latest = apart.T @ apart / max(1, num_gradients - 1)
    return noise._replace(num_seen=num_seen, covariance=noise.covariance + rate * (latest - noise.covariance))


def turned(noise: Noise, leaf_of: np.ndarray) -> tuple[Noise, Float[Array, " d"]]:
    """With the axes of the covariance as it is now, the thermostat at rest, and the variance along each axis."""
    assert noise.covariance is not None  # these for the type checker
    assert noise.weights is not None
    variances, axes = jnp.linalg.eigh(noise.covariance)
    weights = _weights(axes, leaf_of, noise.weights.shape[0])
    still = jnp.zeros_like(noise.thermostat)
    return noise._replace(thermostat=still, axes=axes, weights=weights), jnp.maximum(variances, 0.0)


def drag(noise: Noise, heat: Float[Array, " d"]) -> Float[Array, " d"]:
    """What momenta are multiplied by so that gradient noise of `heat`, the temperature it adds per update, cools."""
    return jnp.exp(-noise.thermostat) / jnp.sqrt(1.0 + heat)


def regulated(
    noise: Noise, temperature: Float[Array, " d"], heat: Float[Array, " d"], friction: float
) -> Float[Array, " d"]:
    """The thermostat after an update that left this temperature. All friction together stays above zero."""
    other = -jnp.log1p(-friction) + 0.5 * jnp.log1p(heat)
    return jnp.clip(noise.thermostat + THERMOSTAT_RATE * (temperature - 1.0), -0.9 * other, MOST_FRICTION)


def _weights(axes: Float[Array, "d d"], leaf_of: np.ndarray, num_leaves: int) -> Float[Array, "leaves d"]:
    return jax.ops.segment_sum(axes**2, leaf_of, num_segments=num_leaves, indices_are_sorted=True)
