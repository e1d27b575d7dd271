"""Measures how well the chains of a fit agree, by its predictions for probe rows."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from bsgp.estimators.diagnostics import Diagnostics
from bsgp.estimators.probes import ProbedDraws, Probes, probed_draws
from bsgp.inference.events import Dropped
from bsgp.inference.history import History
from bsgp.models.likelihoods.classes import Categorical
from bsgp.posterior.posterior import Posterior
from bsgp.posterior.statistics import ess, rhat

MIN_DRAWS = 8
"""Draws of a chain below which there are no statistics."""
NUM_ERRORS = 2.0
"""Standard errors that a stated movement covers, for each row: 95% of all pairs of runs."""
NUM_TRACE_POINTS = 400
MAX_CLASSES = 5
"""Classes of a probe row by which chains are compared, the most probable ones: of many, most have no probability."""
TINY = float(np.finfo(np.float64).tiny)


class Agreement(NamedTuple):
    """R-hat and effective draws of some quantities, one dimension each."""

    rhat: np.ndarray
    bulk: np.ndarray
    tail: np.ndarray


def agreement(draws: np.ndarray) -> Agreement:
    """Agreement of draws `[C S ...]`, flattened. Where all draws are equal there is nothing to disagree about."""
    flat = draws.reshape(*draws.shape[:2], -1)
    num_draws = flat.shape[0] * flat.shape[1]
    is_constant = np.ptp(flat, axis=(0, 1)) == 0
    # statistics of a constant are 0 / 0: those of a ramp stand in, and are not used
    flat = np.where(is_constant, np.arange(num_draws).reshape(*flat.shape[:2], 1), flat)
    found = rhat(flat), ess(flat, "bulk"), ess(flat, "tail")
    best, worst = (1.0, num_draws, num_draws), (np.inf, 1.0, 1.0)
    # no number at all: chains that do not move, each in another place
    found = [np.where(np.isfinite(one), one, bad) for one, bad in zip(found, worst, strict=True)]
    return Agreement(*(np.where(is_constant, good, one) for one, good in zip(found, best, strict=True)))


def diagnose(
    posterior: Posterior, history: History, probes: Probes, key: Array, kept: Posterior | None = None
) -> Diagnostics:
    """Diagnose a fit by its predictions at the probes; `kept` are the draws that predict, if not all of them do."""
    if posterior.num_chains * posterior.num_draws == 1:
        return _diagnose_optimum(history)
    facts = {
        "evaluations": history.evaluations,
        "seconds": history.seconds,
        "interrupted": history.interrupted,
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_draws,
        "temperature": {name: float(np.max(heat)) for name, heat in history.temperature.items()},
        "num_dropped": sum(isinstance(event, Dropped) for event in history.events),
        "warnings": history.warnings,
    }
    if posterior.num_draws < MIN_DRAWS:
        return Diagnostics(**facts, rhat=float("nan"), ess=float("nan"))
    mean, variance = (np.asarray(one, np.float64) for one in (kept or posterior).predictive_draws(probes.X, key))
    probed = probed_draws(posterior, probes, key)
    if isinstance(posterior.model.likelihood, Categorical):
        classes = np.argsort(-mean.mean(axis=(0, 1)), axis=1)[None, None, :, :MAX_CLASSES]
        mean, variance = (np.take_along_axis(one, classes, axis=3) for one in (mean, variance))
        probed = ProbedDraws(*(np.take_along_axis(one, classes, axis=3) for one in probed))
    # as they are drawn, and with the noise of u and hidden layers taken out: either may disagree
    each = [agreement(mean), agreement(probed.mean), agreement(np.log(np.maximum(probed.variance, TINY)))]
    worst_rhat = np.max([one.rhat for one in each], axis=0)
    bulk, tail = np.min([one.bulk for one in each], axis=0), np.min([one.tail for one in each], axis=0)
    return Diagnostics(
        **facts,
        rhat_median=float(np.quantile(worst_rhat, 0.5, method="higher")),
        rhat=float(np.quantile(worst_rhat, 0.95, method="higher")),
        ess=float(np.quantile(bulk, 0.05, method="lower")),
        tail_ess=float(np.quantile(tail, 0.05, method="lower")),
        movement=float(np.quantile(_movement(mean, variance, probed.mean), 0.9)),
    )


def _movement(mean: np.ndarray, variance: np.ndarray, probed: np.ndarray) -> np.ndarray:
    """Bound on the difference of two runs' predictions `[N P]`, as a share of their standard deviation.

    The standard error of a prediction has two parts: that of the mean with u integrated out, by its effective draws or
    by how chains differ, whichever is more, and that of the independent noise that u and hidden layers add.
    """
    num_chains, num_draws = mean.shape[:2]
    total, slow = mean.var(axis=(0, 1)), probed.var(axis=(0, 1))
    effective = agreement(probed).bulk.reshape(total.shape)
    between = probed.mean(axis=1).var(axis=0, ddof=1) / num_chains if num_chains > 1 else 0.0
    error = np.maximum(slow / effective, between) + np.maximum(total - slow, 0.0) / (num_chains * num_draws)
    spread = total + variance.mean(axis=(0, 1))
    return NUM_ERRORS * np.sqrt(2.0 * error / spread)


def _diagnose_optimum(history: History) -> Diagnostics:
    last = list(history.energy.values())[-1][0]
    tenth = max(1, len(last) // 10)
    move = float(last[-tenth:].mean() - last[-2 * tenth : -tenth].mean()) if len(last) > 1 else float("inf")
    return Diagnostics(
        evaluations=history.evaluations,
        seconds=history.seconds,
        interrupted=history.interrupted,
        num_chains=1,
        num_draws=1,
        rhat=float("nan"),
        ess=float("nan"),
        move=move,
        warnings=history.warnings,
    )


def energy_trace(history: History) -> dict[str, np.ndarray]:
    """Energy / N by phase, `[C T]` with at most 400 points, each the mean of a stretch of updates."""
    return {phase: _stretches(energy) for phase, energy in history.energy.items()}


def _stretches(energy: np.ndarray) -> np.ndarray:
    length = -(-energy.shape[1] // NUM_TRACE_POINTS)
    usable = energy.shape[1] // length * length
    return energy[:, :usable].reshape(energy.shape[0], -1, length).mean(axis=2)
