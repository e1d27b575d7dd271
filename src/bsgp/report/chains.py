"""Data of the convergence section: energies, traces of predictions, temperatures."""

from dataclasses import dataclass

import jax.random as jr
import numpy as np

from bsgp.estimators.base import BSGPEstimator
from bsgp.inference.history import PHASES
from bsgp.posterior.posterior import evenly_spaced
from bsgp.report.outcomes import MAX_OUTCOMES, num_outputs, outcomes

TRACED = {"a low prediction": 0.1, "a middling prediction": 0.5, "a high prediction": 0.9}
"""Training rows whose predictions are traced, by their rank among the predictions."""


@dataclass(frozen=True)
class PredictionTrace:
    """Predictions of every draw for one training row."""

    name: str
    values: np.ndarray
    """`[C S]`."""
    outcome: str
    """Label of the vertical axis."""


@dataclass(frozen=True)
class ChainPlots:
    """Values that the convergence section plots or lists."""

    energy: dict[str, np.ndarray]
    """Energy per row, `[C T]`, for each phase of the fit in order of time."""
    traces: tuple[PredictionTrace, ...]
    """Empty if the model was optimised, not sampled."""
    temperature: dict[str, float]
    """Temperature of each block of parameters."""


def chain_plots(model: BSGPEstimator) -> ChainPlots:
    """Collect the plots of a fitted model's chains."""
    phases = sorted(model.energy_, key=PHASES.index)  # a loaded model has them in alphabetical order
    energy = {phase: np.asarray(model.energy_[phase]) for phase in phases if np.size(model.energy_[phase])}
    return ChainPlots(energy, _prediction_traces(model), dict(model.diagnostics_.temperature))


def _prediction_traces(model: BSGPEstimator) -> tuple[PredictionTrace, ...]:
    if not model.diagnostics_.is_sampled:
        return ()
    # fewer candidate rows if there are many classes: K classes cost K^2
    most = max(10, len(model.background_) * MAX_OUTCOMES // num_outputs(model))
    rows = model.background_[evenly_spaced(len(model.background_), most)]
    means = np.asarray(model.posterior_.predictive_draws(rows, jr.key(1)).mean, np.float64)  # [C S N P]
    shown = outcomes(model, means.mean(axis=(0, 1, 2)))
    values = shown.convert(means)[..., 0]
    order = np.argsort(values.mean(axis=(0, 1)), kind="stable")
    traced = dict.fromkeys(int(order[round(rank * (len(order) - 1))]) for rank in TRACED.values())
    outcome = shown.label if len(shown.names) == 1 else shown.names[0]
    return tuple(PredictionTrace(name, values[..., row], outcome) for name, row in zip(TRACED, traced, strict=False))
