"""Which chains can be trusted: those that fail in a chunk, run hot or still move are found here."""

from typing import NamedTuple

import numpy as np

from bsgp.inference.events import Hot, StillMoving

HOT = 1.15  # a block this much above temperature 1 samples something visibly wider than the posterior
DRIFT = 4.0  # standard errors between the halves of an energy trace
RUNAWAY = 10.0  # mean temperature of a block over a chunk, above which its chain is set back
RUNAWAY_ADAPTING = 50.0  # the limit while the mass adapts, when momenta look hot
MIN_ENERGIES = 200


class Fault(NamedTuple):
    """What went wrong in a chunk of updates of one chain."""

    update: int
    """First bad update, counted from the start of the chunk."""
    what: str
    """Such as `became non-finite in layers.0.Z`."""
    is_finite: bool
    """Whether the chain is only hot, and could continue."""


def faults(
    energy: np.ndarray, temperature: dict[str, np.ndarray], error: dict[str, float], limit: float
) -> dict[int, Fault]:
    """Chains of a chunk, by place, that became non-finite or ran away; all arrays are `[C T]`.

    `temperature` has every update of each leaf, non-finite where the leaf is. A chain runs away if the mean of one
    leaf exceeds `limit` by six of its standard errors under a healthy chain.
    """
    found = {}
    finite = np.isfinite(energy)
    for values in temperature.values():
        finite = finite & np.isfinite(values)
    for chain in range(energy.shape[0]):
        if not finite[chain].all():
            step = int(np.argmin(finite[chain]))
            where = [name for name, values in temperature.items() if not np.isfinite(values[chain, step])]
            found[chain] = Fault(step, f"became non-finite in {', '.join(where) or 'the energy'}", False)
            continue
        heat = {name: float(values[chain].mean()) for name, values in temperature.items()}
        hottest = max(heat, key=lambda name: heat[name] - 6.0 * error[name], default=None)
        if hottest is not None and heat[hottest] - 6.0 * error[hottest] > limit:
            step = int(np.argmax(temperature[hottest][chain]))
            what = f"ran away in {hottest} (temperature {heat[hottest]:.0f} where 1 is right)"
            found[chain] = Fault(step, what, True)
    return found


def temperature_error(sizes: dict[str, int], num_updates: int, friction: float) -> dict[str, float]:
    """Standard error of a healthy chain's mean temperature: momenta are forgotten at the rate of the friction."""
    return {name: float(np.sqrt(2.0 / (size * num_updates * friction))) for name, size in sizes.items()}


def hot_chains(temperature: dict[str, np.ndarray], error: dict[str, float]) -> list[Hot]:
    """Blocks whose mean temperature `[C]` is too high by more than two of its standard errors."""
    return [
        Hot(int(chain), name, float(heat[chain]))
        for name, heat in temperature.items()
        for chain in np.flatnonzero(heat - 2.0 * error[name] > HOT)
    ]


def moving_chains(energy: np.ndarray) -> list[StillMoving]:
    """Chains whose energies `[C T]` during the draws differ between halves."""
    if energy.shape[1] < MIN_ENERGIES:
        return []
    drifts = _energy_drift(energy)
    return [StillMoving(chain, float(drift)) for chain, drift in enumerate(drifts) if abs(drift) > DRIFT]


def _energy_drift(energy: np.ndarray, num_blocks: int = 20) -> np.ndarray:
    """Second half less first half of each chain's energies, in standard errors from means over blocks."""
    usable = energy.shape[1] // num_blocks * num_blocks
    blocks = energy[:, :usable].reshape(energy.shape[0], num_blocks, -1).mean(axis=2)
    first, second = np.split(blocks, 2, axis=1)
    error = np.sqrt((first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / (num_blocks // 2))
    return (second.mean(axis=1) - first.mean(axis=1)) / np.maximum(error, 1e-300)
