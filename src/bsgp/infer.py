"""The inference loop: warm start, burn-in and draws, in compiled chunks, for one chain or several.

This file is what runs on the host between chunks: the clock, the step size, the guard, checkpoints, Ctrl-C.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.checkpoints import Checkpoints, Snapshot, pack, unpack
from bsgp.checks import check_count
from bsgp.chunks import (
    Chain,
    init_chains,
    sample_chunk,
    scattered_starts,
    stack_draws,
    turn_axes,
    warm_chunk,
    warm_start_optimiser,
)
from bsgp.data.sources import AbstractStreamedSource
from bsgp.feed import Feed, open_feed, row_seeds
from bsgp.fisher import longest_step, updates_between_turns
from bsgp.health import ADVICE, DivergenceError, Fault, drift_warnings, faults, temperature_warnings
from bsgp.history import History, Report, silent
from bsgp.mesh import Layout
from bsgp.model import DeepGP
from bsgp.optimise import even_chunk
from bsgp.plan import Plan
from bsgp.run_state import RunState, Trace, does_not_belong
from bsgp.sghmc import Info, State, step_size_factor, with_step_size
from bsgp.target import Batch, Target

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
PAPER_ITERATION = 21  # METHOD section 3: one update that adapts, then ten pairs of one that does and one that does not


logger = logging.getLogger("bsgp")


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
    layout: Layout | None = None,
) -> Run:
    """Draw from `target` given all data `X [N D]`, `y [N P]`, or a streamed source and None. The same key gives the
    same draws.

    `chains` of an earlier run on the same target and data are gone on with, with no warm start and no burn-in.
    With `checkpoints` the run is kept on disk as it goes, and goes on from there. With a `layout` the updates are
    spread over a mesh of devices; all processes of the mesh must call this with the same arguments.
    """
    data = target.data_of(X, y)
    check_count("num_chains", num_chains)
    if not jax.tree.leaves(target.select(target.model, "sample")):
        raise ValueError(
            f"`treatment` must sample at least one block, got {dict(target.treatment)}. "
            "Sample u, at least: it is what the predictive distribution is made of."
        )
    loop = _Loop(target, data, key, plan, num_chains, report or silent, checkpoints, layout)
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


class _Loop:
    """One run on the host."""

    def __init__(
        self,
        target: Target,
        data: Batch | AbstractStreamedSource,
        key: Array,
        plan: Plan,
        num_chains: int,
        report: Report,
        checkpoints: Checkpoints | None,
        layout: Layout | None,
    ):
        start_key, batch_key, run_key = jr.split(key, 3)
        self.target, self.plan, self.report, self.layout = target, plan, report, layout
        self.checkpoints = checkpoints
        positions = scattered_starts(target, start_key, num_chains, plan.start_spread)
        adam = jax.vmap(warm_start_optimiser(plan).init)(positions)
        self.state = RunState(run_key, positions, adam, init_chains(target, plan, positions))
        # last, since it holds files open and what is above may refuse the plan
        self.feed = open_feed(data, plan.batch_size, row_seeds(batch_key, num_chains), layout)
        self.learning_rate = plan.learning_rate
        self.num_saved = 0
        """Stretches of draws that are on disk."""
        self.began = time.monotonic()
        self.interrupted = False

    def run(self, chains: Chain | None) -> Run:
        saved = self._saved()
        phase = "warm start" if chains is None else "draws"
        if chains is not None:
            self.state.chains = chains
        if saved is not None:
            phase = self._go_on_from(saved)
        try:
            if phase == "warm start":
                self._warm_start()
            if phase != "draws":
                self._burn_in()
            self._draw()
        except KeyboardInterrupt:
            if not self.state.draws:
                raise
            self.interrupted = True
        model = stack_draws(self.target, self.state.all_draws(), self.state.chains.optimised)
        return Run(
            model=model,
            trace=self.state.trace,
            warnings=self._warnings(),
            evaluations=self.state.evaluations,
            seconds=self._seconds,
            interrupted=self.interrupted,
            target=self.target,
            plan=self.plan,
            chains=self.state.chains,
        )

    # -- phases ------------------------------------------------------------------------------------------------

    def _warm_start(self):
        total = self.plan.warm_start
        for size in self._chunks("warm start", total, even_chunk(total, self.plan.chunk), share_of_time=0.2):
            keys, feed = self._inputs(size)
            for attempt in range(MAX_RETRIES + 1):
                plan = replace(self.plan, learning_rate=self.learning_rate)
                state = self.state.positions, self.state.adam
                positions, adam, energy = self._run(warm_chunk, plan, state, (), jr.clone(keys), feed)
                energy = np.where(_finite_chains(positions)[:, None], np.asarray(energy), np.nan)
                found = faults(energy, {}, {}, np.inf)
                if not found or attempt == MAX_RETRIES:
                    break
                self._note("warm start", found, "a lower learning rate")
                self.learning_rate *= SHRINK_ADAPTING
            self.state.positions, self.state.adam = positions, adam
            energy = self._stop("warm start", found, energy)
            self.state.record("warm start", energy / self.target.num_counted)
        self.state.chains = init_chains(self.target, self.plan, self.state.positions)

    def _burn_in(self):
        """Half for the mass, a quarter for the step size, and a quarter with both kept as they will be in the draws.

        A mass that follows the gradient lingers where it is large, and momenta lag behind it and look hot: only with
        the mass kept is the temperature worth a close look.
        """
        adapts_step = self.plan.step_size is None
        wanted, chunk = self.plan.burn_in, self._chunk_size
        total = max(1, round(wanted / chunk)) * chunk if wanted else 0
        settled = not (adapts_step and total) or self.state.done("burn-in") / total >= 0.75
        for size in self._chunks("burn-in", total, chunk, share_of_time=0.6):
            progress = self.state.done("burn-in") / total
            info = self._burn_chunk(size, adapts_mass=progress < 0.5)
            if progress < 0.5:
                self._turn_axes(size)
            if adapts_step and progress < 0.75:
                limit = ROUGH_HEAT_LIMIT if progress < 0.5 else HEAT_LIMIT
                self._rescale(step_size_factor(info, self.state.leaf_sizes, self.plan.friction, limit))
                if (progress + size / total) >= 0.75:
                    self._settle_step_size()
                    settled = True
            self.state.trace.step_size.append(np.asarray(self.state.chains.sampler.step_size))
        if not settled:  # out of time before the step size was
            self._settle_step_size()
            self.state.trace.step_size.append(np.asarray(self.state.chains.sampler.step_size))

    def _burn_chunk(self, size: int, adapts_mass: bool) -> Info:
        update = self.state.done("burn-in") + np.arange(size)
        optimises = (update + 1) % self.plan.optimise_every == 0
        adapts = np.full(size, adapts_mass)
        if self.plan.adaptation == "paper":
            place = update % PAPER_ITERATION
            adapts = (place == 0) | (place % 2 == 1)
        if jax.tree.leaves(self.state.chains.optimised):
            self.state.evaluations += int(optimises.sum())  # Adam's
        if self.plan.step_size is None:
            return self._advance("burn-in", adapts, optimises, MAX_ADAPTING_RETRIES, SHRINK_ADAPTING).info
        return self._advance("burn-in", adapts, optimises, MAX_RETRIES, SHRINK).info

    def _turn_axes(self, size: int):
        """Every so many updates, of which these were the latest."""
        noise, done = self.state.chains.sampler.noise, self.state.done("burn-in")
        if noise is None or noise.axes is None:
            return
        period = updates_between_turns(sum(self.state.leaf_sizes))
        if done // period > (done - size) // period:
            self.state.chains = turn_axes(self.state.chains)

    def _draw(self):
        plan = self.plan
        for size in self._chunks("draws", plan.num_draws * plan.thinning, self._chunk_size, share_of_time=1.0):
            off = np.zeros(size, bool)
            positions, info = self._advance("draws", off, off, MAX_RETRIES, SHRINK)
            self.state.add_draws(positions, np.asarray(info.temperature))

    # -- step size ---------------------------------------------------------------------------------------------

    def _settle_step_size(self):
        """From the steps that were tried while the mass was kept: their geometric mean, made safer.

        What is saved there is heat, which a thermostat takes care of by itself.
        """
        earlier, now = self.state.trace.step_size, np.asarray(self.state.chains.sampler.step_size)
        tried = np.stack([*earlier[len(earlier) * 2 // 3 :], now])
        safety = SAFETY if self.state.chains.sampler.noise is None else 1.0
        self._rescale(safety * np.exp(np.log(tried).mean(axis=0)) / now)

    def _rescale(self, factor: np.ndarray | float):
        """Multiply step sizes by `[C leaves]` factors; all blocks keep in step but the noise, which may be slower.

        One block that is too fast heats the others through their correlations, and what is large enough to see it is
        slow to tell. The noise is the exception: its gradient varies the most between minibatches, and if it set the
        pace all would crawl.
        """
        sampler = self.state.chains.sampler
        wanted = np.minimum(np.asarray(sampler.step_size) * factor, self._longest_step)
        # an axis goes through all blocks, and they have one step
        others = ~self.state.is_noise | (sampler.noise is not None and sampler.noise.axes is not None)
        if others.any():
            pace = wanted[:, others].min(axis=1, keepdims=True)
            wanted = np.where(others[None, :], pace, np.minimum(wanted, pace))
        scaled = jax.vmap(with_step_size)(sampler, jnp.asarray(wanted, sampler.step_size.dtype))
        self.state.chains = self.state.chains._replace(sampler=scaled)

    @property
    def _longest_step(self) -> float:
        longest = MAX_PLAIN_STEP_SIZE if self.target.anchor is None else MAX_STEP_SIZE
        if self.plan.adaptation != "fisher":
            return longest
        return min(longest, longest_step(self.plan.friction, self.plan.batch_size, self.target.num_counted))

    # -- guard -------------------------------------------------------------------------------------------------

    def _advance(self, phase: str, adapts: np.ndarray, optimises: np.ndarray, retries: int, shrink: float) -> _Advanced:
        """A chunk of updates. A chain that went wrong in it is taken back and does it again with a shorter step."""
        start, (keys, feed) = self.state.chains, self._inputs(adapts.size)
        flags = jnp.asarray(adapts), jnp.asarray(optimises)
        limit = RUNAWAY_ADAPTING if adapts.any() else RUNAWAY
        done = self._run(sample_chunk, self.plan, start, flags, keys, feed)
        for attempt in range(retries + 1):
            found = self._faults(done[2], limit)
            mended = {chain: fault for chain, fault in found.items() if self.state.taken_back[chain] < MAX_TAKEN_BACK}
            if not mended or attempt == retries:
                break
            self._note(phase, mended, f"a step {shrink:g} times as long")
            if phase == "draws":
                self.state.taken_back[list(mended)] += 1
            is_bad = np.isin(np.arange(len(self.state.names)), list(mended))
            start = start._replace(sampler=_calmer(start.sampler, is_bad, shrink))
            self.state.evaluations += adapts.size
            again = self._run(sample_chunk, self.plan, start, flags, jr.clone(keys), feed)
            done = jax.tree.map(partial(_where_chain, is_bad), again, done)
        self.state.chains, positions, info = done
        if phase == "burn-in":  # which is there to cool down
            found = {chain: fault for chain, fault in found.items() if not fault.is_finite}
        positions, info = self._stop(phase, found, (positions, info))
        self.state.record(phase, np.asarray(info.energy) / self.target.num_counted)
        return _Advanced(positions, info)

    def _faults(self, info: Info, limit: float) -> dict[int, Fault]:
        by_leaf = dict(zip(self.state.leaf_names, np.moveaxis(np.asarray(info.temperature), 2, 0), strict=True))
        error = self._temperature_error(info.energy.shape[1])
        return faults(np.asarray(info.energy), by_leaf, error, limit)

    def _in_words(self, phase: str, chain: int, fault: Fault) -> str:
        update = self.state.done(phase) + fault.update
        return f"Chain {self.state.names[chain]} {fault.what} at update {update} of the {phase}"

    def _note(self, phase: str, found: dict[int, Fault], remedy: str) -> None:
        for chain, fault in found.items():
            event = f"{self._in_words(phase, chain, fault)}, and went on from before that chunk with {remedy}."
            self.state.trace.events.append(event)
            logger.info(event)

    def _stop(self, phase: str, found: dict[int, Fault], chunk: PyTree) -> PyTree:
        """Leave out the chains that went wrong however short the step; the others, and their `chunk`, go on."""
        if not found:
            return chunk
        for chain, fault in found.items():
            told = self._in_words(phase, chain, fault)
            self.state.trace.stopped.append(f"{told} whatever the step, and was left out. {ADVICE}")
        kept = np.asarray([chain for chain in range(len(self.state.names)) if chain not in found], int)
        if not kept.size:
            raise DivergenceError(self.state.trace.stopped[0].replace(", and was left out", ""))
        logger.warning(self.state.trace.stopped[-1])
        self.feed.keep(kept.tolist())
        self.state.keep(kept)
        return jax.tree.map(lambda leaf: leaf[kept], chunk)

    # -- between chunks ----------------------------------------------------------------------------------------

    def _run(self, program: Callable, plan: Plan, carried: PyTree, flags: PyTree, keys: Array, feed: Feed) -> PyTree:
        """A compiled chunk, on the devices that there are."""
        run = program if self.layout is None else partial(self.layout.run, program)
        return run(self.target, plan, carried, flags, keys, feed)

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

    def _chunks(self, phase: str, total: int, chunk: int, share_of_time: float):
        """Sizes of the chunks of a phase, until it is done or its share of the time is gone."""
        while self.state.done(phase) < total:
            size = min(chunk, total - self.state.done(phase))
            yield size
            done = self.state.done(phase)
            self.report(phase, done, total, float(np.mean(self.state.trace.energy[phase][:, -size:])))
            if done < total and self._is_late(share_of_time):
                self.interrupted = True
                break
            if self.checkpoints is not None and self.checkpoints.is_due and done < total:
                self._save(phase, self.checkpoints)
        if self.checkpoints is not None and total:
            self._save(phase, self.checkpoints)

    def _is_late(self, share_of_time: float) -> bool:
        """By the clock of the first process, if there are several: all must stop at the same chunk."""
        limit = self.plan.max_seconds
        if limit is None:
            return False
        is_late = self._seconds > share_of_time * limit
        return is_late if self.layout is None else bool(self.layout.agreed(np.asarray(is_late)))

    def _inputs(self, size: int):
        """A key for each chain, and what its updates look at."""
        self.state.evaluations += size
        self.state.key, key = jr.split(self.state.key)
        # in the authors' rhythm two updates share a minibatch
        return jr.split(key, len(self.state.names)), self.feed.take(
            size, times=2 if self.plan.adaptation == "paper" else 1
        )

    def _temperature_error(self, num_updates: int) -> dict[str, float]:
        """Of the mean over so many updates, if the chain is well: momenta are forgotten at the rate of the friction."""
        independent = num_updates * self.plan.friction
        sizes = zip(self.state.leaf_names, self.state.leaf_sizes, strict=True)
        return {name: float(np.sqrt(2.0 / (size * independent))) for name, size in sizes}

    def _warnings(self) -> tuple[str, ...]:
        hot = temperature_warnings(self.state.trace.temperature, self._temperature_error(self.state.done("draws")))
        taken_back = [event for event in self.state.trace.events if "of the draws" in event]
        return (*self.state.trace.stopped, *taken_back, *hot, *drift_warnings(self.state.trace.energy["draws"]))

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _saved(self) -> Snapshot | None:
        """The checkpoint to go on from. Of several processes the first alone reads and writes."""
        if self.checkpoints is None:
            return None
        if self.layout is None:
            return self.checkpoints.load()
        saved = self.checkpoints.load() if self.layout.is_first else None
        packed = self.layout.agreed_bytes(b"" if saved is None else pack(saved))
        if not self.layout.is_first:
            self.checkpoints = None
        return unpack(packed) if packed else None

    def _save(self, phase: str, checkpoints: Checkpoints) -> None:
        facts = {"seconds": self._seconds, "batches": self.feed.position, "learning_rate": self.learning_rate}
        if checkpoints.save(self.state.snapshot(phase, self.num_saved, facts)):
            self.num_saved = len(self.state.draws)

    def _go_on_from(self, saved: Snapshot) -> str:
        """Stand where a checkpoint does, and return the phase that it was in."""
        phase = self.state.restore(saved)
        try:
            batches, seconds = int(saved.facts["batches"]), float(saved.facts["seconds"])
            self.learning_rate = float(saved.facts["learning_rate"])
        except (KeyError, TypeError, ValueError) as error:
            raise does_not_belong(error) from None
        self.feed.keep(self.state.names)
        self.feed.skip(batches)
        self.began, self.num_saved = time.monotonic() - seconds, len(self.state.draws)
        logger.warning(f"Going on from a checkpoint: {self.state.done(phase):,} updates into the {phase}.")
        return phase


def _calmer(sampler: State, is_bad: np.ndarray, shrink: float) -> State:
    """Some chains with a shorter step and at rest: the last momenta before the trouble may be part of it."""
    factor = jnp.where(jnp.asarray(is_bad), shrink, 1.0).astype(sampler.step_size.dtype)
    shorter = jax.vmap(with_step_size)(sampler, sampler.step_size * factor[:, None])
    return shorter._replace(momentum=jnp.where(jnp.asarray(is_bad)[:, None], 0.0, shorter.momentum))


def _where_chain(is_bad: np.ndarray, again: Array, before: Array) -> Array:
    return jnp.where(jnp.asarray(is_bad).reshape(-1, *[1] * (again.ndim - 1)), again, before)


def _finite_chains(tree: PyTree) -> np.ndarray:
    """For every chain, whether all of its numbers are finite."""
    leaves = [np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.all(leaves, axis=0)
