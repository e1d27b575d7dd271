"""Fully Bayesian sparse and deep Gaussian processes.

The surface: `BSGPRegressor`, `BSGPClassifier`, `load`. The layers below, lowest first: `kernels`, `likelihoods`,
`priors`, `inducing`; `model`; `target`; `sghmc`; `infer`; `posterior`; `evaluate`; `recipes`; `estimators`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bsgp.data.store import Store, open_store
    from bsgp.estimators import BSGPClassifier, BSGPRegressor, load
    from bsgp.fitted import Fit
    from bsgp.fitting import Options, fit_method
    from bsgp.health import DivergenceError
    from bsgp.infer import Run, sample
    from bsgp.model import DeepGP, Layer, init_deep_gp
    from bsgp.plan import Plan
    from bsgp.posterior import Posterior
    from bsgp.processes import join_processes
    from bsgp.progress import progress_bar
    from bsgp.recipes import Recipe, fit
    from bsgp.target import Batch, Target, default_priors

__all__ = [
    "BSGPClassifier",
    "BSGPRegressor",
    "Batch",
    "DeepGP",
    "DivergenceError",
    "Fit",
    "Layer",
    "Options",
    "Plan",
    "Posterior",
    "Recipe",
    "Run",
    "Store",
    "Target",
    "default_priors",
    "fit",
    "fit_method",
    "init_deep_gp",
    "join_processes",
    "load",
    "open_store",
    "progress_bar",
    "sample",
]

# JAX and scikit-learn take seconds to import: `bsgp --help` and `import bsgp` should not wait for them.
_HOME = {
    "BSGPClassifier": "estimators",
    "BSGPRegressor": "estimators",
    "Batch": "target",
    "DeepGP": "model",
    "DivergenceError": "health",
    "Fit": "fitted",
    "Layer": "model",
    "Options": "fitting",
    "Plan": "plan",
    "Posterior": "posterior",
    "Recipe": "recipes",
    "Run": "infer",
    "Store": "data.store",
    "Target": "target",
    "default_priors": "target",
    "fit": "recipes",
    "fit_method": "fitting",
    "init_deep_gp": "model",
    "join_processes": "processes",
    "load": "estimators",
    "open_store": "data.store",
    "progress_bar": "progress",
    "sample": "infer",
}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'bsgp' has no attribute {name!r}")
    return getattr(import_module(f"bsgp.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
