"""Step sizes of SGHMC: how they are adapted during burn-in, and what they settle at."""

import jax
import jax.numpy as jnp
import numpy as np

from bsgp.inference.fisher_mass import longest_step
from bsgp.inference.sghmc import Info, State, with_step_size
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.target import Target

HEAT_LIMIT = 0.05  # excess temperature that the step size is adapted to
ROUGH_HEAT_LIMIT = 0.3  # the limit while the mass still moves
STIFFNESS_LIMIT = 0.25  # mean over a leaf's coordinates; its stiffest direction may be ten times the mean
SAFETY = 0.7  # halves the excess temperature, which grows with the square of the step
# without gradient noise positions are colder than momenta: their error is of a higher order in the step
EXACT_HEAT_LIMIT = 0.1
ABSORBED_LIMIT = 0.25  # share of the friction that a thermostat may add
EXACT_SAFETY = 0.9
MAX_STEP_SIZE = 0.1  # ten times the authors', for an anchored u
MAX_POSITION_STEP_SIZE = 0.2  # for the position mass, in units of the posterior's standard deviations
MAX_PLAIN_STEP_SIZE = 0.03  # for a plain u: with longer steps chains of few rows stay cool and yet leave their mode


def longest_allowed(target: Target, plan: Plan) -> float:
    """Upper limit of the step size."""
    longest = MAX_PLAIN_STEP_SIZE if target.anchor is None else MAX_STEP_SIZE
    if plan.adaptation == "position":
        return MAX_POSITION_STEP_SIZE
    if plan.adaptation != "fisher":
        return longest
    return min(longest, longest_step(plan.friction, plan.batch_size, target.num_counted))


def suggested_factor(info: Info, sizes: list[int], friction: float, heat_limit: float) -> np.ndarray:
    """Factor on each leaf's step size, `[C leaves]`, from the `Info` of a chunk of updates `[C T ...]`.

    Excess temperature and stiffness both grow with the square of the step; the factor brings the worst of them, or of
    the heat that thermostats absorb, to its limit. A temperature counts only as far as it exceeds two standard errors
    of its own estimate, for a leaf with as many numbers as `sizes` says, so that a single coordinate does not rule by
    chance.
    """
    temperature, stiffness = np.asarray(info.temperature), np.asarray(info.stiffness)
    error = np.sqrt(2.0 / (np.asarray(sizes) * temperature.shape[1] * friction))
    heat = temperature.mean(axis=1) - 1.0 - 2.0 * error
    absorbed = np.broadcast_to(np.asarray(info.absorbed), np.shape(info.energy)).mean(axis=1)
    worst = np.maximum(heat / heat_limit, stiffness.mean(axis=1) / STIFFNESS_LIMIT)
    worst = np.maximum(worst, absorbed[:, None] / ABSORBED_LIMIT)
    return np.clip(np.maximum(worst, 1e-6) ** -0.5, 0.5, 1.5)


def heat_limit(plan: Plan, *, is_rough: bool) -> float:
    """Excess temperature that the step size is adapted to, while the mass still moves or after that."""
    if is_rough:
        return ROUGH_HEAT_LIMIT
    return EXACT_HEAT_LIMIT if plan.adaptation == "position" else HEAT_LIMIT


def settled_factor(sampler: State, earlier: list[np.ndarray], plan: Plan) -> np.ndarray:
    """Factor that leads to the geometric mean of the steps tried while the mass was kept, made safer.

    The safety margin is against heat, which a thermostat takes care of by itself. Under the position mass, which chains
    share, they share the step as well: that of the median chain. One that had a bad start would stay slow.
    """
    now = np.asarray(sampler.step_size)
    tried = np.stack([*earlier[len(earlier) * 2 // 3 :], now])
    settled = np.exp(np.log(tried).mean(axis=0))
    if plan.adaptation == "position":
        return EXACT_SAFETY * np.median(settled, axis=0, keepdims=True) / now
    return (SAFETY if sampler.gradient_noise is None else 1.0) * settled / now


def rescaled(sampler: State, factor: np.ndarray, is_noise: np.ndarray, longest: float) -> State:
    """Chains with their step sizes multiplied by `[C leaves]` factors; all blocks keep one pace but the noise.

    One block that is too fast heats the others through their correlations, and a block that is large enough to show it
    is slow to do so. The noise may be slower: its gradient varies the most between minibatches, and if it set the
    pace all would crawl.
    """
    wanted = np.minimum(np.asarray(sampler.step_size) * factor, longest)
    # an axis of the Fisher mass runs through all blocks, and they have one step
    others = ~is_noise | (sampler.gradient_noise is not None and sampler.gradient_noise.axes is not None)
    if others.any():
        pace = wanted[:, others].min(axis=1, keepdims=True)
        wanted = np.where(others[None, :], pace, np.minimum(wanted, pace))
    return jax.vmap(with_step_size)(sampler, jnp.asarray(wanted, sampler.step_size.dtype))


def calmer(sampler: State, is_bad: np.ndarray, shrink: float) -> State:
    """Bad chains with a shorter step and at rest: momenta and thermostats before the trouble may be part of it."""
    factor = jnp.where(jnp.asarray(is_bad), shrink, 1.0).astype(sampler.step_size.dtype)
    shorter = jax.vmap(with_step_size)(sampler, sampler.step_size * factor[:, None])
    by_leaf = jnp.asarray(is_bad)[:, None]
    if shorter.thermostat is not None:
        shorter = shorter._replace(thermostat=jnp.where(by_leaf, 0.0, shorter.thermostat))
    return shorter._replace(momentum=jnp.where(by_leaf, 0.0, shorter.momentum))
