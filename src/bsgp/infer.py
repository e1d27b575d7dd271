"""The inference loop: warm start, burn-in and draws, in compiled chunks, for several chains at once.

What the machine compiles is at the bottom (`_warm_chunk`, `_burn_chunk`, `_draw_chunk`); everything above it runs
between chunks on the host: the clock, the guard, the step size, progress, Ctrl-C.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, PyTree

from bsgp.checks import check_count, check_matrix, check_option, check_positive
from bsgp.data.minibatches import Minibatches
from bsgp.model import DeepGP
from bsgp.sghmc import INTEGRATORS, Info, Sampler, State, normal_like, rescale_step, sghmc, step_size_factor
from bsgp.target import Batch, Target, leaf_name

HEAT_LIMIT = 0.05  # the excess temperature that the step size is adapted to
ROUGH_HEAT_LIMIT = 1.0  # the same while the mass still moves
SAFETY = 0.7  # half the excess temperature: it grows with the square of the step
HOT = 1.15  # a block this much above temperature 1 samples something visibly wider than the posterior
START_STEP_SIZE = 0.01  # the authors'; where it is adapted, a first guess
MAX_RETRIES = 8


@dataclass(frozen=True)
class Plan:
    """How long to run, and how. One gradient evaluation per update."""

    warm_start: int = 2_000
    """Adam steps towards the mode before sampling."""
    learning_rate: float = 0.01
    burn_in: int = 10_000
    """SGHMC updates that adapt mass and step size and are thrown away; rounded to whole chunks."""
    num_draws: int = 256
    thinning: int = 32
    """Updates from one kept draw to the next."""
    batch_size: int = 1_000
    step_size: float | None = None
    """None adapts it during burn-in; a number keeps it."""
    friction: float = 0.05
    integrator: str = "baoab"
    start_spread: float = 0.1
    """Standard deviation of what is added to each chain's start, so that chains begin apart."""
    max_seconds: float | None = None
    """Stop early, at the end of a chunk; whatever was drawn by then is returned."""
    chunk: int = 500
    """Updates per compiled call: how often progress, guard and clock are looked at."""

    def __post_init__(self):
        for name, minimum in (("warm_start", 0), ("burn_in", 0), ("num_draws", 1), ("thinning", 1), ("batch_size", 1)):
            check_count(name, getattr(self, name), minimum)
        check_count("chunk", self.chunk)
        check_positive("learning_rate", self.learning_rate)
        check_option("integrator", self.integrator, INTEGRATORS)
        for name in ("step_size", "max_seconds"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    @property
    def evaluations(self) -> int:
        """Gradient evaluations of a full run of one chain in which nothing is optimised after the warm start."""
        return self.warm_start + self.burn_in + self.num_draws * self.thinning


class DivergenceError(RuntimeError):
    """A chain left the finite numbers."""


@dataclass
class Trace:
    """What was seen on the way, per chain; time runs along the last axis."""

    energy: dict[str, np.ndarray] = field(default_factory=dict)
    """For `warm start`, `burn-in` and `draws`: energy / N of every update, `[C T]`."""
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """During the draws, for every leaf: mean kinetic temperature of each chain, `[C]`."""
    step_size: list[np.ndarray] = field(default_factory=list)
    """After every chunk of burn-in, `[C]`."""


class Run(NamedTuple):
    """What inference returns."""

    model: DeepGP
    """Constrained draws: every array carries [C S] in front."""
    trace: Trace
    warnings: tuple[str, ...]
    """Plain sentences about chains that should not be trusted; empty if none."""
    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool
    """Whether Ctrl-C or `max_seconds` ended it before its plan."""


Report = Callable[[str, int, int, float], None]
"""`report(phase, updates done, updates planned, energy / N)`, called after every chunk."""


def sample(
    target: Target, X, y, key: Array, *, plan: Plan = Plan(), num_chains: int = 1, report: Report | None = None
) -> Run:
    """Draw from `target` given all data `X [N D]`, `y [N P]`. The same key gives the same draws."""
    X = check_matrix("X", X, columns=target.model.num_inputs, rows=target.num_data)
    y = target.model.likelihood.check_targets(check_matrix("y", y, rows=X.shape[0]))
    check_count("num_chains", num_chains)
    data = Batch(jnp.asarray(X), jnp.asarray(y, jnp.asarray(X).dtype))
    return _Loop(target, data, key, plan, num_chains, report or (lambda *_: None)).run()


class _Chain(NamedTuple):
    """All that one chain carries from update to update."""

    sampler: State
    optimised: PyTree
    optimiser: optax.OptState


class _Loop:
    """One run on the host. `self.chains` holds all chains, stacked along the first axis."""

    def __init__(self, target: Target, data: Batch, key: Array, plan: Plan, num_chains: int, report: Report):
        start_key, batch_key, self.key = jr.split(key, 3)
        self.target, self.data, self.plan, self.report = target, data, plan, report
        self.num_chains = num_chains
        seeds = np.asarray(jr.randint(batch_key, (num_chains,), 0, 2**31 - 1))
        self.minibatches = [Minibatches(target.num_data, plan.batch_size, int(seed)) for seed in seeds]
        self.positions = _scattered_starts(target, start_key, num_chains, plan.start_spread)
        self.trace, self.evaluations = Trace(), 0
        self.began = time.monotonic()
        self.interrupted = False

    def run(self) -> Run:
        draws = []
        try:
            self._warm_start()
            self._burn_in()
            for drawn in self._draws():
                draws.append(drawn)
        except KeyboardInterrupt:
            if not draws:
                raise
            self.interrupted = True
        model = _stack_draws(self.target, draws, self.chains.optimised)
        return Run(
            model, self.trace, self._warnings(), self.evaluations, time.monotonic() - self.began, self.interrupted
        )

    # -- phases ------------------------------------------------------------------------------------------------

    def _warm_start(self):
        optimiser_state = jax.vmap(optax.adam(self.plan.learning_rate).init)(self.positions)
        for size in self._chunks("warm start", self.plan.warm_start, self.plan.chunk, share_of_time=0.2):
            previous = self.positions
            self.positions, optimiser_state, energy = _warm_chunk(
                self.target, self.plan.learning_rate, self.positions, optimiser_state, *self._inputs(size)
            )
            self._record("warm start", energy)
            self._guard("warm start", energy, previous)
        self.chains = _init_chains(self.target, self.plan, self.positions)

    def _burn_in(self):
        """Half for the mass, a quarter for the step size, and a quarter with both kept as they will be in the draws.

        A mass that follows the gradient lingers where it is large, and momenta lag behind it and look hot: only with
        the mass kept is the temperature worth a close look.
        """
        adapts_step = self.plan.step_size is None
        wanted, chunk = self.plan.burn_in, self._chunk_size
        total = max(1, round(wanted / chunk)) * chunk if wanted else 0
        for size in self._chunks("burn-in", total, chunk, share_of_time=0.6):
            progress = self._done("burn-in") / total
            info = self._burn_chunk(size, adapts_mass=progress < 0.5, may_retry=adapts_step)
            if adapts_step and progress < 0.75:
                limit = ROUGH_HEAT_LIMIT if progress < 0.5 else HEAT_LIMIT
                self._rescale(step_size_factor(info, self._leaf_sizes(), self.plan.friction, limit))
                if (progress + size / total) >= 0.75:
                    self._settle_step_size()
            self.trace.step_size.append(np.asarray(self.chains.sampler.step_size))

    def _burn_chunk(self, size: int, adapts_mass: bool, may_retry: bool) -> Info:
        for attempt in range(MAX_RETRIES):
            before = self.chains
            chains, _, info = _sample_chunk(
                self.target, self.plan, before, jnp.asarray(adapts_mass), jnp.asarray(True), *self._inputs(size)
            )
            if _all_finite((chains.sampler, info)) or not may_retry or attempt == MAX_RETRIES - 1:
                break
            self._rescale(np.full(self.num_chains, 0.25))  # too long a step: from the same place again, shorter
        self.chains = chains
        self._record("burn-in", info.energy)
        self._guard("burn-in", info.energy, before.sampler.position, info)
        return info

    def _settle_step_size(self):
        """From the steps that were tried while the mass was kept: their geometric mean, made safer."""
        tried = np.stack([*self.trace.step_size[len(self.trace.step_size) * 2 // 3 :], self.chains.sampler.step_size])
        self._rescale(SAFETY * np.exp(np.log(tried).mean(axis=0)) / np.asarray(self.chains.sampler.step_size))

    def _rescale(self, factor: np.ndarray):
        """Multiply every chain's step size by its own factor."""
        sampler = self.chains.sampler
        factor = jnp.asarray(factor, sampler.step_size.dtype)
        self.chains = self.chains._replace(sampler=jax.vmap(rescale_step)(sampler, factor))

    def _draws(self):
        plan, heat = self.plan, 0.0
        for size in self._chunks("draws", plan.num_draws * plan.thinning, self._chunk_size, share_of_time=1.0):
            previous = self.chains
            off = jnp.asarray(False)
            self.chains, positions, info = _sample_chunk(self.target, plan, previous, off, off, *self._inputs(size))
            self._record("draws", info.energy)
            self._guard("draws", info.energy, previous.sampler.position, info)
            heat = heat + np.asarray(info.temperature).sum(axis=1)  # [C leaves]
            self.trace.temperature = dict(zip(self._leaf_names(), heat.T / self._done("draws"), strict=True))
            yield positions

    # -- between chunks ----------------------------------------------------------------------------------------

    @property
    def _chunk_size(self) -> int:
        """Updates per chunk of burn-in and draws: whole draws and, if it can be, a divisor of them all."""
        plan = self.plan
        most = max(1, plan.chunk // plan.thinning)
        divisor = max(d for d in range(1, most + 1) if plan.num_draws % d == 0)
        return plan.thinning * (divisor if 2 * divisor > most else most)

    def _done(self, phase: str) -> int:
        return self.trace.energy[phase].shape[1] if phase in self.trace.energy else 0

    def _chunks(self, phase: str, total: int, chunk: int, share_of_time: float):
        """Sizes of the chunks of a phase, until it is done or its share of the time is gone."""
        done = 0
        while done < total:
            size = min(chunk, total - done)
            yield size
            done += size
            self.evaluations += size
            self.report(phase, done, total, float(np.mean(self.trace.energy[phase][:, -size:])))
            limit = self.plan.max_seconds
            if limit is not None and done < total and time.monotonic() - self.began > share_of_time * limit:
                self.interrupted = True
                return

    def _inputs(self, size: int):
        """A key for each chain, the data, and row numbers `[C size B]` (where a batch is all rows: `[C size 0]`)."""
        self.key, key = jr.split(self.key)
        keys = jr.split(key, self.num_chains)
        if self.minibatches[0].batch_size == self.target.num_data:
            return keys, self.data, jnp.empty((self.num_chains, size, 0), jnp.int32)
        return keys, self.data, jnp.asarray(np.stack([batches.take(size) for batches in self.minibatches]))

    def _leaf_names(self) -> list[str]:
        return [leaf_name(path) for path, _ in jtu.tree_leaves_with_path(self.chains.sampler.position)]

    def _leaf_sizes(self) -> list[int]:
        return [leaf[0].size for leaf in jax.tree.leaves(self.chains.sampler.position)]

    def _record(self, phase: str, energy: Array):
        energy = np.asarray(energy) / self.target.num_data
        seen = self.trace.energy.get(phase)
        self.trace.energy[phase] = energy if seen is None else np.concatenate([seen, energy], axis=1)

    def _guard(self, phase: str, energy: Array, before: PyTree, info: Info | None = None):
        """Stop at the first non-finite number, and say where it was."""
        finite = np.isfinite(np.asarray(energy))
        by_leaf = finite[:, :, None] if info is None else np.isfinite(np.asarray(info.temperature))
        finite = finite & by_leaf.all(axis=2)
        if finite.all():
            return
        step = int(np.argmin(finite.all(axis=0)))
        chain = int(np.argmin(finite[:, step]))
        blocks = [n for n, ok in zip(self._leaf_names(), by_leaf[chain, step], strict=False) if not ok and info is not None]
        blocks = blocks or _largest_leaves(before, chain)
        done = self.trace.energy[phase].shape[1] - finite.shape[1]
        raise DivergenceError(
            f"Chain {chain} became non-finite at update {done + step} of the {phase}, in {', '.join(blocks)}. "
            "Standardise X and y, lower `step_size` or `learning_rate`, or raise `jitter`."
        )

    def _warnings(self) -> tuple[str, ...]:
        found = []
        for (name, heat), size in zip(self.trace.temperature.items(), self._leaf_sizes(), strict=True):
            error = np.sqrt(2.0 / (size * self._done("draws") * self.plan.friction))
            for chain in np.flatnonzero(heat - 2.0 * error > HOT):
                found.append(
                    f"Chain {chain} runs hot: {name} has temperature {heat[chain]:.2f} where 1 is right. "
                    "Its draws are too wide; lower `step_size` or raise `batch_size`."
                )
        energy = self.trace.energy.get("draws")
        if energy is not None and energy.shape[1] >= 200:
            for chain, drift in enumerate(_energy_drift(energy)):
                if abs(drift) > 4.0:
                    found.append(
                        f"Chain {chain} still moves: its energy {'falls' if drift < 0 else 'rises'} during the draws "
                        f"({abs(drift):.1f} standard errors between halves). Raise `burn_in`."
                    )
        return tuple(found)


def _energy_drift(energy: np.ndarray, num_blocks: int = 20) -> np.ndarray:
    """Second half less first half of each chain's energies, in standard errors from means over blocks."""
    usable = energy.shape[1] // num_blocks * num_blocks
    blocks = energy[:, :usable].reshape(energy.shape[0], num_blocks, -1).mean(axis=2)
    first, second = np.split(blocks, 2, axis=1)
    error = np.sqrt((first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / (num_blocks // 2))
    return (second.mean(axis=1) - first.mean(axis=1)) / np.maximum(error, 1e-300)


def _largest_leaves(position: PyTree, chain: int, num: int = 2):
    """Names of the leaves with the largest entries: the likely culprits when everything turns NaN at once."""
    sizes = {
        leaf_name(path): float(np.nanmax(np.abs(np.asarray(leaf[chain]))))
        for path, leaf in jtu.tree_leaves_with_path(position)
    }
    return sorted(sizes, key=sizes.__getitem__, reverse=True)[:num]


def _all_finite(tree: PyTree) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def _scattered_starts(target: Target, key: Array, num_chains: int, spread: float) -> DeepGP:
    """The model's position once per chain, each moved a little at random."""
    start = target.unconstrain(target.model)

    def scatter(chain_key):
        return jax.tree.map(lambda x, z: x + spread * z, start, normal_like(chain_key, start))

    return jax.vmap(scatter)(jr.split(key, num_chains))


def _stack_draws(target: Target, draws: list[DeepGP], optimised: PyTree) -> DeepGP:
    """Positions `[C S ...]` of the sampled leaves and `[C ...]` of the optimised ones, as one constrained model."""
    sampled = jax.tree.map(lambda *chunks: jnp.concatenate(chunks, axis=1), *draws)
    num_chains, num_draws = jax.tree.leaves(sampled)[0].shape[:2]
    still = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (num_chains, num_draws, *x.shape[1:])), optimised)
    free, _ = jax.vmap(jax.vmap(target.constrain))(eqx.combine(sampled, still))
    return free


# -- compiled ----------------------------------------------------------------------------------------------------


def _rows(data: Batch, rows: Array) -> Batch:
    return data if rows.size == 0 else Batch(data.X[rows], data.y[rows])


def _sampler(target: Target, plan: Plan, optimised: PyTree) -> Sampler:
    def log_density(sampled, batch, key):
        return target.log_joint(eqx.combine(sampled, optimised), batch, key)

    return sghmc(
        log_density,
        target.num_data,
        step_size=plan.step_size or START_STEP_SIZE,
        friction=plan.friction,
        integrator=plan.integrator,
    )


def _init_chains(target: Target, plan: Plan, positions: DeepGP) -> _Chain:
    def init(position):
        sampled, optimised = target.select(position, "sample"), target.select(position, "optimise")
        optimiser_state = optax.adam(plan.learning_rate).init(optimised)
        return _Chain(_sampler(target, plan, optimised).init(sampled), optimised, optimiser_state)

    return jax.vmap(init)(positions)


def _adam_step(target, learning_rate, free, state, rest, batch, key):
    """One step of Adam on the `free` leaves of a position, up the log joint."""

    def loss(free):
        return -target.log_joint(eqx.combine(free, rest), batch, key) / target.num_data

    value, gradient = jax.value_and_grad(loss)(free)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, state = optax.adam(learning_rate).update(gradient, state)
    return optax.apply_updates(free, updates), state, value * target.num_data


@eqx.filter_jit
def _warm_chunk(target, learning_rate, positions, states, keys, data, rows):
    nothing = target.select(positions)  # every leaf is free here

    def one_chain(position, state, key, rows):
        def body(carry, at):
            position, state, key = carry
            key, step_key = jr.split(key)
            position, state, energy = _adam_step(
                target, learning_rate, position, state, nothing, _rows(data, at), step_key
            )
            return (position, state, key), energy

        (position, state, _), energy = jax.lax.scan(body, (position, state, key), rows)
        return position, state, energy

    return jax.vmap(one_chain)(positions, states, keys, rows)


@eqx.filter_jit
def _sample_chunk(target, plan, chains, adapts_mass, optimises, keys, data, rows):
    """Updates of every chain, and the positions after every `plan.thinning` of them.

    Burn-in and draws are one program: `adapts_mass` and `optimises` are flags that it is given, not compiled for.
    """
    num_chains, num_updates, batch_size = rows.shape
    rows = rows.reshape(num_chains, num_updates // plan.thinning, plan.thinning, batch_size)

    def one_update(carry, batch_rows):
        chain, key = carry
        key, sample_key, optimise_key = jr.split(key, 3)
        batch = _rows(data, batch_rows)
        state, info = _sampler(target, plan, chain.optimised).burn_in(sample_key, chain.sampler, batch)
        kept = chain.sampler._replace(position=state.position, momentum=state.momentum)
        state = jax.tree.map(partial(jnp.where, adapts_mass), state, kept)
        optimised, optimiser = jax.lax.cond(
            optimises,
            partial(_optimise, target, plan, state.position, batch, optimise_key),
            lambda *same: same,
            chain.optimised,
            chain.optimiser,
        )
        return (_Chain(state, optimised, optimiser), key), info

    def one_draw(carry, rows):
        carry, info = jax.lax.scan(one_update, carry, rows)
        return carry, (carry[0].sampler.position, info)

    (chains, _), (positions, info) = jax.vmap(partial(jax.lax.scan, one_draw))((chains, keys), rows)
    return chains, positions, jax.tree.map(lambda x: x.reshape(num_chains, num_updates, *x.shape[3:]), info)


def _optimise(target, plan, sampled, batch, key, optimised, optimiser):
    """One step of Adam on the optimised leaves at the chain's current draw; nothing where there are none."""
    if not jax.tree.leaves(optimised):
        return optimised, optimiser
    return _adam_step(target, plan.learning_rate, optimised, optimiser, sampled, batch, key)[:2]
