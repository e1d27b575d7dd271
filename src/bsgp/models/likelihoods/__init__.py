"""Likelihoods `p(y | f)` and their two Gaussian integrals, one file per kind of target."""

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson, nearest_target
from bsgp.models.likelihoods.gaussian_noise import Gaussian, gaussian
from bsgp.models.likelihoods.student_t import StudentT

__all__ = [
    "AbstractLikelihood",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Poisson",
    "StudentT",
    "gaussian",
    "nearest_target",
]
