"""Adaptive stochastic-gradient HMC over any pytree. It needs a log density and knows nothing about GPs.

Units are those of the paper's release: gradients are of `energy / N`, the momentum `p` includes the step size, and at
stationarity `p ~ N(0, eps^2 Minv / N)`. A chain's temperature is the observed variance of its momenta relative to this
one: 1 if the chain samples the target, above 1 if gradient noise or too long a step heats it. With
`adaptation="fisher"`, momenta are components along axes of the gradient noise (`fisher_mass`); otherwise they are along
the coordinates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bsgp.inference import fisher_mass, thermostats
from bsgp.runtime.checks import check_count, check_option, check_positive
from bsgp.runtime.mesh import mean_over

INTEGRATORS = ("baoab", "euler")
ADAPTATIONS = ("steady", "paper", "fisher", "position")
MASS_WINDOW = 500.0  # updates over which the steady mass averages


class State(NamedTuple):
    """State of a chain. Values per coordinate are flat vectors in the order of `ravel_pytree(position)`."""

    position: PyTree
    """Unconstrained parameters."""
    momentum: Float[Array, " d"]
    """Displacement per update."""
    gradient_mean: Float[Array, " d"]
    """Running mean of the gradient; only `adaptation="paper"` uses it."""
    gradient_square: Float[Array, " d"]
    """Running mean of the squared gradient, which sets the mass."""
    window: Float[Array, " d"]
    """Length of the running means, in updates."""
    step_size: Float[Array, " leaves"]
    """Step size `eps` of each leaf of the position; an array, so that adapting it does not compile again."""
    gradient_noise: fisher_mass.GradientNoise | None = None
    """Estimate of the gradient noise with `adaptation="fisher"`, else None. With it, all vectors above except the
    position are components along its axes."""
    thermostat: Float[Array, " leaves"] | None = None
    """Friction per unit of distance that each leaf has besides that of `persistence`; None without it."""


class Info(NamedTuple):
    """Diagnostics of one update; values per leaf are in the order of `jax.tree.leaves(position)`."""

    energy: Float[Array, ""]
    """`-log_density` on this minibatch, before the update."""
    temperature: Float[Array, " leaves"]
    """Kinetic temperature, averaged over the coordinates of each leaf; 1 at stationarity."""
    stiffness: Float[Array, " leaves"]
    """Mean of `eps^2 Minv * curvature` over the coordinates of each leaf; a coordinate is unstable at 4."""
    gradient: Float[Array, " d"] | None = None
    """Gradient of `energy / N`, if its covariance is being estimated."""
    absorbed: Float[Array, ""] | float = 0.0
    """Friction of the thermostats as a share of the sampler's own, averaged over the coordinates: about the heat that
    they take away."""


class Sampler(NamedTuple):
    """`init(position)`, then `burn_in` and `step`, each `(key, state, batch) -> (state, info)`.

    `burn_in` also adapts the mass; `step` keeps it and samples a fixed target.
    """

    init: Callable[[PyTree], State]
    burn_in: Callable[[Array, State, PyTree], tuple[State, Info]]
    step: Callable[[Array, State, PyTree], tuple[State, Info]]


def sghmc(
    log_density: Callable[[PyTree, PyTree, Array], Float[Array, ""]],
    num_counted: int | float,
    *,
    num_rows: int | None = None,
    step_size: float = 0.01,
    friction: float = 0.05,
    persistence: float | None = None,
    integrator: str = "baoab",
    adaptation: str = "steady",
    batch_size: int | None = None,
    data_axis: str | None = None,
) -> Sampler:
    """Returns a sampler of `exp(log_density(position, batch, key))`, an unbiased estimate of the log target.

    Energies and gradients are per effective row (`num_counted`). Minibatches of `batch_size` rows are drawn from
    `num_rows` rows; None means `num_counted`, and the two differ under a power of the likelihood.

    `integrator="euler"` is the authors' update. `"baoab"` spends the same one gradient per update on a symmetric
    splitting (kick, drift, friction, drift). Its positions are exact on a Gaussian target at any stable step; the
    authors' are too wide by `1 / (1 - stiffness / 4)`.

    `adaptation` chooses the mass. `"paper"`: the root of the mean squared gradient over a window that shrinks to a few
    updates if the gradient drifts; one small gradient then makes the next step long. `"steady"`: the same root over the
    last 500 updates, and no coordinate flatter than a unit prior. `"fisher"`: the Fisher information along axes of the
    gradient noise, with friction that absorbs the heat of that noise (`fisher_mass`); for minibatches that are a small
    part of many rows. `"position"`: updates keep the mass, and the caller sets it (`position_mass`).

    `friction` is the share of the momentum that an update takes away. With `persistence` it follows the step size
    instead, and a thermostat per leaf takes heat away (`thermostats`).

    `data_axis` names the mesh axis over which each batch is split; densities and gradients are averaged over it.
    """
    check_positive("num_counted", num_counted)
    check_positive("step_size", step_size)
    if not 0 < friction < 1:
        raise ValueError(f"`friction` must be between 0 and 1, got {friction}. The paper uses 0.05.")
    check_option("integrator", integrator, INTEGRATORS)
    check_option("adaptation", adaptation, ADAPTATIONS)
    is_fisher = adaptation == "fisher"
    if persistence is not None:
        check_positive("persistence", persistence)
        if adaptation != "position":
            raise ValueError(
                f"`persistence` must go with `adaptation='position'`, got {adaptation!r}. Pass `persistence=None`."
            )
    adapt_mass = {"paper": _adapt_mass_as_the_authors, "position": _keep_mass}.get(adaptation, _adapt_mass_steadily)
    min_square = 1.0 / num_counted**2 if adaptation == "steady" else 0.0  # of a gradient of energy / N: a unit prior's
    drawn_from = num_counted if num_rows is None else check_count("num_rows", num_rows)
    rows_in_noise = _rows_in_noise(integrator, batch_size, drawn_from) if is_fisher else 0.0
    integrate = _euler if integrator == "euler" else _baoab
    # the authors' discretised friction leaves even a free particle too hot by 1 / (1 - friction / 2)
    cooling = 1.0 - friction / 2.0 if integrator == "euler" else 1.0

    def init(position: PyTree) -> State:
        flat, _ = ravel_pytree(position)
        ones = jnp.ones_like(flat)
        num_leaves = len(jax.tree.leaves(position))
        step_sizes = jnp.full((num_leaves,), step_size, flat.dtype)
        gradient_noise = None
        if is_fisher:
            gradient_noise = fisher_mass.init_gradient_noise(flat.size, _leaf_of(position), num_leaves, flat.dtype)
        thermostat = None if persistence is None else jnp.zeros((num_leaves,), flat.dtype)
        return State(position, jnp.zeros_like(flat), ones, ones, ones, step_sizes, gradient_noise, thermostat)

    def inverse_mass(gradient_square):
        if is_fisher:
            return 1.0 / (1.0 / num_counted + rows_in_noise * gradient_square)
        return 1.0 / (jnp.sqrt(jnp.maximum(gradient_square, min_square) + 1e-16) + 1e-16)

    def update(key: Array, state: State, batch: PyTree) -> tuple[State, Info, Array]:
        density_key, noise_key = jr.split(key)
        value_and_slope = jax.value_and_grad(log_density)(state.position, batch, density_key)
        log_prob, slope = value_and_slope if data_axis is None else mean_over(data_axis, value_and_slope)
        slope, unravel = ravel_pytree(slope)
        raw_gradient = -slope / num_counted
        gradient_noise = state.gradient_noise
        gradient = fisher_mass.to_axes(gradient_noise, raw_gradient)
        step_size_along_axes = _step_size_along_axes(state)
        mobility = step_size_along_axes**2 * inverse_mass(state.gradient_square)
        thermal = mobility / num_counted  # variance of p at stationarity
        kick = -mobility * gradient
        white = jr.normal(noise_key, slope.shape, slope.dtype)
        heat = mobility * num_counted * state.gradient_square  # of the gradient noise, in units of `thermal`
        factor = 1.0 if gradient_noise is None else fisher_mass.momentum_factor(gradient_noise, heat)
        damping = friction
        if persistence is not None and state.thermostat is not None:
            leaf_of = _leaf_of(state.position)
            damping = thermostats.friction_of_step(state.step_size, persistence, jnp)[leaf_of]
            factor = thermostats.momentum_factor(state.thermostat, state.step_size, persistence)[leaf_of]
        drift, momentum = integrate(state.momentum, kick, thermal, white, damping, factor)
        # a linear force of stiffness k leaves E[kick * p] = -k/2 of the thermal variance under both integrators
        observed = jnp.stack([cooling * momentum**2, -2.0 * state.momentum * kick]) / thermal[None, :]
        temperature, stiffness = _mean_by_leaf(observed, state)
        position = jax.tree.map(jnp.add, state.position, unravel(fisher_mass.from_axes(gradient_noise, drift)))
        info = Info(-log_prob, temperature, stiffness)
        if gradient_noise is not None:
            if gradient_noise.covariance is not None:
                info = info._replace(gradient=raw_gradient)
            thermostat = fisher_mass.next_thermostat(gradient_noise, observed[0], heat, friction)
            gradient_noise = gradient_noise._replace(thermostat=thermostat)
        state = state._replace(position=position, momentum=momentum, gradient_noise=gradient_noise)
        if persistence is not None and state.thermostat is not None:
            sizes = np.asarray([leaf.size for leaf in jax.tree.leaves(state.position)], slope.dtype)
            thermostat = thermostats.next_thermostat(state.thermostat, temperature, state.step_size, persistence, sizes)
            state = state._replace(thermostat=thermostat)
            info = info._replace(absorbed=thermostats.absorbed_share(thermostat, persistence, sizes))
        return state, info, gradient

    def burn_in(key, state, batch):
        state, info, gradient = update(key, state, batch)
        return adapt_mass(state, gradient), info

    def step(key, state, batch):
        return update(key, state, batch)[:2]

    return Sampler(init, burn_in, step)


def _rows_in_noise(integrator: str, batch_size: int | None, num_rows: int | float) -> float:
    """Rows drawn with replacement whose mean gradient would vary as much as that of a minibatch drawn without."""
    if integrator != "baoab":
        raise ValueError(
            f"`integrator` must be 'baoab' with `adaptation='fisher'`, got {integrator!r}. Pass `integrator='baoab'`."
        )
    if batch_size is None or 2 * batch_size > num_rows:
        raise ValueError(
            f"`batch_size` must be at most half of the {num_rows} rows with `adaptation='fisher'`, got {batch_size}: "
            "the gradient of all rows has no noise to learn from. Pass `adaptation='steady'`."
        )
    return batch_size / (1.0 - batch_size / num_rows)


def _euler(momentum, kick, thermal, noise, friction, factor):
    """The authors' update: friction, kick and noise on the old momentum, then a full drift."""
    del factor  # 1, as the Fisher mass needs "baoab"
    momentum = (1.0 - friction) * momentum + kick + jnp.sqrt(2.0 * friction * thermal) * noise
    return momentum, momentum


