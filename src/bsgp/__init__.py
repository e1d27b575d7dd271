"""Fully Bayesian sparse and deep Gaussian processes.

The layers, lowest first: `kernels`, `likelihoods`, `priors`, `inducing`; `model`; `target`; `sghmc`; `infer`;
`posterior`; `evaluate`; `recipes`.
"""

from bsgp.health import DivergenceError
from bsgp.infer import Run, sample
from bsgp.model import DeepGP, Layer, init_deep_gp
from bsgp.plan import Plan
from bsgp.posterior import Posterior
from bsgp.progress import progress_bar
from bsgp.recipes import Fit, Recipe, fit
from bsgp.target import Batch, Target, default_priors

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "DeepGP",
    "DivergenceError",
    "Fit",
    "Layer",
    "Plan",
    "Posterior",
    "Recipe",
    "Run",
    "Target",
    "default_priors",
    "fit",
    "init_deep_gp",
    "progress_bar",
    "sample",
]
