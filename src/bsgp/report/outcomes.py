"""Chooses which outputs of a model the figures show, under which names and in which units."""

from dataclasses import dataclass

import numpy as np

from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.estimators.base import BSGPEstimator
from bsgp.report.text import clean

MAX_OUTCOMES = 4


@dataclass(frozen=True)
class Outcomes:
    """One output in its own units, or a few outputs in a common unit."""

    label: str
    """Label of the axis."""
    names: tuple[str, ...]
    which: tuple[int, ...]
    """Positions among the posterior's outputs."""
    shift: np.ndarray
    scale: np.ndarray

    def convert(self, values: np.ndarray) -> np.ndarray:
        """Turn the posterior's outputs `[... P]` into the shown outcomes `[... which]`, in the units shown."""
        return values[..., list(self.which)] * self.scale + self.shift


def num_outputs(model: BSGPEstimator) -> int:
    """Number of latent functions: one per target, or one per class if there are more than two."""
    return model.posterior_.model.num_latent


def outcomes(model: BSGPEstimator, typical: np.ndarray) -> Outcomes:
    """Choose the outcomes to show; of more than four classes only the most probable in `typical [P]`, an average."""
    if isinstance(model, BSGPClassifier):
        return _class_outcomes(model, typical)
    assert isinstance(model, BSGPRegressor)
    return _target_outcomes(model)


def _class_outcomes(model: BSGPClassifier, typical: np.ndarray) -> Outcomes:
    names = tuple(clean(label) for label in model.classes_)
    if len(names) == 2:  # the posterior has one output, the probability of the second class
        return Outcomes(f"probability of {names[1]}", names[1:], (0,), np.zeros(1), np.ones(1))
    if len(names) > MAX_OUTCOMES:
        top = int(np.argmax(typical))
        return Outcomes(f"probability of {names[top]}", (names[top],), (top,), np.zeros(1), np.ones(1))
    return Outcomes("probability", names, tuple(range(len(names))), np.zeros(len(names)), np.ones(len(names)))


def _target_outcomes(model: BSGPRegressor) -> Outcomes:
    names = tuple(clean(name) for name in model.target_names_)
    if len(names) == 1:
        return Outcomes(names[0], names, (0,), model.target_mean, model.target_scale)
    num = min(len(names), MAX_OUTCOMES)
    return Outcomes("standard deviations", names[:num], tuple(range(num)), np.zeros(num), np.ones(num))
