"""BlackJAX's NUTS with a warm-up in stages, for any log density over a tree of arrays; chains one after the other.

The warm-up follows Stan's idea: the step size by dual averaging all through, the mass from the variances of each
stage's draws, stages ever longer. It runs in chunks, for progress and Ctrl-C, which BlackJAX's own does not.
"""

from collections.abc import Callable
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
    import blackjax
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    one_start = jax.tree.map(lambda x: x[0], starts)
    _, unravel = ravel_pytree(one_start)
    kernel = blackjax.nuts.build_kernel()
    tune_start, tune, _ = dual_averaging_adaptation(plan.acceptance)

    def flat_density(flat):
        return log_density(unravel(flat))

    @eqx.filter_jit
    def begin(starts):
        def one(start):
            flat = ravel_pytree(start)[0]
            tuning = tune_start(jnp.asarray(plan.step_size, flat.dtype))
            mass = jnp.eye(flat.size, dtype=flat.dtype) if flat.size <= MAX_DENSE else jnp.ones_like(flat)
            return _Chain(blackjax.nuts.init(flat, flat_density), tuning, mass)

        return over_chains(one, starts)

    @eqx.filter_jit
    def advance(chains, keys, adapts):
        def one_chain(chain, key):
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

        with jax.numpy_dtype_promotion("standard"):  # BlackJAX mixes whole numbers and floats
            return over_chains(one_chain, chains, keys)

    @eqx.filter_jit
    def with_mass(chains, inverse_masses):
        def one(chain, inverse_mass):
            step = jnp.exp(chain.tuning.log_step_size_avg)
            return chain._replace(inverse_mass=inverse_mass, tuning=tune_start(step))

        with jax.numpy_dtype_promotion("standard"):
            return over_chains(one, chains, inverse_masses)

    num_chains = jax.tree.leaves(starts)[0].shape[0]
    seen: dict[str, list[_Info]] = {"warm-up": [], "draws": []}
    drawn: list[np.ndarray] = []
    interrupted = False

    def chunks(phase: str, total: int, done: int, planned: int, share: float, adapts: bool):
        """Positions `[C chunk K]` of each chunk."""
        nonlocal chains, key, interrupted
        for _ in range(max(1, round(total / plan.chunk))):
            key, chunk_key = jr.split(key)
            chains, (positions, info) = advance(chains, jr.split(chunk_key, num_chains), jnp.asarray(adapts))
            seen[phase].append(jax.tree.map(np.asarray, info))
            _check_finite(phase, np.asarray(info.energy))
            done += plan.chunk
            report(phase, min(done, planned), planned, float(seen[phase][-1].energy.mean()))
            yield np.asarray(positions)
            if clock.is_past(share):
                interrupted = True
                return

    with jax.numpy_dtype_promotion("standard"):
        chains = begin(starts)
    try:
        done = 0
        for stage, length in enumerate(STAGES):
            size = round(length * plan.warm_up)
            positions = np.concatenate(list(chunks("warm-up", size, done, plan.warm_up, 0.5, True)), axis=1)
            done += positions.shape[1]
            if interrupted:
                break
            if stage < len(STAGES) - 1:
                chains = with_mass(chains, jnp.asarray(np.stack([_inverse_mass(chain) for chain in positions])))
        for positions in chunks("draws", plan.num_draws, 0, plan.num_draws, 1.0, False):
            drawn.append(positions)
    except KeyboardInterrupt:
        if not drawn:
            raise
        interrupted = True
    flat = np.concatenate(drawn, axis=1)[:, : plan.num_draws]
    positions = jax.vmap(jax.vmap(unravel))(jnp.asarray(flat))
    return Draws(positions, _history(seen, chains, clock, interrupted))


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