def _baoab(momentum, kick, thermal, noise, friction, factor):
    """Kick, half drift, exact friction and noise, half drift; `factor` slows momenta against gradient noise."""
    keep = 1.0 - friction
    kicked = momentum + kick
    momentum = factor * keep * kicked + jnp.sqrt((1.0 - keep**2) * thermal) * noise
    return 0.5 * (kicked + momentum), momentum


def _adapt_mass_steadily(state: State, gradient: Float[Array, " d"]) -> State:
    """Mean squared gradient over all updates at first, later over about the last `MASS_WINDOW`."""
    rate = 1.0 / jnp.minimum(state.window, MASS_WINDOW)
    square = (1.0 - rate) * state.gradient_square + rate * gradient**2
    return state._replace(gradient_square=square, window=state.window + 1.0)


def _keep_mass(state: State, gradient: Float[Array, " d"]) -> State:
    del gradient
    return state


def _adapt_mass_as_the_authors(state: State, gradient: Float[Array, " d"]) -> State:
    """The release's adaptation, after Springenberg et al. (2016): all three running values from the old ones."""
    g, g2, xi = state.gradient_mean, state.gradient_square, state.window
    rate = 1.0 / (xi + 1.0)
    return state._replace(
        gradient_mean=(1.0 - rate) * g + rate * gradient,
        gradient_square=(1.0 - rate) * g2 + rate * gradient**2,
        window=1.0 + xi * (1.0 - g**2 / (g2 + 1e-16)),
    )


