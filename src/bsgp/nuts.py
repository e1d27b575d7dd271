"""BlackJAX's NUTS with a warm-up in stages, for any log density over a tree of arrays; chains one after the other.

The warm-up follows Stan's idea: the step size by dual averaging all through, the mass from the variances of each
stage's draws, stages ever longer. It runs in chunks, for progress and Ctrl-C, which BlackJAX's own does not.
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

from bsgp.checks import check_count
from bsgp.chunks import over_chains
from bsgp.health import DivergenceError
from bsgp.history import History, Report
from bsgp.optimise import Clock

STAGES = (0.1, 0.15, 0.25, 0.5)  # shares of the warm-up; the mass is renewed after each but the last
MAX_DIVERGENT = 0.05  # share of draws
MAX_DENSE = 40  # up to so many dimensions the mass knows covariances, too


@dataclass(frozen=True)
class NutsPlan:
    """How long to run."""

    warm_up: int = 200
    num_draws: int = 200
    step_size: float = 0.1
    """Of the first step; it is adapted."""
    acceptance: float = 0.8
    max_doublings: int = 8
    chunk: int = 10
    """Draws per compiled call."""

    def __post_init__(self):
        for name in ("warm_up", "num_draws", "max_doublings", "chunk"):
            check_count(name, getattr(self, name))


class Draws(NamedTuple):
    positions: PyTree
    """`[C S ...]`."""
    history: History


class _Chain(NamedTuple):
    state: PyTree
    tuning: PyTree
    inverse_mass: Float[Array, " K"] | Float[Array, "K K"]


class _Info(NamedTuple):
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
) -> Draws:
    """Draw from `log_density`; every array of `starts` carries [C] in front."""
    loop = _Loop(_programs(log_density, starts, num_data, plan), starts, key, plan, report, clock)
    flat = loop.run()
    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], starts))
    positions = jax.vmap(jax.vmap(unravel))(jnp.asarray(flat))
    return Draws(positions, _history(loop.seen, loop.chains, clock, loop.interrupted))


class _Programs(NamedTuple):
    """What is compiled, once for a density."""

    begin: Callable
    """`begin(starts) -> chains`."""
    advance: Callable
    """`advance(chains, keys, adapts) -> (chains, (positions, info))` of a chunk of draws."""
    renew_mass: Callable
    """`renew_mass(chains, inverse masses) -> chains`, with the search for a step size begun again."""


def _programs(log_density: Callable, starts: PyTree, num_data: int, plan: NutsPlan) -> _Programs:
    import blackjax
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], starts))
    kernel = blackjax.nuts.build_kernel()
    tune_start, tune, _ = dual_averaging_adaptation(plan.acceptance)

    def flat_density(flat):
        return log_density(unravel(flat))

    def begin(start):
        flat = ravel_pytree(start)[0]
        tuning = tune_start(jnp.asarray(plan.step_size, flat.dtype))
        mass = jnp.eye(flat.size, dtype=flat.dtype) if flat.size <= MAX_DENSE else jnp.ones_like(flat)
        return _Chain(blackjax.nuts.init(flat, flat_density), tuning, mass)

    def advance(chain, key, adapts):
        def one(chain, step_key):
            # the average of what was tried is the better step, once nothing is tried any more
            log_step = jnp.where(adapts, chain.tuning.log_step_size, chain.tuning.log_step_size_avg)
            state, info = kernel(
                step_key, chain.state, flat_density, jnp.exp(log_step), chain.inverse_mass,
                max_num_doublings=plan.max_doublings,
            )  # fmt: skip
            tuned = tune(chain.tuning, info.acceptance_rate)
            tuning = jax.tree.map(lambda new, old: jnp.where(adapts, new, old), tuned, chain.tuning)
            chain = chain._replace(state=state, tuning=tuning)
            seen = _Info(-state.logdensity / num_data, info.num_integration_steps, info.is_divergent)
            return chain, (state.position, seen)

        return jax.lax.scan(one, chain, jr.split(key, plan.chunk))

    def renew_mass(chain, inverse_mass):
        step = jnp.exp(chain.tuning.log_step_size_avg)
        return chain._replace(inverse_mass=inverse_mass, tuning=tune_start(step))

    return _Programs(_of_all_chains(begin), _of_all_chains(advance), _of_all_chains(renew_mass))


def _of_all_chains(function: Callable) -> Callable:
    """Compiled for arguments that are stacked by chain; a single flag is for all of them."""

    @eqx.filter_jit
    def compiled(*stacked):
        num_chains = jax.tree.leaves(stacked[0])[0].shape[0]
        stacked = [jnp.broadcast_to(x, num_chains) if eqx.is_array(x) and x.ndim == 0 else x for x in stacked]
        with jax.numpy_dtype_promotion("standard"):  # BlackJAX mixes whole numbers and floats
            return over_chains(function, *stacked)

    return compiled


class _Loop:
    """One run on the host. `self.chains` holds all chains, stacked along the first axis."""

    def __init__(self, programs: _Programs, starts: PyTree, key: Array, plan: NutsPlan, report: Report, clock: Clock):
        self.programs, self.key, self.plan, self.report, self.clock = programs, key, plan, report, clock
        self.num_chains = jax.tree.leaves(starts)[0].shape[0]
        self.chains: _Chain = programs.begin(starts)
        self.seen: dict[str, list[_Info]] = {"warm-up": [], "draws": []}
        self.interrupted = False

    def run(self) -> np.ndarray:
        """Positions `[C S K]`."""
        drawn = []
        try:
            self._warm_up()
            for positions in self._chunks("draws", self.plan.num_draws, share=1.0):
                drawn.append(positions)
        except KeyboardInterrupt:
            if not drawn:
                raise
            self.interrupted = True
        return np.concatenate(drawn, axis=1)[:, : self.plan.num_draws]

    def _warm_up(self) -> None:
        for stage, length in enumerate(STAGES):
            size = round(length * self.plan.warm_up)
            positions = np.concatenate(list(self._chunks("warm-up", size, share=0.5)), axis=1)
            if self.interrupted:
                return
            if stage < len(STAGES) - 1:
                masses = np.stack([_inverse_mass(chain) for chain in positions])
                self.chains = self.programs.renew_mass(self.chains, jnp.asarray(masses))

    def _chunks(self, phase: str, total: int, share: float) -> Iterator[np.ndarray]:
        """Positions `[C chunk K]` of as many chunks as hold `total` draws, at least one."""
        planned = self.plan.warm_up if phase == "warm-up" else self.plan.num_draws
        num_chunks = max(1, -(-total // self.plan.chunk))
        for index in range(num_chunks):
            self.key, key = jr.split(self.key)
            keys, adapts = jr.split(key, self.num_chains), jnp.asarray(phase == "warm-up")
            self.chains, (positions, info) = self.programs.advance(self.chains, keys, adapts)
            info = jax.tree.map(np.asarray, info)
            _check_finite(phase, info.energy)
            self.seen[phase].append(info)
            done = len(self.seen[phase]) * self.plan.chunk
            self.report(phase, min(done, planned), planned, float(info.energy.mean()))
            yield np.asarray(positions)
            if index < num_chunks - 1 and self.clock.is_past(share):
                self.interrupted = True
                return


def _inverse_mass(positions: np.ndarray) -> np.ndarray:
    """Covariance of `[T K]` along T, its off-diagonal shrunk where draws are few; of many dimensions the diagonal."""
    count, size = positions.shape
    variance = (count * positions.var(axis=0) + 5e-3) / (count + 5.0)
    if size > MAX_DENSE:
        return variance
    trust = count / (count + 5.0 + size)
    covariance = np.atleast_2d(np.cov(positions, rowvar=False, bias=True))
    return trust * covariance + (1.0 - trust) * np.diag(variance)


def _check_finite(phase: str, energy: np.ndarray) -> None:
    if not np.isfinite(energy).all():
        chain = int(np.argmin(np.isfinite(energy).all(axis=1)))
        raise DivergenceError(f"Chain {chain} became non-finite in the {phase}. Standardise X and y, or raise jitter.")


def _history(seen: dict[str, list[_Info]], chains: _Chain, clock: Clock, interrupted: bool) -> History:
    joined = {
        phase: jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos)
        for phase, infos in seen.items()
        if infos
    }
    evaluations = sum(int(info.num_evaluations.sum(axis=1).max()) for info in joined.values())
    divergent = joined["draws"].is_divergent.mean(axis=1)
    warnings = tuple(
        f"Chain {chain}: {share:.0%} of its draws diverged. Raise `acceptance`."
        for chain, share in enumerate(divergent)
        if share > MAX_DIVERGENT
    )
    return History(
        energy={phase: info.energy for phase, info in joined.items()},
        evaluations=evaluations,
        seconds=clock.seconds,
        interrupted=interrupted,
        warnings=warnings,
        step_size=float(np.exp(np.asarray(chains.tuning.log_step_size_avg)).max()),
    )
