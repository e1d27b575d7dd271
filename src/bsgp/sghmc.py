"""Adaptive stochastic-gradient HMC over any pytree. It sees a density and knows no GP.

Everything is in the units of the paper's release: gradients are of `energy / N`, the momentum `p` already carries
the step size, and at stationarity `p ~ N(0, eps^2 Minv / N)`. The share of that variance which the chain shows is
its temperature: 1 if it samples the target, above 1 if gradient noise or too long a step heat it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bsgp.checks import check_count, check_option, check_positive

INTEGRATORS = ("baoab", "euler")


class State(NamedTuple):
    """Where a chain is. Every tree has the structure of `position`."""

    position: PyTree
    """The unconstrained parameters."""
    momentum: PyTree
    """Displacement per update."""
    gradient_mean: PyTree
    """Running mean of the gradient (`g` in METHOD)."""
    gradient_square: PyTree
    """Running mean of its square (`g2`); the mass is its square root."""
    window: PyTree
    """Length of the running means (`xi`), adapted per coordinate."""
    step_size: Float[Array, ""]
    """`eps`; a leaf, so that it can be adapted without compiling again."""


class Info(NamedTuple):
    """What an update tells about itself."""

    energy: Float[Array, ""]
    """`-log_density` on this minibatch, before the update."""
    temperature: PyTree
    """Kinetic temperature, averaged over the coordinates of each leaf; 1 at stationarity."""
    stiffness: PyTree
    """Mean over coordinates of `eps^2 Minv * curvature`: unstable at 4, slow where it is tiny."""


class Sampler(NamedTuple):
    """`init(position)`, then `burn_in` and `step`, each `(key, state, batch) -> (state, info)`.

    `burn_in` also adapts the mass; `step` leaves it alone and samples a fixed target.
    """

    init: Callable[[PyTree], State]
    burn_in: Callable[[Array, State, PyTree], tuple[State, Info]]
    step: Callable[[Array, State, PyTree], tuple[State, Info]]


def sghmc(
    log_density: Callable[[PyTree, PyTree, Array], Float[Array, ""]],
    num_data: int,
    *,
    step_size: float = 0.01,
    friction: float = 0.05,
    integrator: str = "baoab",
    mass: str = "fisher",
) -> Sampler:
    """Sample `exp(log_density(position, batch, key))`, whose expectation over batches and keys is the target.

    `integrator="euler"` is the authors' update. `"baoab"` spends the same one gradient per update on a symmetric
    splitting, kick - drift - friction - drift, whose positions are exact on a Gaussian target at any stable step
    where the authors' are too wide by `1 / (1 - stiffness / 4)`.
    """
    num_data = check_count("num_data", num_data)
    check_positive("step_size", step_size)
    if not 0 < friction < 1:
        raise ValueError(f"`friction` must lie between 0 and 1, got {friction}. The paper uses 0.05.")
    check_option("integrator", integrator, INTEGRATORS)
    move = _euler if integrator == "euler" else _baoab
    # the authors' discretised friction leaves even a free particle too hot by 1 / (1 - friction / 2)
    cooling = 1.0 - friction / 2.0 if integrator == "euler" else 1.0

    def init(position: PyTree) -> State:
        ones = jax.tree.map(jnp.ones_like, position)
        dtype = jax.tree.leaves(position)[0].dtype
        return State(position, jax.tree.map(jnp.zeros_like, position), ones, ones, ones, jnp.asarray(step_size, dtype))

    def update(key: Array, state: State, batch: PyTree, adapt: bool) -> tuple[State, Info]:
        density_key, noise_key = jr.split(key)
        log_prob, slope = jax.value_and_grad(log_density)(state.position, batch, density_key)
        gradient = jax.tree.map(lambda s: -s / num_data, slope)
        inverse_mass = jax.tree.map(partial(MASSES[mass], num_data=num_data), state.gradient_square)
        # the variance that p has at stationarity; every update's noise is a share of it
        thermal = jax.tree.map(lambda inverse: state.step_size**2 / num_data * inverse, inverse_mass)
        kick = jax.tree.map(lambda inverse, g: -(state.step_size**2) * inverse * g, inverse_mass, gradient)
        position, momentum = move(
            state.position, state.momentum, kick, thermal, normal_like(noise_key, state.position), friction
        )
        temperature = jax.tree.map(lambda p, s: cooling * jnp.mean(p * p / s), momentum, thermal)
        # a linear force of stiffness k leaves E[kick * p] = -k/2 of the thermal variance under both integrators
        stiffness = jax.tree.map(lambda p, k, s: -2.0 * jnp.mean(p * k / s), state.momentum, kick, thermal)
        state = state._replace(position=position, momentum=momentum)
        return _adapt_mass(state, gradient) if adapt else state, Info(-log_prob, temperature, stiffness)

    def burn_in(key, state, batch):
        return update(key, state, batch, True)

    def step(key, state, batch):
        return update(key, state, batch, False)

    return Sampler(init, burn_in, step)


def _rms_inverse_mass(square, num_data):
    """The authors': the inverse root mean square of the gradient of `energy / N`."""
    return 1.0 / (jnp.sqrt(square + 1e-16) + 1e-16)


