"""What is compiled: chunks of updates for all chains, and the states they carry.

Everything here is a pure function of arrays. Chains are stacked along the first axis and mapped over; on a mesh every
device has some of the chains and a share of the rows of their minibatches.
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

from bsgp.exact import ExactTarget
from bsgp.feed import Feed, batch_at
from bsgp.fisher import longest_step
from bsgp.mesh import CHAIN, DATA, OF_ALL, OF_CHAINS, OF_ROWS
from bsgp.model import DeepGP, Share
from bsgp.optimise import cosine_adam, descend
from bsgp.plan import Plan
from bsgp.sghmc import Sampler, State, moved, normal_like, sghmc, turned, with_gradients
from bsgp.target import Batch, Target

START_STEP_SIZE = 0.002  # where it is adapted: short enough to begin with, and it grows
START_SHARE, MAX_START = 0.1, 0.01  # the same with the Fisher mass: a share of the longest step, and at most


class Chain(NamedTuple):
    """All that one chain carries from update to update."""

    sampler: State
    optimised: PyTree
    optimiser: optax.OptState
    recent: PyTree
    """The latest draws at which the optimised blocks were improved, `[W ...]`; None where nothing is optimised."""
    num_recent: Array


def over_chains(function, *stacked: PyTree) -> PyTree:
    """`function` of every chain: one after the other on a CPU, all at once elsewhere.

    On a CPU a batch of chains gains nothing, and batched factorisations can lock up XLA's pool of threads for good
    (seen with jaxlib 0.10.2, two threads, four chains of two layers).
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda at: function(*at), stacked)
    return jax.vmap(function)(*stacked)


def _on_devices(mesh: Mesh | None, function, carried: PyTree, keys: Array, feed: Feed) -> PyTree:
    """`function(carried, key, rows, data)` of every chain, wherever it is; its results are on every device."""
    if mesh is None:
        return over_chains(lambda *chain: function(*chain, feed.data), carried, keys, feed.rows)

    def on_one(carried, keys, rows, data):
        done = over_chains(lambda *chain: function(*chain, data), carried, keys, rows)
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, CHAIN, tiled=True), done)

    specs = (OF_CHAINS, OF_CHAINS, OF_ROWS, OF_ALL)
    # no types of varying axes: nothing is differentiated across devices, and our own gradients do not know them
    spread = jax.shard_map(on_one, mesh=mesh, in_specs=specs, out_specs=OF_ALL, check_vma=False)
    return spread(carried, keys, feed.rows, feed.data)


def _data_axis(mesh: Mesh | None) -> str | None:
    """The axis that minibatches are shared out over, if they are."""
    return DATA if mesh is not None and mesh.shape[DATA] > 1 else None


def _batch(data: Batch | None, at: PyTree, dtype, mesh: Mesh | None) -> Batch:
    """The minibatch of one update, or the share of it that this device has."""
    batch = batch_at(data, at, dtype)
    if mesh is None or _data_axis(mesh) is None:
        return batch
    return Batch(batch.X, batch.y, Share(jax.lax.axis_index(DATA), mesh.shape[DATA]))


@eqx.filter_jit
def scattered_starts(target: Target | ExactTarget, key: Array, num_chains: int, spread: float) -> PyTree:
    """The model's position once per chain, each moved a little at random."""
    start = target.start()

    def scatter(chain_key):
        return jax.tree.map(lambda x, z: x + spread * z, start, normal_like(chain_key, start))

    return jax.vmap(scatter)(jr.split(key, num_chains))


@eqx.filter_jit
def stack_draws(target: Target, sampled: DeepGP, optimised: PyTree) -> DeepGP:
    """Positions `[C S ...]` of the sampled leaves and `[C ...]` of the optimised ones, as one constrained model."""
    num_chains, num_draws = jax.tree.leaves(sampled)[0].shape[:2]
    still = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (num_chains, num_draws, *x.shape[1:])), optimised)
    positions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), eqx.combine(sampled, still))
    # one draw after the other, for the reason that chains are
    free = jax.lax.map(lambda position: target.constrain(position)[0], positions)
    return jax.tree.map(lambda x: x.reshape(num_chains, num_draws, *x.shape[1:]), free)


def _sampler(target: Target, plan: Plan, optimised: PyTree, data_axis: str | None = None) -> Sampler:
    def log_density(sampled, batch, key):
        return target.log_joint(eqx.combine(sampled, optimised), batch, key)

    return sghmc(
        log_density,
        target.num_counted,
        num_rows=target.num_data,
        step_size=plan.step_size or _start_step_size(plan, target.num_counted),
        friction=plan.friction,
        integrator=plan.integrator,
        adaptation=plan.adaptation,
        batch_size=plan.batch_size,
        data_axis=data_axis,
    )


