"""The inference loop: warm start, burn-in and draws, in compiled chunks, for one chain or several.

This file is what runs on the host between chunks: the clock, the step size, the guard, checkpoints, Ctrl-C.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.checkpoints import Checkpoints, Snapshot, tree_from_arrays, tree_to_arrays
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
from bsgp.data.sources import AbstractStreamedSource
from bsgp.feed import open_feed, row_seeds
from bsgp.health import ADVICE, DivergenceError, Fault, drift_warnings, faults, temperature_warnings
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
RUNAWAY = 10.0  # the mean temperature of a block over a chunk, beyond which its chain is taken back
RUNAWAY_ADAPTING = 50.0  # the same while the mass adapts, when momenta look hot
MAX_RETRIES, SHRINK = 4, 0.5
MAX_ADAPTING_RETRIES, SHRINK_ADAPTING = 8, 0.25  # where the step is adapted again
MAX_TAKEN_BACK = 5  # times during the draws
PHASES = ("warm start", "burn-in", "draws")
PAPER_ITERATION = 21  # METHOD section 3: one update that adapts, then ten pairs of one that does and one that does not


logger = logging.getLogger("bsgp")


@dataclass
class Trace:
    """What was seen on the way, per chain; time runs along the last axis."""

    energy: dict[str, np.ndarray] = field(default_factory=dict)
    """For `warm start`, `burn-in` and `draws`: energy / N of every update, `[C T]`."""
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """During the draws, for every leaf: mean kinetic temperature of each chain, `[C]`."""
    step_size: list[np.ndarray] = field(default_factory=list)
    """After every chunk of burn-in, of each leaf, `[C leaves]`."""
    events: list[str] = field(default_factory=list)
    """Chains that were taken back, and when."""
    stopped: list[str] = field(default_factory=list)
    """Chains that were left out, and why."""


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
    checkpoints: Checkpoints | None = None,
) -> Run:
    """Draw from `target` given all data `X [N D]`, `y [N P]`, or a streamed source and None. The same key gives the
    same draws.

    `chains` of an earlier run on the same target and data are gone on with, with no warm start and no burn-in.
    With `checkpoints` the run is kept on disk as it goes, and goes on from there.
    """
    data = target.data_of(X, y)
    check_count("num_chains", num_chains)
    if not jax.tree.leaves(target.select(target.model, "sample")):
        raise ValueError(
            f"`treatment` must sample at least one block, got {dict(target.treatment)}. "
            "Sample u, at least: it is what the predictive distribution is made of."
        )
    loop = _Loop(target, data, key, plan, num_chains, report or silent, checkpoints)
    try:
        return loop.run(chains)
    finally:
        loop.feed.close()


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


class _Advanced(NamedTuple):
    """What a chunk of updates left behind."""

    positions: PyTree
    info: Info


class _Stretch(NamedTuple):
    """Some draws of the chains with these numbers, `[C S ...]`."""

    names: list[int]
    positions: PyTree

    def of(self, names: list[int]) -> "_Stretch":
        kept = [self.names.index(name) for name in names]
        return _Stretch(list(names), jax.tree.map(lambda leaf: leaf[np.asarray(kept)], self.positions))


class _Loop:
    """One run on the host. `self.chains` holds all chains, stacked along the first axis."""

    def __init__(
        self,
        target: Target,
        data: Batch | AbstractStreamedSource,
        key: Array,
        plan: Plan,
        num_chains: int,
        report: Report,
        checkpoints: Checkpoints | None,
    ):
        start_key, batch_key, self.key = jr.split(key, 3)
        self.target, self.plan, self.report, self.checkpoints = target, plan, report, checkpoints
        self.feed = open_feed(data, plan.batch_size, row_seeds(batch_key, num_chains))
        self.names = list(range(num_chains))
        """The numbers of the chains that are still there."""
        self.positions: PyTree = scattered_starts(target, start_key, num_chains, plan.start_spread)
        self.adam = jax.vmap(warm_start_optimiser(plan).init)(self.positions)
        self.chains: Chain = init_chains(target, plan, self.positions)
        self.draws: list[_Stretch] = []
        self.num_saved = 0
        self.trace, self.evaluations = Trace(), 0
        self.heat = np.zeros((num_chains, len(self._leaf_names)))
        self.taken_back = np.zeros(num_chains, int)
        self.began = time.monotonic()
        self.interrupted = False

    def run(self, chains: Chain | None) -> Run:
        saved = None if self.checkpoints is None else self.checkpoints.load()
        phase = "warm start" if chains is None else "draws"
        if chains is not None:
            self.chains = chains
        if saved is not None:
            phase = self._go_on_from(saved)
        try:
            if phase == "warm start":
                self._warm_start()
            if phase != "draws":
                self._burn_in()
            self._draw()
        except KeyboardInterrupt:
            if not self.draws:
                raise
            self.interrupted = True
        sampled = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *(one.positions for one in self.draws))
        model = stack_draws(self.target, sampled, self.chains.optimised)
        return Run(
            model=model,
            trace=self.trace,
            warnings=self._warnings(),
            evaluations=self.evaluations,
            seconds=self._seconds,
            interrupted=self.interrupted,
            target=self.target,
            plan=self.plan,
            chains=self.chains,
        )

    # -- phases ------------------------------------------------------------------------------------------------

    def _warm_start(self):
        total, plan = self.plan.warm_start, self.plan
        for size in self._chunks("warm start", total, even_chunk(total, self.plan.chunk), share_of_time=0.2):
            keys, feed = self._inputs(size)
            for attempt in range(MAX_RETRIES + 1):
                state = self.positions, self.adam
                positions, adam, energy = warm_chunk(self.target, plan, *state, jr.clone(keys), feed)
                energy = np.where(_finite_chains(positions)[:, None], np.asarray(energy), np.nan)
                found = faults(energy, {}, {}, np.inf)
                if not found or attempt == MAX_RETRIES:
                    break
                self._note("warm start", found, "a lower learning rate")
                plan = replace(plan, learning_rate=SHRINK_ADAPTING * plan.learning_rate)
            self.positions, self.adam = positions, adam
            energy = self._stop("warm start", found, energy)
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
        settled = not (adapts_step and total) or self._done("burn-in") / total >= 0.75
        for size in self._chunks("burn-in", total, chunk, share_of_time=0.6):
            progress = self._done("burn-in") / total
            info = self._burn_chunk(size, adapts_mass=progress < 0.5)
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

    def _burn_chunk(self, size: int, adapts_mass: bool) -> Info:
        update = self._done("burn-in") + np.arange(size)
        optimises = (update + 1) % self.plan.optimise_every == 0
        adapts = np.full(size, adapts_mass)
        if self.plan.adaptation == "paper":
            place = update % PAPER_ITERATION
            adapts = (place == 0) | (place % 2 == 1)
        if jax.tree.leaves(self.chains.optimised):
            self.evaluations += int(optimises.sum())  # Adam's
        if self.plan.step_size is None:
            return self._advance("burn-in", adapts, optimises, MAX_ADAPTING_RETRIES, SHRINK_ADAPTING).info
        return self._advance("burn-in", adapts, optimises, MAX_RETRIES, SHRINK).info

    def _draw(self):
        plan = self.plan
        for size in self._chunks("draws", plan.num_draws * plan.thinning, self._chunk_size, share_of_time=1.0):
            off = np.zeros(size, bool)
            positions, info = self._advance("draws", off, off, MAX_RETRIES, SHRINK)
            self.heat = self.heat + np.asarray(info.temperature).sum(axis=1)
            self.trace.temperature = dict(zip(self._leaf_names, self.heat.T / self._done("draws"), strict=True))
            self.draws.append(_Stretch(list(self.names), jax.tree.map(np.asarray, positions)))

    # -- step size ---------------------------------------------------------------------------------------------

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

    # -- guard -------------------------------------------------------------------------------------------------

    def _advance(self, phase: str, adapts: np.ndarray, optimises: np.ndarray, retries: int, shrink: float) -> _Advanced:
        """A chunk of updates. A chain that went wrong in it is taken back and does it again with a shorter step."""
        start, (keys, feed) = self.chains, self._inputs(adapts.size)
        flags = jnp.asarray(adapts), jnp.asarray(optimises)
        limit = RUNAWAY_ADAPTING if adapts.any() else RUNAWAY
        done = sample_chunk(self.target, self.plan, start, *flags, keys, feed)
        for attempt in range(retries + 1):
            found = self._faults(done[2], limit)
            mended = {chain: fault for chain, fault in found.items() if self.taken_back[chain] < MAX_TAKEN_BACK}
            if not mended or attempt == retries:
                break
            self._note(phase, mended, f"a step {shrink:g} times as long")
            if phase == "draws":
                self.taken_back[list(mended)] += 1
            is_bad = np.isin(np.arange(len(self.names)), list(mended))
            shorter = jax.vmap(with_step_size)(
                start.sampler,
                start.sampler.step_size * jnp.where(is_bad, shrink, 1.0).astype(self.target.dtype)[:, None],
            )
            start = start._replace(sampler=shorter)
            self.evaluations += adapts.size
            again = sample_chunk(self.target, self.plan, start, *flags, jr.clone(keys), feed)
            done = jax.tree.map(partial(_where_chain, is_bad), again, done)
        self.chains, positions, info = done
        positions, info = self._stop(phase, found, (positions, info))
        self._record(phase, info.energy)
        return _Advanced(positions, info)

    def _faults(self, info: Info, limit: float) -> dict[int, Fault]:
        by_leaf = dict(zip(self._leaf_names, np.moveaxis(np.asarray(info.temperature), 2, 0), strict=True))
        error = self._temperature_error(info.energy.shape[1])
        return faults(np.asarray(info.energy), by_leaf, error, limit)

    def _note(self, phase: str, found: dict[int, Fault], remedy: str) -> None:
        for chain, fault in found.items():
            event = (
                f"Chain {self.names[chain]} {fault.what} at update {self._done(phase) + fault.update} of the {phase}, "
                f"and went on from update {self._done(phase)} with {remedy}."
            )
            self.trace.events.append(event)
            logger.info(event)

    def _stop(self, phase: str, found: dict[int, Fault], chunk: PyTree) -> PyTree:
        """Leave out the chains that went wrong however short the step; the others, and their `chunk`, go on."""
        if not found:
            return chunk
        for chain, fault in found.items():
            self.trace.stopped.append(
                f"Chain {self.names[chain]} {fault.what} at update {self._done(phase) + fault.update} of the {phase} "
                f"whatever the step, and was left out. {ADVICE}"
            )
        kept = np.asarray([chain for chain in range(len(self.names)) if chain not in found], int)
        if not kept.size:
            raise DivergenceError(self.trace.stopped[0].replace(", and was left out", ""))
        logger.warning(self.trace.stopped[-1])
        self.names = [self.names[chain] for chain in kept]
        self.feed.keep(kept.tolist())
        self.taken_back, self.heat = self.taken_back[kept], self.heat[kept]
        self.trace.energy = {phase: energy[kept] for phase, energy in self.trace.energy.items()}
        self.trace.step_size = [step[kept] for step in self.trace.step_size]
        self.draws = [one.of(self.names) for one in self.draws]
        of_all = self.positions, self.adam, self.chains, chunk
        self.positions, self.adam, self.chains, chunk = jax.tree.map(lambda leaf: leaf[kept], of_all)
        return chunk

    # -- between chunks ----------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.began

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
        while self._done(phase) < total:
            size = min(chunk, total - self._done(phase))
            yield size
            done = self._done(phase)
            self.report(phase, done, total, float(np.mean(self.trace.energy[phase][:, -size:])))
            limit = self.plan.max_seconds
            if limit is not None and done < total and self._seconds > share_of_time * limit:
                self.interrupted = True
                break
            if self.checkpoints is not None and self.checkpoints.is_due and done < total:
                self._save(phase)
        if self.checkpoints is not None and total:
            self._save(phase)

    def _inputs(self, size: int):
        """A key for each chain, and what its updates look at."""
        self.evaluations += size
        self.key, key = jr.split(self.key)
        # in the authors' rhythm two updates share a minibatch
        return jr.split(key, len(self.names)), self.feed.take(size, times=1 if self.plan.adaptation == "steady" else 2)

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

    def _temperature_error(self, num_updates: int) -> dict[str, float]:
        """Of the mean over so many updates, if the chain is well: momenta are forgotten at the rate of the friction."""
        independent = num_updates * self.plan.friction
        sizes = zip(self._leaf_names, self._leaf_sizes, strict=True)
        return {name: float(np.sqrt(2.0 / (size * independent))) for name, size in sizes}

    def _record(self, phase: str, energy: Array | np.ndarray):
        per_row, done = np.asarray(energy) / self.target.num_data, self._done(phase)
        self.trace.energy[phase] = np.concatenate([self.trace.energy[phase], per_row], axis=1) if done else per_row

    def _warnings(self) -> tuple[str, ...]:
        hot = temperature_warnings(self.trace.temperature, self._temperature_error(self._done("draws")))
        taken_back = [event for event in self.trace.events if "of the draws" in event]
        return (*self.trace.stopped, *taken_back, *hot, *drift_warnings(self.trace.energy["draws"]))

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, phase: str) -> None:
        """What `_go_on_from` needs. Until the warm start is over it is all of a run, and nothing of it later."""
        assert self.checkpoints is not None  # for the type checker
        arrays = {f"energy.{name}": energy for name, energy in self.trace.energy.items()}
        arrays |= {"key": np.asarray(jr.key_data(self.key)), "heat": self.heat, "taken_back": self.taken_back}
        if self.trace.step_size:
            arrays["step_size"] = np.stack(self.trace.step_size)
        if phase == "warm start":
            arrays |= tree_to_arrays("positions", self.positions) | tree_to_arrays("adam", self.adam)
        else:
            arrays |= tree_to_arrays("chains", self.chains)
        facts = {
            "phase": phase,
            "chains": self.names,
            "evaluations": self.evaluations,
            "seconds": self._seconds,
            "batches": self.feed.position,
            "events": self.trace.events,
            "stopped": self.trace.stopped,
        }
        fresh = self.draws[self.num_saved :]
        new = [{"names": np.asarray(one.names)} | tree_to_arrays("draws", one.positions) for one in fresh]
        if self.checkpoints.save(Snapshot(arrays, facts, new)):
            self.num_saved = len(self.draws)

    def _go_on_from(self, saved: Snapshot) -> str:
        """Stand where a checkpoint does, and return the phase that it was in."""
        arrays, facts = saved.arrays, saved.facts
        try:
            phase, names = facts["phase"], [int(name) for name in facts["chains"]]
            if phase not in PHASES or not names or not set(names) <= set(self.names):
                raise ValueError(f"its phase is {phase!r} and its chains are {names}")
            self.trace.energy = {p: arrays[f"energy.{p}"] for p in PHASES if f"energy.{p}" in arrays}
            self.trace.step_size = list(arrays.get("step_size", ()))
            self.trace.events, self.trace.stopped = list(facts["events"]), list(facts["stopped"])
            self.evaluations, self.began = int(facts["evaluations"]), time.monotonic() - float(facts["seconds"])
            self.heat, self.taken_back = arrays["heat"], arrays["taken_back"]
            self.key = jr.wrap_key_data(jnp.asarray(arrays["key"]))
            batches = int(facts["batches"])
            one_draw = self.chains.sampler.position
            self.draws = [_stretch(one_draw, draws).of(names) for draws in saved.draws]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"The checkpoint must be as it was written, got {error!r}: it does not belong. "
                "Delete its folder, or begin anew without `--resume`."
            ) from None
        self.feed.keep([self.names.index(name) for name in names])
        self.names, self.num_saved = names, len(self.draws)
        self.feed.skip(batches)
        as_jax = partial(jax.tree.map, jnp.asarray)
        if phase == "warm start":
            self.positions = as_jax(tree_from_arrays("positions", self.positions, arrays, (len(names),)))
            self.adam = as_jax(tree_from_arrays("adam", self.adam, arrays, (len(names),)))
        else:
            self.chains = as_jax(tree_from_arrays("chains", self.chains, arrays, (len(names),)))
        logger.warning(f"Going on from a checkpoint: {self._done(phase):,} updates into the {phase}.")
        return phase


def _stretch(like: PyTree, arrays: dict[str, np.ndarray]) -> _Stretch:
    names = [int(name) for name in arrays["names"]]
    num_draws = arrays["draws.0"].shape[1]
    return _Stretch(names, tree_from_arrays("draws", like, arrays, (len(names), num_draws)))


def _where_chain(is_bad: np.ndarray, again: Array, before: Array) -> Array:
    return jnp.where(jnp.asarray(is_bad).reshape(-1, *[1] * (again.ndim - 1)), again, before)


def _finite_chains(tree: PyTree) -> np.ndarray:
    """For every chain, whether all of its numbers are finite."""
    leaves = [np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.all(leaves, axis=0)
