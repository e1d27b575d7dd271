"""BlackJAX's NUTS with a warm-up in stages, for any log density over a tree of arrays.

The warm-up follows Stan: dual averaging adapts the step size throughout, the mass comes from the variances of each
stage's draws, and each stage is longer than the one before. Unlike BlackJAX's own warm-up, it runs in chunks, which
allows progress reports and Ctrl-C.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bsgp.inference.events import ManyDivergences
from bsgp.inference.history import History, Report
from bsgp.inference.host_loop import Clock, HostLoop
from bsgp.inference.over_chains import over_chains
from bsgp.runtime.checks import check_count

STAGES = (0.1, 0.15, 0.25, 0.5)  # shares of the warm-up; the mass is renewed after every stage except the last
MAX_DIVERGENT = 0.05  # share of draws
MAX_DENSE = 40  # up to this many dimensions the mass is a full matrix, above it is diagonal


@dataclass(frozen=True)
class NutsPlan:
    """Length and settings of a NUTS run."""

    warm_up: int = 200
    num_draws: int = 200
    step_size: float = 0.1
    """Step size at the start of its adaptation."""
    acceptance: float = 0.8
    """Acceptance rate that the step size is adapted to."""
    max_doublings: int = 8
    """Limit on the doublings of a trajectory."""
    chunk: int = 10
    """Draws per compiled call."""

    def __post_init__(self):
        for name in ("warm_up", "num_draws", "max_doublings", "chunk"):
            check_count(name, getattr(self, name))


class NutsDraws(NamedTuple):
    """Positions drawn by NUTS, and the history of the run."""

    positions: PyTree
    """`[C S ...]`."""
    history: History


class _NutsChain(NamedTuple):
    state: PyTree
    tuning: PyTree
    inverse_mass: Float[Array, " K"] | Float[Array, "K K"]


class _NutsInfo(NamedTuple):
    energy: Array
    num_evaluations: Array
    is_divergent: Array


def sample_nuts(
    log_density: Callable[[PyTree], Array],
    starts: PyTree,
    num_data: int,
    key: Array,
    *,
    plan: NutsPlan,
    report: Report,
    clock: Clock,
) -> NutsDraws:
    """Draws from `log_density`, one chain per entry along the first axis of `starts`."""
    run = _NutsRun(_programs(log_density, starts, num_data, plan), starts, key, plan, report, clock)
    flat = run.run()
    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], starts))
    return NutsDraws(jax.vmap(jax.vmap(unravel))(jnp.asarray(flat)), run.history)


class _Programs(NamedTuple):
    """Compiled programs of one density."""

    init: Callable
    """`init(starts) -> chains`."""
    advance: Callable
    """`advance(chains, keys, adapts) -> (chains, (positions, info))`: a chunk of draws."""
    renew_mass: Callable
    """`renew_mass(chains, inverse_masses) -> chains`: sets the mass and restarts the adaptation of the step size."""


def _programs(log_density: Callable, starts: PyTree, num_data: int, plan: NutsPlan) -> _Programs:
    import blackjax
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], starts))
    kernel = blackjax.nuts.build_kernel()
    init_tuning, tune, _ = dual_averaging_adaptation(plan.acceptance)

    def flat_density(flat):
        return log_density(unravel(flat))

    def init(start):
        flat = ravel_pytree(start)[0]
        tuning = init_tuning(jnp.asarray(plan.step_size, flat.dtype))
        mass = jnp.eye(flat.size, dtype=flat.dtype) if flat.size <= MAX_DENSE else jnp.ones_like(flat)
        return _NutsChain(blackjax.nuts.init(flat, flat_density), tuning, mass)

    def advance(chain, key, adapts):
        def one(chain, step_key):
            # after the adaptation, the average of its step sizes is better than the last one
            log_step = jnp.where(adapts, chain.tuning.log_step_size, chain.tuning.log_step_size_avg)
            state, info = kernel(
                step_key, chain.state, flat_density, jnp.exp(log_step), chain.inverse_mass,
                max_num_doublings=plan.max_doublings,
            )  # fmt: skip
            tuned = tune(chain.tuning, info.acceptance_rate)
            tuning = jax.tree.map(lambda new, old: jnp.where(adapts, new, old), tuned, chain.tuning)
            chain = chain._replace(state=state, tuning=tuning)
            nuts_info = _NutsInfo(-state.logdensity / num_data, info.num_integration_steps, info.is_divergent)
            return chain, (state.position, nuts_info)

        return jax.lax.scan(one, chain, jr.split(key, plan.chunk))

    def renew_mass(chain, inverse_mass):
        step = jnp.exp(chain.tuning.log_step_size_avg)
        return chain._replace(inverse_mass=inverse_mass, tuning=init_tuning(step))

    return _Programs(*(_compiled_for_chains(program) for program in (init, advance, renew_mass)))


def _compiled_for_chains(function: Callable) -> Callable:
    """`function` compiled for arguments that are stacked by chain; all chains share a scalar."""

    @eqx.filter_jit
    def compiled(*stacked):
        num_chains = jax.tree.leaves(stacked[0])[0].shape[0]
        stacked = [jnp.broadcast_to(x, num_chains) if eqx.is_array(x) and x.ndim == 0 else x for x in stacked]
        with jax.numpy_dtype_promotion("standard"):  # BlackJAX mixes whole numbers and floats
            return over_chains(function, *stacked)

    return compiled


class _NutsRun:
    """One run on the host; `self.chains` holds all chains, stacked along the first axis."""

    def __init__(self, programs: _Programs, starts: PyTree, key: Array, plan: NutsPlan, report: Report, clock: Clock):
        self.programs, self.key, self.plan = programs, key, plan
        self.loop = HostLoop(report, clock)
        self.num_chains = jax.tree.leaves(starts)[0].shape[0]
        self.chains: _NutsChain = programs.init(starts)
        self.infos: dict[str, list[_NutsInfo]] = {"warm-up": [], "draws": []}

    def run(self) -> np.ndarray:
        """Runs warm-up and draws, and returns positions `[C S K]`."""
        drawn = []
        with self.loop.stoppable(lambda: bool(drawn)):
            self._warm_up()
            drawn.extend(self._chunks("draws", self.plan.num_draws, share=1.0))
        return np.concatenate(drawn, axis=1)[:, : self.plan.num_draws]

    def _warm_up(self) -> None:
        for stage, stage_share in enumerate(STAGES):
            size = round(stage_share * self.plan.warm_up)
            positions = np.concatenate(list(self._chunks("warm-up", size, share=0.5)), axis=1)
            if self.loop.interrupted:
                return
            if stage < len(STAGES) - 1:
                masses = np.stack([_inverse_mass(chain) for chain in positions])
                self.chains = self.programs.renew_mass(self.chains, jnp.asarray(masses))

    def _chunks(self, phase: str, size: int, share: float) -> Iterator[np.ndarray]:
        """Yields positions `[C chunk K]` of the next `size` draws of a phase, in whole chunks and at least one."""
        chunk, energy = self.plan.chunk, self.loop.energy
        planned = self.plan.warm_up if phase == "warm-up" else self.plan.num_draws
        total = energy.done(phase) + max(1, -(-size // chunk)) * chunk
        for _ in self.loop.chunks(phase, total, chunk, share=share, planned=planned):
            self.key, key = jr.split(self.key)
            keys, adapts = jr.split(key, self.num_chains), jnp.asarray(phase == "warm-up")
            self.chains, (positions, info) = self.programs.advance(self.chains, keys, adapts)
            info = jax.tree.map(np.asarray, info)
            energy.record(phase, info.energy)
            self.infos[phase].append(info)
            yield np.asarray(positions)

    @property
    def history(self) -> History:
        joined = {
            phase: jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos)
            for phase, infos in self.infos.items()
            if infos
        }
        divergent = joined["draws"].is_divergent.mean(axis=1)
        step_size = np.exp(np.asarray(self.chains.tuning.log_step_size_avg))
        return History(
            energy=self.loop.energy.by_phase,
            evaluations=sum(int(info.num_evaluations.sum(axis=1).max()) for info in joined.values()),
            seconds=self.loop.clock.seconds,
            interrupted=self.loop.interrupted,
            events=tuple(
                ManyDivergences(chain, float(share)) for chain, share in enumerate(divergent) if share > MAX_DIVERGENT
            ),
            step_sizes=(step_size[:, None],),
        )


def _inverse_mass(positions: np.ndarray) -> np.ndarray:
    """Shrunk covariance of draws `[T K]`; only its diagonal above `MAX_DENSE` dimensions."""
    count, size = positions.shape
    variance = (count * positions.var(axis=0) + 5e-3) / (count + 5.0)
    if size > MAX_DENSE:
        return variance
    trust = count / (count + 5.0 + size)
    covariance = np.atleast_2d(np.cov(positions, rowvar=False, bias=True))
    return trust * covariance + (1.0 - trust) * np.diag(variance)
