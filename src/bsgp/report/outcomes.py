"""Which of a model's outputs are drawn, under which names and in which units."""

from dataclasses import dataclass

import numpy as np

from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.report.words import clean

MAX_SERIES = 4


@dataclass(frozen=True)
class Outcomes:
    """One output in its own units, or a few that have a unit in common."""

    label: str
    """What the axis is called."""
    names: tuple[str, ...]
    which: tuple[int, ...]
    shift: np.ndarray
    scale: np.ndarray

    def convert(self, values: np.ndarray) -> np.ndarray:
        """`[... P]` of the posterior as `[... which]` in the units shown."""
        return values[..., list(self.which)] * self.scale + self.shift


def num_outputs(model: BSGPRegressor | BSGPClassifier) -> int:
    """Latent functions: targets, or classes if there are more than two."""
    return model.posterior_.model.num_latent


def outcomes(model: BSGPRegressor | BSGPClassifier, typical: np.ndarray) -> Outcomes:
    """`typical [P]` is an average prediction: of more than four classes only the most probable one is drawn."""
    return _classes(model, typical) if isinstance(model, BSGPClassifier) else _targets(model)


def _classes(model: BSGPClassifier, typical: np.ndarray) -> Outcomes:
    names = tuple(clean(label) for label in model.classes_)
    if len(names) == 2:  # the posterior has one output, the probability of the second class
        return Outcomes(f"probability of {names[1]}", names[1:], (0,), np.zeros(1), np.ones(1))
    if len(names) > MAX_SERIES:
        top = int(np.argmax(typical))
        return Outcomes(f"probability of {names[top]}", (names[top],), (top,), np.zeros(1), np.ones(1))
    return Outcomes("probability", names, tuple(range(len(names))), np.zeros(len(names)), np.ones(len(names)))


def _targets(model: BSGPRegressor) -> Outcomes:
    names = tuple(clean(name) for name in model.target_names_)
    if len(names) == 1:
        return Outcomes(names[0], names, (0,), model.target_mean, model.target_scale)
    num = min(len(names), MAX_SERIES)
    return Outcomes("standard deviations", names[:num], tuple(range(num)), np.zeros(num), np.ones(num))
