"""Compiled programs of SGHMC: chunks of updates of all chains, and the state that a chain carries between them.

Every program is a pure function of arrays. Chains are stacked along the first axis and mapped over. On a mesh, each
device holds some of the chains and some of the rows of their minibatches.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from bsgp.inference.batches import ChunkInputs, batch_at
from bsgp.inference.fisher_mass import longest_step
from bsgp.inference.optimise import cosine_adam, gradient_step
from bsgp.inference.over_chains import over_chains
from bsgp.inference.sghmc import Sampler, State, learn_gradient_noise, renew_axes, sghmc, with_mass_of
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.spread_start import drawn_position, entropy
from bsgp.inference.target import Target
from bsgp.models.batch import Batch, Shard
from bsgp.models.deep_gp import DeepGP
from bsgp.runtime.mesh import BY_CHAIN, BY_CHAIN_AND_ROW, CHAIN, DATA, REPLICATED

START_STEP_SIZE = 0.002  # short enough for any target; adaptation makes it longer
POSITION_START_STEP_SIZE = 0.05  # for few rows, in units of the posterior's standard deviations, known roughly
FEW_ROWS = 1_000
FISHER_START_SHARE, MAX_FISHER_START = 0.1, 0.01  # with the Fisher mass: a share of the longest step, at most this


class Chain(NamedTuple):
    """State that one chain carries from update to update."""

    sampler: State
    optimised: PyTree
    """Unconstrained values of the optimised blocks."""
    optimiser: optax.OptState
    recent: PyTree
    """Window of recent draws for steps on the optimised blocks, `[W ...]`; None if nothing is optimised."""
    num_recent: Array
    """Number of draws that have entered the window, including those that have left it."""


def _on_devices(mesh: Mesh | None, function, carried: PyTree, keys: Array, inputs: ChunkInputs) -> PyTree:
    """Runs `function(carried, key, rows, data)` for every chain on its devices; results end up on all devices."""
    if mesh is None:
        return over_chains(lambda *chain: function(*chain, inputs.data), carried, keys, inputs.rows)

    def on_one_device(carried, keys, rows, data):
        done = over_chains(lambda *chain: function(*chain, data), carried, keys, rows)
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, CHAIN, tiled=True), done)

    specs = (BY_CHAIN, BY_CHAIN, BY_CHAIN_AND_ROW, REPLICATED)
    # without `check_vma`: nothing is differentiated across devices, and our own gradients do not support it
    sharded = jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False)
    return sharded(carried, keys, inputs.rows, inputs.data)


def _data_axis(mesh: Mesh | None) -> str | None:
    """Name of the mesh axis over which minibatches are split, or None if they are whole."""
    return DATA if mesh is not None and mesh.shape[DATA] > 1 else None


def _batch(data: Batch | None, at: PyTree, dtype, mesh: Mesh | None) -> Batch:
    """Minibatch of one update, or this device's share of it."""
    batch = batch_at(data, at, dtype)
    if mesh is None or _data_axis(mesh) is None:
        return batch
    shard = Shard(jax.lax.axis_index(DATA), mesh.shape[DATA])
    return eqx.tree_at(lambda whole: whole.shard, batch, shard, is_leaf=lambda leaf: leaf is None)


@eqx.filter_jit
def stack_draws(target: Target, sampled: DeepGP, optimised: PyTree) -> DeepGP:
    """Constrained model from positions `[C S ...]` of the sampled leaves and `[C ...]` of the optimised ones."""
    num_chains, num_draws = jax.tree.leaves(sampled)[0].shape[:2]
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (num_chains, num_draws, *x.shape[1:])), optimised)
    positions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), eqx.combine(sampled, repeated))
    # one draw at a time, for the same reason as in `over_chains`
    models = jax.lax.map(lambda position: target.constrain(position)[0], positions)
    return jax.tree.map(lambda x: x.reshape(num_chains, num_draws, *x.shape[1:]), models)


def _sampler(target: Target, plan: Plan, optimised: PyTree, data_axis: str | None = None) -> Sampler:
    """SGHMC of the sampled blocks, given the optimised ones."""

    def log_density(sampled, batch, key):
        return target.log_joint(eqx.combine(sampled, optimised), batch, key)

    return sghmc(
        log_density,
        target.num_counted,
        num_rows=target.num_data,
        step_size=plan.step_size or _start_step_size(plan, target.num_counted),
        friction=plan.friction,
        persistence=plan.persistence,
        integrator=plan.integrator,
        adaptation=plan.adaptation,
        batch_size=plan.batch_size,
        data_axis=data_axis,
    )


def _start_step_size(plan: Plan, num_counted: float) -> float:
    if plan.adaptation == "position":
        return POSITION_START_STEP_SIZE * min(1.0, (FEW_ROWS / num_counted) ** 0.5)
    if plan.adaptation != "fisher":
        return START_STEP_SIZE
    return min(MAX_FISHER_START, FISHER_START_SHARE * longest_step(plan.friction, plan.batch_size, num_counted))


@eqx.filter_jit
def init_chains(target: Target, plan: Plan, positions: DeepGP) -> Chain:
    """States of chains that start at `positions [C ...]`."""

    def init(position):
        sampled, optimised = target.select(position, "sample"), target.select(position, "optimise")
        recent = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (plan.window, *x.shape)), sampled)
        return Chain(
            _sampler(target, plan, optimised).init(sampled),
            optimised,
            optax.adam(plan.optimise_rate).init(optimised),
            recent if jax.tree.leaves(optimised) else None,
            jnp.zeros((), jnp.int32),
        )

    return over_chains(init, positions)


