"""Whether the chains converged: figures, and what to draw of their way."""

from dataclasses import dataclass

import jax.random as jr
import numpy as np

from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.report.outcomes import MAX_SERIES, num_outputs, outcomes
from bsgp.report.picks import evenly

RANKS = (0.1, 0.5, 0.9)
PHASES = ("network", "optimise", "warm start", "warm-up", "burn-in", "draws")


@dataclass(frozen=True)
class Trace:
    """What the draws predict for one training row."""

    name: str
    values: np.ndarray
    """`[C S]`."""
    outcome: str


@dataclass(frozen=True)
class Chains:
    """`energy` has `[C T]` of every phase; `temperature` is of every block of parameters."""

    energy: dict[str, np.ndarray]
    traces: tuple[Trace, ...]
    temperature: dict[str, float]


def look_at_chains(model: BSGPRegressor | BSGPClassifier) -> Chains:
    # a model that was read from a folder has its arrays in another order
    phases = sorted(model.energy_, key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES))
    energy = {phase: np.asarray(model.energy_[phase]) for phase in phases if np.size(model.energy_[phase])}
    return Chains(energy, _traces(model), dict(model.diagnostics_.temperature))


def _traces(model: BSGPRegressor | BSGPClassifier) -> tuple[Trace, ...]:
    """Of the rows with a low, a middling and a high prediction; none where nothing was sampled."""
    if not model.diagnostics_.is_sampled:
        return ()
    # of many classes fewer rows are looked at: K classes cost K^2
    some = evenly(len(model.background_), max(10, len(model.background_) * MAX_SERIES // num_outputs(model)))
    means = np.asarray(
        model.posterior_.predictive_draws(model.background_[some], jr.key(1)).mean, np.float64
    )  # [C S N P]
    shown = outcomes(model, means.mean(axis=(0, 1, 2)))
    values = shown.convert(means)[..., 0]
    order = np.argsort(values.mean(axis=(0, 1)), kind="stable")
    rows = dict.fromkeys(int(order[round(rank * (len(order) - 1))]) for rank in RANKS)
    outcome = shown.label if len(shown.names) == 1 else shown.names[0]
    names = ("a low prediction", "a middling prediction", "a high prediction")
    return tuple(Trace(name, values[..., row], outcome) for name, row in zip(names, rows, strict=False))
