"""Adaptive stochastic-gradient HMC over any pytree. It sees a density and knows no GP.

Everything is in the units of the paper's release: gradients are of `energy / N`, the momentum `p` already carries
the step size, and at stationarity `p ~ N(0, eps^2 Minv / N)`. The share of that variance which the chain shows is
its temperature: 1 if it samples the target, above 1 if gradient noise or too long a step heat it. With
`adaptation="fisher"` momenta are kept along axes of the gradient's noise (`bsgp.fisher`), else along the coordinates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bsgp import fisher
from bsgp.checks import check_count, check_option, check_positive
from bsgp.mesh import mean_over

INTEGRATORS = ("baoab", "euler")
ADAPTATIONS = ("steady", "paper", "fisher")
MASS_WINDOW = 500.0  # updates over which the steady mass averages
STIFFNESS_LIMIT = 0.25  # of a leaf's mean coordinate; its stiffest direction may be ten times the mean


class State(NamedTuple):
    """Where a chain is. What is kept per coordinate is one flat vector in the order of `ravel_pytree(position)`."""

    position: PyTree
    """The unconstrained parameters."""
    momentum: Float[Array, " d"]
    """Displacement per update."""
    gradient_mean: Float[Array, " d"]
    """Running mean of the gradient (`g` in METHOD)."""
    gradient_square: Float[Array, " d"]
    """Running mean of its square (`g2`); the mass is its square root."""
    window: Float[Array, " d"]
    """Length of the running means (`xi`)."""
    step_size: Float[Array, " leaves"]
    """`eps` of each leaf of the position; an array, so that it can be adapted without compiling again."""
    noise: fisher.Noise | None = None
    """What is known of the gradient's noise, where `adaptation="fisher"`; everything above but `position` and
    `step_size` is then along its axes."""


class Info(NamedTuple):
    """What an update tells about itself; leaves in the order of `jax.tree.leaves(position)`."""

    energy: Float[Array, ""]
    """`-log_density` on this minibatch, before the update."""
    temperature: Float[Array, " leaves"]
    """Kinetic temperature, averaged over the coordinates of each leaf; 1 at stationarity."""
    stiffness: Float[Array, " leaves"]
    """Mean of `eps^2 Minv * curvature` over the coordinates of each leaf; a coordinate is unstable at 4."""
    gradient: Float[Array, " d"] | None = None
    """Of `energy / N`, where its covariance is wanted."""


class Sampler(NamedTuple):
    """`init(position)`, then `burn_in` and `step`, each `(key, state, batch) -> (state, info)`.

    `burn_in` also adapts the mass; `step` leaves it alone and samples a fixed target.
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
    integrator: str = "baoab",
    adaptation: str = "steady",
    batch_size: int | None = None,
    data_axis: str | None = None,
) -> Sampler:
    """Sample `exp(log_density(position, batch, key))`, whose expectation over batches and keys is the target.

    `integrator="euler"` is the authors' update. `"baoab"` spends the same one gradient per update on a symmetric
    splitting, kick - drift - friction - drift, whose positions are exact on a Gaussian target at any stable step
    where the authors' are too wide by `1 / (1 - stiffness / 4)`.

    The mass of a coordinate is the root of its mean squared gradient. `adaptation="paper"` averages over a window that
    shrinks where the gradient drifts, down to a few updates: there a gradient that happens to be small makes the next
    step long. `"steady"` averages over the last 500, and takes no coordinate to be flatter than a unit prior.
    `"fisher"` takes the Fisher information for the mass, along axes of their own where the coordinates are few enough,
    and has friction take up the heat of gradient noise (`bsgp.fisher`): for minibatches, of `batch_size` rows, that are
    a small part of many.

    Everything is told per one of the `num_counted` rows that the data count for. Minibatches are drawn from `num_rows`
    rows: as many if it is None, but not where a power of the likelihood has them count for fewer.

    Where a batch is shared out over an axis of a mesh, `data_axis` names it: densities and gradients are averaged.
    """
    check_positive("num_counted", num_counted)
    check_positive("step_size", step_size)
    if not 0 < friction < 1:
        raise ValueError(f"`friction` must lie between 0 and 1, got {friction}. The paper uses 0.05.")
    check_option("integrator", integrator, INTEGRATORS)
    check_option("adaptation", adaptation, ADAPTATIONS)
    is_fisher = adaptation == "fisher"
    adapt_mass = _adapt_mass_as_the_authors if adaptation == "paper" else _adapt_mass_steadily
    least_square = 1.0 / num_counted**2 if adaptation == "steady" else 0.0  # of a gradient, in units of energy / N
    drawn_from = num_counted if num_rows is None else check_count("num_rows", num_rows)
    rows_in_noise = _rows_in_noise(integrator, batch_size, drawn_from) if is_fisher else 0.0
    move = _euler if integrator == "euler" else _baoab
    # the authors' discretised friction leaves even a free particle too hot by 1 / (1 - friction / 2)
    cooling = 1.0 - friction / 2.0 if integrator == "euler" else 1.0

    def init(position: PyTree) -> State:
        flat, _ = ravel_pytree(position)
        ones = jnp.ones_like(flat)
        num_leaves = len(jax.tree.leaves(position))
        step_sizes = jnp.full((num_leaves,), step_size, flat.dtype)
        noise = fisher.init_noise(flat.size, _owners(position), num_leaves, flat.dtype) if is_fisher else None
        return State(position, jnp.zeros_like(flat), ones, ones, ones, step_sizes, noise)

    def inverse_mass_of(square):
        if is_fisher:
            return 1.0 / (1.0 / num_counted + rows_in_noise * square)
        return 1.0 / (jnp.sqrt(jnp.maximum(square, least_square) + 1e-16) + 1e-16)

    def update(key: Array, state: State, batch: PyTree) -> tuple[State, Info, Array]:
        density_key, noise_key = jr.split(key)
        found = jax.value_and_grad(log_density)(state.position, batch, density_key)
        log_prob, slope = found if data_axis is None else mean_over(data_axis, found)
        slope, unravel = ravel_pytree(slope)
        raw_gradient = -slope / num_counted
        gradient = fisher.along_axes(state.noise, raw_gradient)
        mobility = _step_size_along_axes(state) ** 2 * inverse_mass_of(state.gradient_square)
        thermal = mobility / num_counted  # the variance of p at stationarity
        kick = -mobility * gradient
        white = jr.normal(noise_key, slope.shape, slope.dtype)
        heat = mobility * num_counted * state.gradient_square  # of the gradient's noise, in units of `thermal`
        drag = 1.0 if state.noise is None else fisher.drag(state.noise, heat)
        drift, momentum = move(state.momentum, kick, thermal, white, friction, drag)
        # a linear force of stiffness k leaves E[kick * p] = -k/2 of the thermal variance under both integrators
        seen = jnp.stack([cooling * momentum**2, -2.0 * state.momentum * kick]) / thermal[None, :]
        temperature, stiffness = _mean_by_leaf(seen, state)
        position = jax.tree.map(jnp.add, state.position, unravel(fisher.from_axes(state.noise, drift)))
        info = Info(-log_prob, temperature, stiffness)
        if state.noise is not None:
            if state.noise.covariance is not None:
                info = info._replace(gradient=raw_gradient)
            thermostat = fisher.regulated(state.noise, seen[0], heat, friction)
            state = state._replace(noise=state.noise._replace(thermostat=thermostat))
        return state._replace(position=position, momentum=momentum), info, gradient

    def burn_in(key, state, batch):
        state, info, gradient = update(key, state, batch)
        return adapt_mass(state, gradient), info

    def step(key, state, batch):
        return update(key, state, batch)[:2]

    return Sampler(init, burn_in, step)


