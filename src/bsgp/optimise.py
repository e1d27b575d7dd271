"""Optimisation on minibatches in compiled chunks: the clock, progress and Ctrl-C in between, for any method."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array

from bsgp.data.sources import AbstractStreamedSource
from bsgp.feed import Feed, batch_at, open_feed
from bsgp.health import DivergenceError
from bsgp.history import History, Report
from bsgp.mesh import mean_over
from bsgp.target import Batch

CHUNK = 200
FINAL_RATE = 0.01  # of Adam along its cosine, as a share of the first

Step = Callable[[Any, Batch, Array], tuple[Any, Array]]
"""`step(state, batch, key) -> (state, what is minimised, per row)`."""


class Optimised(NamedTuple):
    """Where an optimisation ended."""

    state: Any
    energy: np.ndarray
    """Of every step, `[1 T]`."""
    interrupted: bool

    def history(self, seconds: float, gradients_per_step: int = 1) -> History:
        """Of a fit that was this optimisation and nothing else."""
        return History({"optimise": self.energy}, gradients_per_step * self.energy.size, seconds, self.interrupted)


class Clock:
    """When a fit began and when it must end."""

    def __init__(self, max_seconds: float | None = None):
        self.began, self.max_seconds = time.monotonic(), max_seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def is_past(self, share: float = 1.0) -> bool:
        """Whether that share of the time is gone."""
        return self.max_seconds is not None and self.seconds > share * self.max_seconds


def cosine_adam(rate: float, num_steps: int, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam whose rate falls to a hundredth along a cosine: long steps first, no blur from minibatches at the end."""
    return optax.adam(optax.cosine_decay_schedule(rate, max(num_steps, 1), FINAL_RATE), b1=b1)


def begin(optimiser: optax.GradientTransformation, free: Any) -> optax.OptState:
    """The state of an optimiser of any tree; optax's own annotation knows plain containers only."""
    return optimiser.init(free)


def descend(
    optimiser: optax.GradientTransformation,
    loss: Callable[[Any], Array],
    free: Any,
    state: optax.OptState,
    data_axis: str | None = None,
) -> tuple[Any, optax.OptState, Array]:
    """One step of an optimiser down `loss`, or its mean over an axis of a mesh, and the loss before it."""
    found = jax.value_and_grad(loss)(free)
    value, gradient = found if data_axis is None else mean_over(data_axis, found)
    return *improve(optimiser, gradient, free, state), value


def improve(
    optimiser: optax.GradientTransformation, gradient: Any, free: Any, state: optax.OptState
) -> tuple[Any, optax.OptState]:
    """One step along a gradient that is known."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, state = optimiser.update(gradient, state, free)
    return optax.apply_updates(free, updates), state


def even_chunk(total: int, most: int) -> int:
    """A size of chunks that leaves no remainder, if there is one near: a smaller last chunk is compiled anew."""
    return next((size for size in range(min(most, total), most // 2, -1) if total % size == 0), most)


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
) -> Optimised:
    """`num_steps` steps, or as many as fit into `share` of the clock's time or come before Ctrl-C."""
    seed_key, key = jr.split(key)
    feed = open_feed(data, batch_size, [int(jr.randint(seed_key, (), 0, 2**31 - 1))])
    dtype = jnp.result_type(float)  # of the run: JAX's own, whatever a source holds

    @eqx.filter_jit
    def advance(state, keys, given: Feed):
        def one(state, at):
            step_key, picked = at
            return step(state, batch_at(given.data, picked, dtype), step_key)

        return jax.lax.scan(one, state, (keys, jax.tree.map(lambda x: x[0], given.rows)))

    chunk, energies, interrupted = even_chunk(num_steps, chunk), [], False
    done = 0
    try:
        while done < num_steps:
            size = min(chunk, num_steps - done)
            key, chunk_key = jr.split(key)
            after, energy = advance(state, jr.split(chunk_key, size), feed.take(size))
            energy = np.asarray(energy)
            _check_finite(phase, done, energy)
            state, done = after, done + size
            energies.append(energy)
            report(phase, done, num_steps, float(energy.mean()))
            if done < num_steps and clock.is_past(share):
                interrupted = True
                break
    except KeyboardInterrupt:
        if not energies:
            raise
        interrupted = True
    finally:
        feed.close()
    energy = np.concatenate(energies) if energies else np.empty(0)
    return Optimised(state, energy[None, :], interrupted)


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
    """As `run_steps`, down `loss(free, batch, key)`; the state at the end is what was free."""

    def step(state, batch, step_key):
        free, memory, value = descend(optimiser, lambda free: loss(free, batch, step_key), *state)
        return (free, memory), value

    done = run_steps(
        step, (free, begin(optimiser, free)), data, key,
        num_steps=num_steps, batch_size=batch_size, phase=phase, report=report, clock=clock, share=share, chunk=chunk,
    )  # fmt: skip
    return done._replace(state=done.state[0])


def _check_finite(phase: str, done: int, energy: np.ndarray) -> None:
    if not np.isfinite(energy).all():
        raise DivergenceError(
            f"The objective became non-finite at step {done + int(np.argmin(np.isfinite(energy)))} of the {phase}. "
            "Standardise X and y, lower `learning_rate`, or raise `jitter`."
        )
