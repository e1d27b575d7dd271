"""Kernels, likelihoods, priors, and the Gaussian processes built from them."""

from bsgp.models.batch import Batch, Shard
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.exact_gp import ExactGP
from bsgp.models.grid_gp import DeepKernelGP, GridGP
from bsgp.models.inducing_priors import (
    INDUCING_PRIORS,
    AbstractInducingPrior,
    Determinantal,
    InducingAround,
    InducingNormal,
    InducingUniform,
    Strauss,
)
from bsgp.models.kernels import (
    RBF,
    AbstractKernel,
    ActiveDimensions,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Seasonal,
    Sum,
    linear,
    stationary,
)
from bsgp.models.layer import Layer
from bsgp.models.likelihoods import (
    AbstractLikelihood,
    Bernoulli,
    Categorical,
    Gaussian,
    Poisson,
    StudentT,
    gaussian,
)
from bsgp.models.linalg.numerics import Marginals
from bsgp.models.model import AbstractModel
from bsgp.models.parameters import default_priors, flat_priors
from bsgp.models.priors import (
    AbstractPrior,
    Flat,
    Gamma,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Normal,
    Uniform,
)

__all__ = [
    "INDUCING_PRIORS",
    "RBF",
    "AbstractInducingPrior",
    "AbstractKernel",
    "AbstractLikelihood",
    "AbstractModel",
    "AbstractPrior",
    "ActiveDimensions",
    "Batch",
    "Bernoulli",
    "Categorical",
    "DeepGP",
    "DeepKernelGP",
    "Determinantal",
    "ExactGP",
    "Flat",
    "Gamma",
    "Gaussian",
    "GridGP",
    "HalfNormal",
    "InducingAround",
    "InducingNormal",
    "InducingUniform",
    "InverseGamma",
    "Layer",
    "Linear",
    "LogNormal",
    "Marginals",
    "Matern12",
    "Matern32",
    "Matern52",
    "Normal",
    "Periodic",
    "Poisson",
    "Product",
    "RationalQuadratic",
    "Seasonal",
    "Shard",
    "Strauss",
    "StudentT",
    "Sum",
    "Uniform",
    "default_priors",
    "flat_priors",
    "gaussian",
    "init_deep_gp",
    "linear",
    "stationary",
]
