"""The inference loop: warm start, burn-in and draws, in compiled chunks, for one chain or several.

This file is what runs on the host between chunks: the clock, the step size, the guard, progress, Ctrl-C.
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.checks import check_count
from bsgp.chunks import (
    Chain,
    init_chains,
    sample_chunk,
    scattered_starts,
    stack_draws,
    warm_chunk,
    warm_start_optimiser,
)
from bsgp.data.minibatches import Minibatches
from bsgp.health import check_finite, drift_warnings, temperature_warnings
from bsgp.history import History, Report, silent
from bsgp.model import DeepGP
from bsgp.optimise import even_chunk
from bsgp.plan import Plan
from bsgp.sghmc import Info, step_size_factor, with_step_size
from bsgp.target import Batch, Target, block_of, leaf_name

HEAT_LIMIT = 0.05  # the excess temperature that the step size is adapted to
ROUGH_HEAT_LIMIT = 0.3  # the same while the mass still moves
SAFETY = 0.7  # half the excess temperature: it grows with the square of the step
MAX_STEP_SIZE = 0.1  # ten times the authors', where u is anchored
MAX_PLAIN_STEP_SIZE = 0.03  # where it is not: beyond it chains of few rows stay cool and yet leave their mode
MAX_RETRIES = 8
PAPER_ITERATION = 21  # METHOD section 3: one update that adapts, then ten pairs of one that does and one that does not


@dataclass
class Trace:
    """What was seen on the way, per chain; time runs along the last axis."""

    energy: dict[str, np.ndarray] = field(default_factory=dict)
    """For `warm start`, `burn-in` and `draws`: energy / N of every update, `[C T]`."""
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """During the draws, for every leaf: mean kinetic temperature of each chain, `[C]`."""
    step_size: list[np.ndarray] = field(default_factory=list)
    """After every chunk of burn-in, of each leaf, `[C leaves]`."""


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
    target: Target
    plan: Plan
    chains: Chain
    """Where the chains stand: `sample` can go on from there."""

    @property
    def history(self) -> History:
        trace = self.trace
        return History(
            energy=trace.energy,
            evaluations=self.evaluations,
            seconds=self.seconds,
            interrupted=self.interrupted,
            warnings=self.warnings,
            temperature=trace.temperature,
            step_size=float(np.max(trace.step_size[-1])) if trace.step_size else None,
        )


def sample(
    target: Target,
    X,
    y,
    key: Array,
    *,
    plan: Plan = Plan(),
    num_chains: int = 1,
    chains: Chain | None = None,
    report: Report | None = None,
) -> Run:
    """Draw from `target` given all data `X [N D]`, `y [N P]`. The same key gives the same draws.

    `chains` of an earlier run on the same target and data are gone on with, with no warm start and no burn-in.
    """
    data = target.all_rows(X, y)
    check_count("num_chains", num_chains)
    if not jax.tree.leaves(target.select(target.model, "sample")):
        raise ValueError(
            f"`treatment` must sample at least one block, got {dict(target.treatment)}. "
            "Sample u, at least: it is what the predictive distribution is made of."
        )
    return _Loop(target, data, key, plan, num_chains, report or silent).run(chains)


def join(first: Run, second: Run) -> Run:
    """Two runs of the same chains, one after the other, as one."""
    before, after = (run.trace.energy["draws"].shape[1] for run in (first, second))
    share = after / (before + after)
    energy = {**first.trace.energy, "draws": np.concatenate([r.trace.energy["draws"] for r in (first, second)], axis=1)}
    heat = {
        name: (1 - share) * first.trace.temperature[name] + share * second.trace.temperature[name]
        for name in second.trace.temperature
    }
    return second._replace(
        model=jax.tree.map(lambda *draws: jnp.concatenate(draws, axis=1), first.model, second.model),
        trace=Trace(energy, heat, first.trace.step_size),
        evaluations=first.evaluations + second.evaluations,
        seconds=first.seconds + second.seconds,
    )


class _Loop:
    """One run on the host. `self.chains` holds all chains, stacked along the first axis."""

    def __init__(self, target: Target, data: Batch, key: Array, plan: Plan, num_chains: int, report: Report):
        start_key, batch_key, self.key = jr.split(key, 3)
        self.target, self.data, self.plan, self.report = target, data, plan, report
        self.num_chains = num_chains
        seeds = np.asarray(jr.randint(batch_key, (num_chains,), 0, 2**31 - 1))
        self.minibatches = [Minibatches(target.num_data, plan.batch_size, int(seed)) for seed in seeds]
        self.chains: Chain
        self.positions: PyTree = scattered_starts(target, start_key, num_chains, plan.start_spread)
        self.trace, self.evaluations = Trace(), 0
        self.began = time.monotonic()
        self.interrupted = False

    def run(self, chains: Chain | None) -> Run:
        draws = []
        try:
            if chains is None:
                self._warm_start()
                self._burn_in()
            else:
                self.chains = chains
            for drawn in self._draws():
                draws.append(drawn)
        except KeyboardInterrupt:
            if not draws:
                raise
            self.interrupted = True
        sampled = jax.tree.map(lambda *chunks: np.concatenate(chunks, axis=1), *draws)
        model = stack_draws(self.target, sampled, self.chains.optimised)
        return Run(
            model=model,
            trace=self.trace,
            warnings=self._warnings(),
            evaluations=self.evaluations,
            seconds=time.monotonic() - self.began,
            interrupted=self.interrupted,
            target=self.target,
            plan=self.plan,
            chains=self.chains,
        )

    # -- phases ------------------------------------------------------------------------------------------------

    def _warm_start(self):
        optimiser_state = jax.vmap(warm_start_optimiser(self.plan).init)(self.positions)
        total = self.plan.warm_start
        for size in self._chunks("warm start", total, even_chunk(total, self.plan.chunk), share_of_time=0.2):
            self.positions, optimiser_state, energy = warm_chunk(
                self.target, self.plan, self.positions, optimiser_state, *self._inputs(size)
            )
            self._record("warm start", energy)
        self.chains = init_chains(self.target, self.plan, self.positions)

    def _burn_in(self):
        """Half for the mass, a quarter for the step size, and a quarter with both kept as they will be in the draws.

        A mass that follows the gradient lingers where it is large, and momenta lag behind it and look hot: only with
        the mass kept is the temperature worth a close look.
        """
        adapts_step = self.plan.step_size is None
        wanted, chunk = self.plan.burn_in, self._chunk_size
        total = max(1, round(wanted / chunk)) * chunk if wanted else 0
        settled = not (adapts_step and total)
        for size in self._chunks("burn-in", total, chunk, share_of_time=0.6):
            progress = self._done("burn-in") / total
            info = self._burn_chunk(size, adapts_mass=progress < 0.5, may_retry=adapts_step)
            if adapts_step and progress < 0.75:
                limit = ROUGH_HEAT_LIMIT if progress < 0.5 else HEAT_LIMIT
                self._rescale(step_size_factor(info, self._leaf_sizes, self.plan.friction, limit))
                if (progress + size / total) >= 0.75:
                    self._settle_step_size()
                    settled = True
            self.trace.step_size.append(np.asarray(self.chains.sampler.step_size))
        if not settled:  # out of time before the step size was
            self._settle_step_size()
            self.trace.step_size.append(np.asarray(self.chains.sampler.step_size))

    def _burn_chunk(self, size: int, adapts_mass: bool, may_retry: bool) -> Info:
        adapts, optimises = self._burn_in_flags(size, adapts_mass)
        for attempt in range(MAX_RETRIES):
            chains, _, info = sample_chunk(
                self.target, self.plan, self.chains, jnp.asarray(adapts), jnp.asarray(optimises), *self._inputs(size)
            )
            if jax.tree.leaves(chains.optimised):
                self.evaluations += int(optimises.sum())  # Adam's
            if _all_finite((chains.sampler, info)) or not may_retry or attempt == MAX_RETRIES - 1:
                break
            self._rescale(0.25)  # too long a step: from the same place again, shorter
        self.chains = chains
        self._record("burn-in", info.energy, info.temperature)
        return info

    def _burn_in_flags(self, size: int, adapts_mass: bool) -> tuple[np.ndarray, np.ndarray]:
        """For each of the next updates: does the mass adapt, and are the optimised blocks improved after it?"""
        update = self._done("burn-in") + np.arange(size)
        optimises = (update + 1) % self.plan.optimise_every == 0
        if self.plan.adaptation == "steady":
            return np.full(size, adapts_mass), optimises
        place = update % PAPER_ITERATION
        return (place == 0) | (place % 2 == 1), optimises

    def _settle_step_size(self):
        """From the steps that were tried while the mass was kept: their geometric mean, made safer."""
        tried = np.stack([*self.trace.step_size[len(self.trace.step_size) * 2 // 3 :], self.chains.sampler.step_size])
        self._rescale(SAFETY * np.exp(np.log(tried).mean(axis=0)) / np.asarray(self.chains.sampler.step_size))

    def _rescale(self, factor: np.ndarray | float):
        """Multiply step sizes by `[C leaves]` factors; all blocks keep in step but the noise, which may be slower.

        One block that is too fast heats the others through their correlations, and what is large enough to see it is
        slow to tell. The noise is the exception: its gradient varies the most between minibatches, and if it set the
        pace all would crawl.
        """
        sampler = self.chains.sampler
        longest = MAX_PLAIN_STEP_SIZE if self.target.anchor is None else MAX_STEP_SIZE
        wanted = np.minimum(np.asarray(sampler.step_size) * factor, longest)
        others = ~self._is_noise
        if others.any():
            pace = wanted[:, others].min(axis=1, keepdims=True)
            wanted = np.where(others[None, :], pace, np.minimum(wanted, pace))
        scaled = jax.vmap(with_step_size)(sampler, jnp.asarray(wanted, sampler.step_size.dtype))
        self.chains = self.chains._replace(sampler=scaled)

    def _draws(self):
        plan, heat = self.plan, 0.0
        for size in self._chunks("draws", plan.num_draws * plan.thinning, self._chunk_size, share_of_time=1.0):
            off = jnp.zeros(size, bool)
            self.chains, positions, info = sample_chunk(self.target, plan, self.chains, off, off, *self._inputs(size))
            self._record("draws", info.energy, info.temperature)
            heat = heat + np.asarray(info.temperature).sum(axis=1)  # [C leaves]
            self.trace.temperature = dict(zip(self._leaf_names, heat.T / self._done("draws"), strict=True))
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
            self.report(phase, done, total, float(np.mean(self.trace.energy[phase][:, -size:])))
            limit = self.plan.max_seconds
            if limit is not None and done < total and time.monotonic() - self.began > share_of_time * limit:
                self.interrupted = True
                return

    def _inputs(self, size: int):
        """A key for each chain, the data, and row numbers `[C size B]` (where a batch is all rows: `[C size 0]`)."""
        self.evaluations += size
        self.key, key = jr.split(self.key)
        keys = jr.split(key, self.num_chains)
        if self.minibatches[0].batch_size == self.target.num_data:
            return keys, self.data, jnp.empty((self.num_chains, size, 0), jnp.int32)
        return keys, self.data, jnp.asarray(np.stack([self._take(batches, size) for batches in self.minibatches]))

    def _take(self, batches: Minibatches, size: int) -> np.ndarray:
        """Row numbers of the next updates; in the authors' rhythm two updates share a minibatch."""
        if self.plan.adaptation == "steady":
            return batches.take(size)
        return np.repeat(batches.take(-(-size // 2)), 2, axis=0)[:size]

    @property
    def _leaf_names(self) -> list[str]:
        return [leaf_name(path) for path, _ in jtu.tree_leaves_with_path(self.chains.sampler.position)]

    @property
    def _is_noise(self) -> np.ndarray:
        paths = jtu.tree_leaves_with_path(self.chains.sampler.position)
        return np.asarray([block_of(path) == "noise" for path, _ in paths])

    @property
    def _leaf_sizes(self) -> list[int]:
        return [leaf[0].size for leaf in jax.tree.leaves(self.chains.sampler.position)]

    def _record(self, phase: str, energy: Array, temperature: Array | None = None):
        """Keep the energies of a chunk, and stop if a number in it is not finite."""
        per_row, done = np.asarray(energy) / self.target.num_data, self._done(phase)
        blocks = (
            {}
            if temperature is None
            else dict(zip(self._leaf_names, np.moveaxis(np.asarray(temperature), 2, 0), strict=True))
        )
        check_finite(phase, done, per_row, blocks)
        self.trace.energy[phase] = np.concatenate([self.trace.energy[phase], per_row], axis=1) if done else per_row

    def _warnings(self) -> tuple[str, ...]:
        updates = self._done("draws") * self.plan.friction  # independent ones: momenta are forgotten at that rate
        error = {n: np.sqrt(2.0 / (size * updates)) for n, size in zip(self._leaf_names, self._leaf_sizes, strict=True)}
        hot = temperature_warnings(self.trace.temperature, error)
        return (*hot, *drift_warnings(self.trace.energy["draws"]))


def _all_finite(tree: PyTree) -> bool:
    return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))