def start_optimiser(plan: Plan) -> optax.GradientTransformation:
    """Adam of the phase before burn-in."""
    return cosine_adam(plan.learning_rate, plan.adam_steps)


def _adam_step(target, optimiser, free, state, rest, batch, key, data_axis):
    """One Adam step on the `free` leaves of a position, up the log joint; also returns the energy before it."""

    def loss(free):
        return -target.log_joint(eqx.combine(free, rest), batch, key) / target.num_counted

    free, state, value = gradient_step(optimiser, loss, free, state, data_axis)
    return free, state, value * target.num_counted


@eqx.filter_jit
def adam_chunk(target, plan, carried, flags, keys, inputs: ChunkInputs, mesh: Mesh | None = None):
    """Adam steps on every chain, from `carried` positions, spreads and optimiser states; `flags` is empty."""
    del flags
    optimiser = start_optimiser(plan)

    def energy_of(free, batch, key):
        position, log_spreads = free
        if not jax.tree.leaves(log_spreads):
            return -target.log_joint(position, batch, key) / target.num_counted
        key, draw_key = jr.split(key)
        bound = target.log_joint(drawn_position(position, log_spreads, draw_key), batch, key) + entropy(log_spreads)
        return -bound / target.num_counted

    def one_chain(carried, key, rows, data):
        def body(carry, at):
            free, state, key = carry
            key, step_key = jr.split(key)
            batch = _batch(data, at, target.dtype, mesh)
            free, state, energy = gradient_step(
                optimiser, lambda free: energy_of(free, batch, step_key), free, state, _data_axis(mesh)
            )
            return (free, state, key), energy * target.num_counted

        (free, state, _), energy = jax.lax.scan(body, (*carried, key), rows)
        return free, state, energy

    return _on_devices(mesh, one_chain, carried, keys, inputs)


@eqx.filter_jit
def sample_chunk(target, plan, carried: Chain, flags, keys, inputs: ChunkInputs, mesh: Mesh | None = None):
    """Updates of every chain; also returns the positions after every `plan.thinning` updates, and `Info`.

    Burn-in and draws are one program. `flags` are `adapts_mass [T]` and `optimises [T]`: whether each update adapts the
    mass, and whether it is followed by a step on the optimised blocks.
    """
    num_updates = flags[0].shape[0]
    by_draw = (num_updates // plan.thinning, plan.thinning)
    flags = tuple(flag.reshape(by_draw) for flag in flags)

    def one_update(data, carry, at):
        (chain, key), (batch_rows, adapts_mass, optimises) = carry, at
        key, sample_key, optimise_key = jr.split(key, 3)
        batch = _batch(data, batch_rows, target.dtype, mesh)
        sampler = _sampler(target, plan, chain.optimised, _data_axis(mesh))
        state, info = sampler.burn_in(sample_key, chain.sampler, batch)
        state = jax.tree.map(partial(jnp.where, adapts_mass), state, with_mass_of(chain.sampler, state))
        chain = chain._replace(sampler=state)
        if jax.tree.leaves(chain.optimised):
            optimise = partial(_optimise, target, plan, batch, _data_axis(mesh))
            chain = jax.lax.cond(optimises, optimise, lambda _, same: same, optimise_key, chain)
        return (chain, key), info

    def one_draw(data, carry, at):
        carry, info = jax.lax.scan(partial(one_update, data), carry, at)
        return carry, (carry[0].sampler.position, info)

    def one_chain(chain, key, rows, data):
        rows = jax.tree.map(lambda x: x.reshape(*by_draw, *x.shape[1:]), rows)
        (chain, _), (positions, info) = jax.lax.scan(partial(one_draw, data), (chain, key), (rows, *flags))
        info = jax.tree.map(lambda x: x.reshape(num_updates, *x.shape[2:]), info)
        if info.gradient is not None:  # too large to return, and only its covariance is needed
            learned = learn_gradient_noise(chain.sampler, info.gradient)
            sampler = jax.tree.map(partial(jnp.where, jnp.any(flags[0])), learned, chain.sampler)
            chain, info = chain._replace(sampler=sampler), info._replace(gradient=None)
        return chain, positions, info

    return _on_devices(mesh, one_chain, carried, keys, inputs)


@eqx.filter_jit
def renew_axes_of_chains(chains: Chain) -> Chain:
    """Chains along new axes, each along those of its own gradient noise."""
    return over_chains(lambda chain: chain._replace(sampler=renew_axes(chain.sampler)), chains)


def _optimise(target, plan, batch, data_axis, key, chain: Chain) -> Chain:
    """One Adam step on the optimised leaves, at a random draw of the window, which the current one enters first."""
    pick_key, density_key = jr.split(key)
    slot = chain.num_recent % plan.window
    recent = jax.tree.map(lambda kept, x: kept.at[slot].set(x), chain.recent, chain.sampler.position)
    num_recent = chain.num_recent + 1
    picked = jr.randint(pick_key, (), 0, jnp.minimum(num_recent, plan.window))
    draw = jax.tree.map(lambda kept: kept[picked], recent)
    optimised, state, _ = _adam_step(
        target, optax.adam(plan.optimise_rate), chain.optimised, chain.optimiser, draw, batch, density_key, data_axis
    )
    return chain._replace(optimised=optimised, optimiser=state, recent=recent, num_recent=num_recent)