def _start_step_size(plan: Plan, num_counted: float) -> float:
    if plan.adaptation != "fisher":
        return START_STEP_SIZE
    return min(MAX_START, START_SHARE * longest_step(plan.friction, plan.batch_size, num_counted))


@eqx.filter_jit
def init_chains(target: Target, plan: Plan, positions: DeepGP) -> Chain:
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


def warm_start_optimiser(plan: Plan) -> optax.GradientTransformation:
    return cosine_adam(plan.learning_rate, plan.warm_start)


def _adam_step(target, optimiser, free, state, rest, batch, key, data_axis):
    """One step of Adam on the `free` leaves of a position, up the log joint."""

    def loss(free):
        return -target.log_joint(eqx.combine(free, rest), batch, key) / target.num_counted

    free, state, value = descend(optimiser, loss, free, state, data_axis)
    return free, state, value * target.num_counted


@eqx.filter_jit
def warm_chunk(target, plan, carried, flags, keys, feed: Feed, mesh: Mesh | None = None):
    """Steps of Adam on every chain, from `carried` positions and states of the optimiser; `flags` there are none."""
    del flags
    nothing = target.select(carried[0])  # every leaf is free here
    optimiser = warm_start_optimiser(plan)

    def one_chain(carried, key, rows, data):
        def body(carry, at):
            position, state, key = carry
            key, step_key = jr.split(key)
            batch = _batch(data, at, target.dtype, mesh)
            position, state, energy = _adam_step(
                target, optimiser, position, state, nothing, batch, step_key, _data_axis(mesh)
            )
            return (position, state, key), energy

        (position, state, _), energy = jax.lax.scan(body, (*carried, key), rows)
        return position, state, energy

    return _on_devices(mesh, one_chain, carried, keys, feed)


@eqx.filter_jit
def sample_chunk(target, plan, carried: Chain, flags, keys, feed: Feed, mesh: Mesh | None = None):
    """Updates of every chain, and the positions after every `plan.thinning` of them.

    Burn-in and draws are one program: `flags`, `adapts_mass [T]` and `optimises [T]`, say for each update what it may
    change.
    """
    num_updates = flags[0].shape[0]
    by_draw = (num_updates // plan.thinning, plan.thinning)
    flags = tuple(flag.reshape(by_draw) for flag in flags)

    def one_update(data, carry, at):
        (chain, key), (batch_rows, adapts, improves) = carry, at
        key, sample_key, optimise_key = jr.split(key, 3)
        batch = _batch(data, batch_rows, target.dtype, mesh)
        sampler = _sampler(target, plan, chain.optimised, _data_axis(mesh))
        state, info = sampler.burn_in(sample_key, chain.sampler, batch)
        state = jax.tree.map(partial(jnp.where, adapts), state, moved(chain.sampler, state))
        chain = chain._replace(sampler=state)
        if jax.tree.leaves(chain.optimised):
            improved = partial(_improve, target, plan, batch, _data_axis(mesh))
            chain = jax.lax.cond(improves, improved, lambda _, same: same, optimise_key, chain)
        return (chain, key), info

    def one_draw(data, carry, at):
        carry, info = jax.lax.scan(partial(one_update, data), carry, at)
        return carry, (carry[0].sampler.position, info)

    def one_chain(chain, key, rows, data):
        rows = jax.tree.map(lambda x: x.reshape(*by_draw, *x.shape[1:]), rows)
        (chain, _), (positions, info) = jax.lax.scan(partial(one_draw, data), (chain, key), (rows, *flags))
        info = jax.tree.map(lambda x: x.reshape(num_updates, *x.shape[2:]), info)
        if info.gradient is not None:  # too much to take along, and its covariance is all that is wanted
            learned = with_gradients(chain.sampler, info.gradient)
            sampler = jax.tree.map(partial(jnp.where, jnp.any(flags[0])), learned, chain.sampler)
            chain, info = chain._replace(sampler=sampler), info._replace(gradient=None)
        return chain, positions, info

    return _on_devices(mesh, one_chain, carried, keys, feed)


@eqx.filter_jit
def turn_axes(chains: Chain) -> Chain:
    """Every chain along the axes of its own gradients' noise."""
    return over_chains(lambda chain: chain._replace(sampler=turned(chain.sampler)), chains)


def _improve(target, plan, batch, data_axis, key, chain: Chain) -> Chain:
    """One step of Adam on the optimised leaves, at a random one of the latest draws, of which the current is one."""
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