def _leaf_of(tree: PyTree) -> np.ndarray:
    """Leaf number of each flat coordinate."""
    sizes = [leaf.size for leaf in jax.tree.leaves(tree)]
    return np.repeat(np.arange(len(sizes)), sizes)


def _step_size_along_axes(state: State) -> Float[Array, " d"]:
    """Step size along each axis: that of its leaf, or the smallest of all if axes run through several leaves."""
    if state.gradient_noise is None or state.gradient_noise.axes is None:
        return state.step_size[_leaf_of(state.position)]
    return jnp.broadcast_to(jnp.min(state.step_size), state.momentum.shape)


def _mean_by_leaf(values: Float[Array, "k d"], state: State) -> Float[Array, "k leaves"]:
    """Means over the coordinates of each leaf, for values along the axes."""
    sizes = [leaf.size for leaf in jax.tree.leaves(state.position)]
    if state.gradient_noise is not None and state.gradient_noise.leaf_shares is not None:
        total = values @ state.gradient_noise.leaf_shares.T
    else:
        leaf_of = _leaf_of(state.position)
        total = jax.ops.segment_sum(values.T, leaf_of, num_segments=len(sizes), indices_are_sorted=True).T
    return total / jnp.asarray(sizes, values.dtype)[None, :]


def normal_like(key: Array, tree: PyTree) -> PyTree:
    """Standard normals in the shape of `tree`, drawn as one block."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jr.normal(key, flat.shape, flat.dtype))


def with_step_size(state: State, step_size: Float[Array, " leaves"]) -> State:
    """The state with new step sizes, and momenta rescaled: their stationary spread is proportional to the step."""
    rescaled = state._replace(step_size=step_size)
    factor = _step_size_along_axes(rescaled) / _step_size_along_axes(state)
    return rescaled._replace(momentum=state.momentum * factor)


def with_mass_of(before: State, after: State) -> State:
    """The state `after` an update, with the mass from `before` it."""
    gradient_noise = before.gradient_noise
    if gradient_noise is not None and after.gradient_noise is not None:
        gradient_noise = gradient_noise._replace(thermostat=after.gradient_noise.thermostat)
    return before._replace(
        position=after.position, momentum=after.momentum, gradient_noise=gradient_noise, thermostat=after.thermostat
    )


def learn_gradient_noise(state: State, gradients: Float[Array, "T d"]) -> State:
    """The state with the gradients of some updates added to its estimate of the gradient noise, if it has one."""
    if state.gradient_noise is None:
        return state
    return state._replace(gradient_noise=fisher_mass.update_covariance(state.gradient_noise, gradients))


def renew_axes(state: State) -> State:
    """The state along new axes, those of the gradient noise as estimated so far, with zero momentum."""
    assert state.gradient_noise is not None  # for the type checker
    gradient_noise, variances = fisher_mass.renew_axes(state.gradient_noise, _leaf_of(state.position))
    return state._replace(
        momentum=jnp.zeros_like(state.momentum),
        gradient_square=variances,
        window=jnp.full_like(state.window, MASS_WINDOW),
        gradient_noise=gradient_noise,
    )