def _rows_in_noise(integrator: str, batch_size: int | None, num_rows: int | float) -> float:
    """Rows whose mean gradient varies as that of a minibatch, which is drawn without replacement."""
    if integrator != "baoab":
        raise ValueError(f"`integrator` must be 'baoab' with `adaptation='fisher'`, got {integrator!r}.")
    if batch_size is None or 2 * batch_size > num_rows:
        raise ValueError(
            f"`batch_size` must be at most half of the {num_rows} rows with `adaptation='fisher'`, got {batch_size}: "
            "all rows together have no noise to learn from. Pass `adaptation='steady'`."
        )
    return batch_size / (1.0 - batch_size / num_rows)


def _euler(momentum, kick, thermal, noise, friction, drag):
    """The authors' update: friction, kick and noise on the old momentum, then a full drift."""
    del drag  # there is none
    momentum = (1.0 - friction) * momentum + kick + jnp.sqrt(2.0 * friction * thermal) * noise
    return momentum, momentum


def _baoab(momentum, kick, thermal, noise, friction, drag):
    """Kick, half drift, exact friction and noise, half drift; `drag` is what gradient noise has to be slowed by."""
    keep = 1.0 - friction
    kicked = momentum + kick
    momentum = drag * keep * kicked + jnp.sqrt((1.0 - keep**2) * thermal) * noise
    return 0.5 * (kicked + momentum), momentum


