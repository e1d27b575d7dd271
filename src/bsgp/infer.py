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

HOT = 1.15  # a block this much above temperature 1 samples something visibly wider than the posterior
MAX_RETRIES = 8


@dataclass(frozen=True)
class Plan:
    """How long to run, and how. One gradient evaluation per update."""

    warm_start: int = 2_000
    """Adam steps towards the mode before sampling."""
    learning_rate: float = 0.01
    burn_in: int = 10_000
    """SGHMC updates that adapt mass and step size and are thrown away."""
    num_draws: int = 256
    thinning: int = 32
    """Updates from one kept draw to the next."""
    batch_size: int = 1_000
    step_size: float | None = None
    """None adapts it during burn-in; a number keeps it."""
    friction: float = 0.05
    integrator: str = "baoab"
    mass: str = "fisher"
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


def infer(
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
        for size in self._chunks("warm start", self.plan.warm_start, share_of_time=0.2):
            previous = self.positions
            self.positions, optimiser_state, energy = _warm_chunk(
                self.target, self.plan.learning_rate, self.positions, optimiser_state, *self._inputs(size)
            )
            self._record("warm start", energy)
            self._guard("warm start", energy, previous)
        self.chains = _init_chains(self.target, self.plan, self.positions)

    def _burn_in(self):
        adapting = self.plan.step_size is None
        for size in self._chunks("burn-in", self.plan.burn_in, share_of_time=0.6):
            previous, inputs = self.chains, self._inputs(size)
            # a mass that follows the gradient lingers where it is large; the second half burns in with the mass kept
            adapts_mass = self.trace.energy.get("burn-in", np.empty((0, 0))).shape[1] < self.plan.burn_in / 2
            for _ in range(MAX_RETRIES):
                chains, info = _burn_chunk(self.target, self.plan, adapts_mass, previous, *inputs)
                if not adapting or np.isfinite(info.energy).all() and _all_finite(chains):
                    break
                previous = _rescale(previous, np.full(self.num_chains, 0.25))  # too long a step: try again, shorter
            self.chains = chains
            self._record("burn-in", info.energy)
            self._guard("burn-in", info.energy, previous.sampler.position, info)
            if adapting:
                factor = jax.vmap(partial(step_size_factor, friction=self.plan.friction))(info, chains.sampler.position)
                self.chains = _rescale(chains, np.asarray(factor))
            self.trace.step_size.append(np.asarray(self.chains.sampler.step_size))

    def _draws(self):
        plan = self.plan
        per_chunk = max(1, plan.chunk // plan.thinning)
        heat = []
        for size in self._chunks("draws", plan.num_draws * plan.thinning, 1.0, per_chunk * plan.thinning):
            previous = self.chains
            self.chains, positions, info = _draw_chunk(self.target, plan, previous, *self._inputs(size))
            self._record("draws", info.energy)
            self._guard("draws", info.energy, previous.sampler.position, info)
            heat.append(info.temperature)
            self.trace.temperature = {
                leaf_name(path): np.mean(np.concatenate([np.asarray(_get(h, path)) for h in heat], axis=1), axis=1)
                for path, _ in jtu.tree_leaves_with_path(info.temperature)
            }
            yield positions

    # -- between chunks ----------------------------------------------------------------------------------------

    def _chunks(self, phase: str, total: int, share_of_time: float, chunk: int | None = None):
        """Sizes of the chunks of a phase, until it is done or its share of the time is gone."""
        chunk, done = chunk or self.plan.chunk, 0
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
        """Keys `[C size]`, the data, and row numbers `[C size B]` (None where a batch is all rows)."""
        self.key, key = jr.split(self.key)
        keys = jr.split(key, (self.num_chains, size))
        if self.minibatches[0].batch_size == self.target.num_data:
            return keys, self.data, None
        return keys, self.data, jnp.asarray(np.stack([batches.take(size) for batches in self.minibatches]))

    def _record(self, phase: str, energy: Array):
        energy = np.asarray(energy) / self.target.num_data
        seen = self.trace.energy.get(phase)
        self.trace.energy[phase] = energy if seen is None else np.concatenate([seen, energy], axis=1)

    def _guard(self, phase: str, energy: Array, before: PyTree, info: Info | None = None):
        """Stop at the first non-finite number, and say where it was."""
        finite = np.isfinite(np.asarray(energy))
        leaves = {} if info is None else {
            leaf_name(path): np.isfinite(np.asarray(leaf)) for path, leaf in jtu.tree_leaves_with_path(info.temperature)
        }
        for seen in leaves.values():
            finite = finite & seen
        if finite.all():
            return
        step = int(np.argmin(finite.all(axis=0)))
        chain = int(np.argmin(finite[:, step]))
        blocks = [name for name, seen in leaves.items() if not seen[chain, step]] or list(_largest_leaves(before, chain))
        done = self.trace.energy[phase].shape[1] - finite.shape[1]
        raise DivergenceError(
            f"Chain {chain} became non-finite at update {done + step} of the {phase}, in {', '.join(blocks)}. "
            "Standardise X and y, lower `step_size` or `learning_rate`, or raise `jitter`."
        )

    def _warnings(self) -> tuple[str, ...]:
        found = []
        for name, heat in self.trace.temperature.items():
            for chain in np.flatnonzero(heat > HOT):
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


def _get(tree: PyTree, path) -> Array:
    return dict((leaf_name(p), leaf) for p, leaf in jtu.tree_leaves_with_path(tree))[leaf_name(path)]


def _rescale(chains: _Chain, factor: np.ndarray) -> _Chain:
    dtype = chains.sampler.step_size.dtype
    return chains._replace(sampler=jax.vmap(rescale_step)(chains.sampler, jnp.asarray(factor, dtype)))


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


def _rows(data: Batch, rows: Array | None) -> Batch:
    return data if rows is None else Batch(data.X[rows], data.y[rows])


def _sampler(target: Target, plan: Plan, optimised: PyTree) -> Sampler:
    def log_density(sampled, batch, key):
        return target.log_joint(eqx.combine(sampled, optimised), batch, key)

    return sghmc(
        log_density,
        target.num_data,
        step_size=plan.step_size or 0.01,
        friction=plan.friction,
        integrator=plan.integrator,
        mass=plan.mass,
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
    updates, state = optax.adam(learning_rate).update(gradient, state)
    return optax.apply_updates(free, updates), state, value * target.num_data


@eqx.filter_jit
def _warm_chunk(target, learning_rate, positions, states, keys, data, rows):
    nothing = target.select(positions)  # every leaf is free here

    def one_chain(position, state, keys, rows):
        def body(carry, at):
            key, batch_rows = at
            batch = _rows(data, batch_rows)
            position, state, energy = _adam_step(target, learning_rate, *carry, nothing, batch, key)
            return (position, state), energy

        (position, state), energy = jax.lax.scan(body, (position, state), (keys, rows))
        return position, state, energy

    return jax.vmap(one_chain, in_axes=(0, 0, 0, None if rows is None else 0))(positions, states, keys, rows)


@eqx.filter_jit
def _burn_chunk(target, plan, adapt_mass, chains, keys, data, rows):
    optimises = bool(jax.tree.leaves(chains.optimised))

    def body(chain, at):
        key, batch_rows = at
        batch = _rows(data, batch_rows)
        sample_key, optimise_key = jr.split(key)
        sampler = _sampler(target, plan, chain.optimised)
        update = sampler.burn_in if adapt_mass else sampler.step
        state, info = update(sample_key, chain.sampler, batch)
        chain = chain._replace(sampler=state)
        if optimises:
            optimised, optimiser, _ = _adam_step(
                target, plan.learning_rate, chain.optimised, chain.optimiser, state.position, batch, optimise_key
            )
            chain = chain._replace(optimised=optimised, optimiser=optimiser)
        return chain, info

    scan = jax.vmap(partial(jax.lax.scan, body), in_axes=(0, (0, None if rows is None else 0)))
    return scan(chains, (keys, rows))


@eqx.filter_jit
def _draw_chunk(target, plan, chains, keys, data, rows):
    num_chains, num_updates = keys.shape[:2]
    shape = (num_chains, num_updates // plan.thinning, plan.thinning)
    keys = keys.reshape(shape)
    rows = None if rows is None else rows.reshape(*shape, -1)

    def one_draw(chain, at):
        sampler = _sampler(target, plan, chain.optimised)

        def body(state, at):
            key, batch_rows = at
            return sampler.step(key, state, _rows(data, batch_rows))

        state, info = jax.lax.scan(body, chain.sampler, at)
        return chain._replace(sampler=state), (state.position, info)

    scan = jax.vmap(partial(jax.lax.scan, one_draw), in_axes=(0, (0, None if rows is None else 0)))
    chains, (positions, info) = scan(chains, (keys, rows))
    return chains, positions, jax.tree.map(lambda x: x.reshape(num_chains, num_updates), info)
