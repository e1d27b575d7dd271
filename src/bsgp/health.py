"""Is a chain fit to be trusted? It stops on non-finite numbers, and is flagged where it runs hot or still moves."""

from typing import NamedTuple

import numpy as np

HOT = 1.15  # a block this much above temperature 1 samples something visibly wider than the posterior
DRIFT = 4.0  # standard errors between the halves of an energy trace


class DivergenceError(RuntimeError):
    """A chain left the finite numbers."""


class Fault(NamedTuple):
    """What went wrong in a chunk of updates of one chain."""

    update: int
    """The first bad one, counted from the chunk's begin."""
    what: str
    """Such as `became non-finite in layers.0.Z`."""
    is_finite: bool
    """Whether the chain is only hot, and could go on."""


def faults(
    energy: np.ndarray, temperature: dict[str, np.ndarray], error: dict[str, float], limit: float
) -> dict[int, Fault]:
    """By number, the chains of a chunk that left the finite numbers or ran away; all arrays are `[C T]`.

    `temperature` is of every update and each leaf, non-finite where the leaf is. A chain runs away where the mean of
    one is beyond `limit`, by six of its standard errors under a chain that is well.
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


ADVICE = "Standardise X and y, lower `step_size` or `learning_rate`, or raise `jitter`."


def temperature_warnings(temperature: dict[str, np.ndarray], error: dict[str, float]) -> list[str]:
    """For blocks whose mean temperature `[C]` is too high by more than two of its standard errors."""
    return [
        f"Chain {chain} runs hot: {name} has temperature {heat[chain]:.2f} where 1 is right. "
        "Its draws are too wide; lower `step_size` or raise `batch_size`."
        for name, heat in temperature.items()
        for chain in np.flatnonzero(heat - 2.0 * error[name] > HOT)
    ]


def drift_warnings(energy: np.ndarray) -> list[str]:
    """For chains whose energies `[C T]` during the draws differ between halves."""
    if energy.shape[1] < 200:
        return []
    return [
        f"Chain {chain} still moves: its energy {'falls' if drift < 0 else 'rises'} during the draws "
        f"({abs(drift):.1f} standard errors between halves). Raise `burn_in`."
        for chain, drift in enumerate(_energy_drift(energy))
        if abs(drift) > DRIFT
    ]


def _energy_drift(energy: np.ndarray, num_blocks: int = 20) -> np.ndarray:
    """Second half less first half of each chain's energies, in standard errors from means over blocks."""
    usable = energy.shape[1] // num_blocks * num_blocks
    blocks = energy[:, :usable].reshape(energy.shape[0], num_blocks, -1).mean(axis=2)
    first, second = np.split(blocks, 2, axis=1)
    error = np.sqrt((first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / (num_blocks // 2))
    return (second.mean(axis=1) - first.mean(axis=1)) / np.maximum(error, 1e-300)
