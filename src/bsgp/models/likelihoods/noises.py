"""Kinds of noise by name, for regression."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.counts import NegativeBinomial, Poisson, log_mean_count
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.models.likelihoods.heteroskedastic import heteroskedastic
from bsgp.models.likelihoods.mixture import gaussian_mixture
from bsgp.models.likelihoods.ordinal import ordinal
from bsgp.models.likelihoods.student_t import student_t

START_CONCENTRATION = 5.0


class TrainingTargets(NamedTuple):
    """What a likelihood starts from: targets, standardised if they have units."""

    y: np.ndarray
    """Targets `[N P]`, or some of them."""
    dtype: Any
    exposure: np.ndarray | None = None
    """Exposure of each row, `[N]`, of counts that have one."""

    weight: np.ndarray | None = None
    """How many times each row counts, `[N]`; None: once each."""

    @property
    def num_targets(self) -> int:
        return self.y.shape[1]


class Noise(NamedTuple):
    """A kind of noise."""

    about: str
    start: Callable[[TrainingTargets], AbstractLikelihood]
    has_units: bool = True
    """Whether targets are standardised."""
    takes_exposure: bool = False
    takes_several_targets: bool = True


def _poisson(of: TrainingTargets) -> Poisson:
    return Poisson(_log_rate(of), has_exposure=of.exposure is not None)


def _negative_binomial(of: TrainingTargets) -> NegativeBinomial:
    concentration = jnp.full(of.num_targets, START_CONCENTRATION, of.dtype)
    return NegativeBinomial(concentration, _log_rate(of), has_exposure=of.exposure is not None)


def _log_rate(of: TrainingTargets):
    # of a column without any count, which a check refuses later, the log would warn
    return jnp.asarray(log_mean_count(np.maximum(of.y, 1e-12), of.exposure, of.weight), of.dtype)


NOISES: dict[str, Noise] = {
    "gaussian": Noise("the same Gaussian everywhere", lambda of: gaussian(of.num_targets, of.dtype)),
    "student": Noise("heavy tails, for outliers", lambda of: student_t(of.num_targets, of.dtype)),
    "heteroskedastic": Noise(
        "Gaussian, wider in some places than in others", lambda of: heteroskedastic(of.num_targets, of.dtype)
    ),
    "mixture": Noise(
        "any shape, which varies: skewed, heavy-tailed, several modes",
        lambda of: gaussian_mixture(of.num_targets, of.dtype),
    ),
    "poisson": Noise("counts", _poisson, has_units=False, takes_exposure=True),
    "negative-binomial": Noise(
        "counts that scatter more than Poisson's", _negative_binomial, has_units=False, takes_exposure=True
    ),
    "ordinal": Noise(
        "ordered levels, such as stars",
        lambda of: ordinal(of.y, of.dtype, of.weight),
        has_units=False,
        takes_several_targets=False,
    ),
}
"""Every kind, by the word that `noise=` and `--noise` take."""
