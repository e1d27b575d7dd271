"""Likelihoods `p(y | f)` and their two Gaussian integrals, one file per kind of target."""

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import NegativeBinomial, Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian, gaussian
from bsgp.models.likelihoods.heteroskedastic import Heteroskedastic, heteroskedastic
from bsgp.models.likelihoods.mixture import GaussianMixture, gaussian_mixture
from bsgp.models.likelihoods.ordinal import Ordinal, ordinal
from bsgp.models.likelihoods.student_t import StudentT, student_t

__all__ = [
    "AbstractLikelihood",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "GaussianMixture",
    "Heteroskedastic",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "gaussian",
    "gaussian_mixture",
    "heteroskedastic",
    "ordinal",
    "student_t",
]