def _fisher_inverse_mass(square, num_data):
    """N times the posterior variance, since at stationarity the energy's gradient squared averages to its curvature.

    The one beside it is the precision of a standard normal prior: nothing is held to be wider than that.
    """
    return num_data / (num_data**2 * square + 1.0)


MASSES = {"fisher": _fisher_inverse_mass, "rms": _rms_inverse_mass}


def _euler(position, momentum, kick, thermal, noise, friction):
    """The authors' update: friction, kick and noise on the old momentum, then a full drift."""
    momentum = jax.tree.map(
        lambda p, k, s, z: (1.0 - friction) * p + k + jnp.sqrt(2.0 * friction * s) * z, momentum, kick, thermal, noise
    )
    return jax.tree.map(jnp.add, position, momentum), momentum


def _baoab(position, momentum, kick, thermal, noise, friction):
    """Kick, half drift, exact friction and noise, half drift."""
    keep = 1.0 - friction
    kicked = jax.tree.map(jnp.add, momentum, kick)
    momentum = jax.tree.map(lambda p, s, z: keep * p + jnp.sqrt((1.0 - keep**2) * s) * z, kicked, thermal, noise)
    position = jax.tree.map(lambda q, before, after: q + 0.5 * (before + after), position, kicked, momentum)
    return position, momentum


def _adapt_mass(state: State, gradient: PyTree) -> State:
    """METHOD section 3: all three running values from the old ones."""
    rate = jax.tree.map(lambda window: 1.0 / (window + 1.0), state.window)
    mean = jax.tree.map(lambda r, old, g: (1.0 - r) * old + r * g, rate, state.gradient_mean, gradient)
    square = jax.tree.map(lambda r, old, g: (1.0 - r) * old + r * g * g, rate, state.gradient_square, gradient)
    window = jax.tree.map(
        lambda xi, g, g2: 1.0 + xi * (1.0 - g * g / (g2 + 1e-16)), state.window, state.gradient_mean, state.gradient_square
    )
    return state._replace(gradient_mean=mean, gradient_square=square, window=window)


def normal_like(key: Array, tree: PyTree) -> PyTree:
    """Standard normals in the shape of `tree`, drawn as one block."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jr.normal(key, flat.shape, flat.dtype))


def rescale_step(state: State, factor: Float[Array, ""]) -> State:
    """Change the step size, and the momentum with it: its stationary spread is proportional to the step."""
    return state._replace(
        step_size=state.step_size * factor, momentum=jax.tree.map(lambda p: p * factor, state.momentum)
    )


HEAT_LIMIT = 0.05
STIFFNESS_LIMIT = 0.3


def step_size_factor(info: Info, position: PyTree, friction: float) -> Float[Array, ""]:
    """What to multiply the step size by, from the `Info` of a chunk of updates (time along the first axis).

    Excess temperature and stiffness both grow with the square of the step; the factor brings the worse of them, over
    the leaves, to its limit. A leaf's temperature counts only as far as it is beyond two standard errors of its own
    estimate, so that a single coordinate does not rule by chance.
    """

    def strain(temperature, stiffness, leaf):
        independent = leaf.size * temperature.size * friction
        heat = jnp.mean(temperature) - 1.0 - 2.0 * jnp.sqrt(2.0 / independent)
        return jnp.maximum(heat / HEAT_LIMIT, jnp.mean(stiffness) / STIFFNESS_LIMIT)

    strains = jax.tree.leaves(jax.tree.map(strain, info.temperature, info.stiffness, position))
    worst = jnp.max(jnp.stack(strains))
    return jnp.clip(jnp.maximum(worst, 1e-6) ** -0.5, 0.5, 1.5)
