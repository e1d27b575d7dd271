"""Optimisation on minibatches in compiled chunks, for any method."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array

from bsgp.data.store.sources import AbstractStreamedSource
from bsgp.inference.batches import ChunkInputs, batch_at, open_batches
from bsgp.inference.history import History, Report
from bsgp.inference.host_loop import Clock, HostLoop, even_chunk
from bsgp.models.batch import Batch
from bsgp.runtime.mesh import mean_over

CHUNK = 200
FINAL_RATE = 0.01  # of Adam at the end of its cosine, as a share of the first

Step = Callable[[Any, Batch, Array], tuple[Any, Array]]
"""`step(state, batch, key) -> (state, what is minimised, per row)`."""


class Optimised(NamedTuple):
    """Where an optimisation ended, and how it got there."""

    state: Any
    history: History


def cosine_adam(rate: float, num_steps: int, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam whose rate falls to a hundredth along a cosine: long steps first, no blur from minibatches at the end."""
    return optax.adam(optax.cosine_decay_schedule(rate, max(num_steps, 1), FINAL_RATE), b1=b1)


def init_optimiser(optimiser: optax.GradientTransformation, free: Any) -> optax.OptState:
    """State of an optimiser of any tree; optax's own annotation knows plain containers only."""
    return optimiser.init(free)


def gradient_step(
    optimiser: optax.GradientTransformation,
    loss: Callable[[Any], Array],
    free: Any,
    state: optax.OptState,
    data_axis: str | None = None,
) -> tuple[Any, optax.OptState, Array]:
    """One step of an optimiser down `loss`, or its mean over an axis of a mesh, and the loss before it."""
    found = jax.value_and_grad(loss)(free)
    value, gradient = found if data_axis is None else mean_over(data_axis, found)
    return *apply_gradient(optimiser, gradient, free, state), value


def apply_gradient(
    optimiser: optax.GradientTransformation, gradient: Any, free: Any, state: optax.OptState
) -> tuple[Any, optax.OptState]:
    """One step of an optimiser along a known gradient."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, state = optimiser.update(gradient, state, free)
    return optax.apply_updates(free, updates), state


def run_steps(
    step: Step,
    state: Any,
    data: Batch | AbstractStreamedSource,
    key: Array,
    *,
    num_steps: int,
    batch_size: int,
    phase: str,
    report: Report,
    clock: Clock,
    share: float = 1.0,
    chunk: int = CHUNK,
    gradients_per_step: int = 1,
) -> Optimised:
    """`num_steps` steps, or as many as fit into `share` of the clock's time or precede Ctrl-C."""
    seed_key, key = jr.split(key)
    batches = open_batches(data, batch_size, [int(jr.randint(seed_key, (), 0, 2**31 - 1))])
    dtype = jnp.result_type(float)  # JAX's own precision, whatever a source holds

    @eqx.filter_jit
    def advance(state, keys, inputs: ChunkInputs):
        def one(state, at):
            step_key, picked = at
            return step(state, batch_at(inputs.data, picked, dtype), step_key)

        return jax.lax.scan(one, state, (keys, jax.tree.map(lambda x: x[0], inputs.rows)))

    loop = HostLoop(report, clock)
    with closing(batches), loop.stoppable(lambda: loop.energy.done(phase) > 0):
        for size in loop.chunks(phase, num_steps, even_chunk(num_steps, chunk), share=share):
            key, chunk_key = jr.split(key)
            after, energy = advance(state, jr.split(chunk_key, size), batches.take(size))
            loop.energy.record(phase, np.asarray(energy)[None, :])
            state = after
    energy = loop.energy.by_phase.get(phase, np.empty((1, 0)))
    history = History({phase: energy}, gradients_per_step * energy.size, clock.seconds, loop.interrupted)
    return Optimised(state, history)


def minimise(
    loss: Callable[[Any, Batch, Array], Array],
    free: Any,
    optimiser: optax.GradientTransformation,
    data: Batch | AbstractStreamedSource,
    key: Array,
    *,
    num_steps: int,
    batch_size: int,
    report: Report,
    clock: Clock,
    phase: str = "optimise",
    share: float = 1.0,
    chunk: int = CHUNK,
) -> Optimised:
    """`run_steps` of an optimiser down `loss(free, batch, key)`; the state at the end is the optimised tree."""

    def step(state, batch, step_key):
        free, memory, value = gradient_step(optimiser, lambda free: loss(free, batch, step_key), *state)
        return (free, memory), value

    done = run_steps(
        step, (free, init_optimiser(optimiser, free)), data, key,
        num_steps=num_steps, batch_size=batch_size, phase=phase, report=report, clock=clock, share=share, chunk=chunk,
    )  # fmt: skip
    return done._replace(state=done.state[0])
