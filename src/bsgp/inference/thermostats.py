"""Friction that follows the step size, and thermostats, one per leaf: for steps in posterior standard deviations.

The posterior of inducing inputs is rough: steps that suit its flat directions heat the stiff ones. A thermostat, after
Nose and Hoover, adds the friction that keeps the mean temperature of its leaf at 1.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MIN_FRICTION = 0.01
MAX_ABSORBED = 3.0  # friction of a thermostat, relative to the sampler's own
SLOW_BELOW = 10  # coordinates: a few momenta have a temperature that varies a lot, which a slow thermostat averages out


def distance_per_update(step_size, persistence: float, xp=np):
    """Distance that friction and thermostats count for an update with this step size.

    At least a hundredth of `persistence`: with tiny steps a chain would never lose the heat of a bad start.
    """
    return xp.maximum(step_size, MIN_FRICTION * persistence)


def friction_of_step(step_size, persistence: float, xp=np):
    """Friction under which a chain turns after a distance of `persistence`, in posterior standard deviations.

    A chain that turns too early does a random walk; one that turns too late collects the heat of many steps.
    """
    return -xp.expm1(-distance_per_update(step_size, persistence, xp) / persistence)


def momentum_factor(
    thermostat: Float[Array, " leaves"], step_size: Float[Array, " leaves"], persistence: float
) -> Float[Array, " leaves"]:
    """Factor by which thermostats slow the momenta of each leaf in an update."""
    return jnp.exp(-distance_per_update(step_size, persistence, jnp) * thermostat)


def next_thermostat(
    thermostat: Float[Array, " leaves"],
    temperature: Float[Array, " leaves"],
    step_size: Float[Array, " leaves"],
    persistence: float,
    sizes: np.ndarray,
) -> Float[Array, " leaves"]:
    """Thermostats, friction per unit of distance, after an update in which leaves of `sizes` had these temperatures.

    Total friction stays above zero, and the heat of a bad start does not wind thermostats up for good.
    """
    rate = distance_per_update(step_size, persistence, jnp) / (1.0 + SLOW_BELOW / sizes)
    return jnp.clip(thermostat + rate * (temperature - 1.0), -0.9 / persistence, MAX_ABSORBED / persistence)


def absorbed_share(thermostat: Float[Array, " leaves"], persistence: float, sizes: np.ndarray) -> Float[Array, ""]:
    """Friction of the thermostats as a share of the sampler's own, averaged over the coordinates."""
    return persistence * jnp.sum(thermostat * sizes) / sizes.sum()