def _adapt_mass_steadily(state: State, gradient: Float[Array, " d"]) -> State:
    """The mean squared gradient, of all updates at first and of about the last `MASS_WINDOW` later."""
    rate = 1.0 / jnp.minimum(state.window, MASS_WINDOW)
    square = (1.0 - rate) * state.gradient_square + rate * gradient**2
    return state._replace(gradient_square=square, window=state.window + 1.0)


def _adapt_mass_as_the_authors(state: State, gradient: Float[Array, " d"]) -> State:
    """METHOD section 3: all three running values from the old ones."""
    g, g2, xi = state.gradient_mean, state.gradient_square, state.window
    rate = 1.0 / (xi + 1.0)
    return state._replace(
        gradient_mean=(1.0 - rate) * g + rate * gradient,
        gradient_square=(1.0 - rate) * g2 + rate * gradient**2,
        window=1.0 + xi * (1.0 - g**2 / (g2 + 1e-16)),
    )


def _owners(tree: PyTree) -> np.ndarray:
    """The number of the leaf that each flat coordinate belongs to."""
    sizes = [leaf.size for leaf in jax.tree.leaves(tree)]
    return np.repeat(np.arange(len(sizes)), sizes)


def _step_size_along_axes(state: State) -> Float[Array, " d"]:
    """That of the leaf that a coordinate belongs to; an axis through several leaves has the least of all."""
    if state.noise is None or state.noise.axes is None:
        return state.step_size[_owners(state.position)]
    return jnp.broadcast_to(jnp.min(state.step_size), state.momentum.shape)


def _mean_by_leaf(values: Float[Array, "k d"], state: State) -> Float[Array, "k leaves"]:
    sizes = [leaf.size for leaf in jax.tree.leaves(state.position)]
    if state.noise is not None and state.noise.weights is not None:
        total = values @ state.noise.weights.T
    else:
        owners = _owners(state.position)
        total = jax.ops.segment_sum(values.T, owners, num_segments=len(sizes), indices_are_sorted=True).T
    return total / jnp.asarray(sizes, values.dtype)[None, :]


def normal_like(key: Array, tree: PyTree) -> PyTree:
    """Standard normals in the shape of `tree`, drawn as one block."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jr.normal(key, flat.shape, flat.dtype))


def with_step_size(state: State, step_size: Float[Array, " leaves"]) -> State:
    """Change the step sizes, and the momenta with them: their stationary spread is proportional to the step."""
    rescaled = state._replace(step_size=step_size)
    factor = _step_size_along_axes(rescaled) / _step_size_along_axes(state)
    return rescaled._replace(momentum=state.momentum * factor)


def moved(before: State, after: State) -> State:
    """Where an update led, with the mass as it was before."""
    noise = before.noise
    if noise is not None and after.noise is not None:
        noise = noise._replace(thermostat=after.noise.thermostat)
    return before._replace(position=after.position, momentum=after.momentum, noise=noise)


def with_gradients(state: State, gradients: Float[Array, "T d"]) -> State:
    """With the gradients of some updates counted into what is known of their noise."""
    return state if state.noise is None else state._replace(noise=fisher.with_gradients(state.noise, gradients))


def turned(state: State) -> State:
    """The chain at rest, along the axes of its gradients' noise as it is known by now."""
    assert state.noise is not None  # for the type checker
    noise, variances = fisher.turned(state.noise, _owners(state.position))
    window = jnp.full_like(state.window, MASS_WINDOW)
    still = jnp.zeros_like(state.momentum)
    return state._replace(momentum=still, gradient_square=variances, window=window, noise=noise)


def step_size_factor(info: Info, sizes: list[int], friction: float, heat_limit: float) -> np.ndarray:
    """What to multiply each leaf's step size by, `[C leaves]`, from the `Info` of a chunk of updates `[C T ...]`.

    Excess temperature and stiffness both grow with the square of the step; the factor brings the worse of them to its
    limit. A temperature counts only as far as it is beyond two standard errors of its own estimate, for a leaf of as
    many numbers as `sizes` says, so that a single coordinate does not rule by chance.
    """
    temperature, stiffness = np.asarray(info.temperature), np.asarray(info.stiffness)
    error = np.sqrt(2.0 / (np.asarray(sizes) * temperature.shape[1] * friction))
    heat = temperature.mean(axis=1) - 1.0 - 2.0 * error
    worst = np.maximum(heat / heat_limit, stiffness.mean(axis=1) / STIFFNESS_LIMIT)
    return np.clip(np.maximum(worst, 1e-6) ** -0.5, 0.5, 1.5)
