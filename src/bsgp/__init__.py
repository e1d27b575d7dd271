"""Fully Bayesian sparse and deep Gaussian processes.

The surface: `BSGPRegressor`, `BSGPClassifier`, `load`. Below it, top to bottom: `bsgp.estimators`, `bsgp.methods`,
`bsgp.inference` and `bsgp.posterior`, `bsgp.models` and `bsgp.data`. docs/architecture.md shows the way through them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bsgp.runtime import moved_modules
from bsgp.runtime.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bsgp.data.store.store import Store, open_store
    from bsgp.estimators import BSGPClassifier, BSGPRegressor, load
    from bsgp.inference.sampling import Run, sample
    from bsgp.inference.sghmc_plan import Plan
    from bsgp.inference.target import Target
    from bsgp.methods.bsgp import fit
    from bsgp.methods.fit import Fit
    from bsgp.methods.options import Options
    from bsgp.methods.recipe import Recipe
    from bsgp.methods.registry import fit_method
    from bsgp.models.batch import Batch
    from bsgp.models.deep_gp import DeepGP, init_deep_gp
    from bsgp.models.layer import Layer
    from bsgp.models.parameters import default_priors
    from bsgp.posterior.posterior import Posterior
    from bsgp.runtime.errors import DivergenceError
    from bsgp.runtime.processes import join_processes
    from bsgp.runtime.progress import progress_bar

_HOMES = {
    "BSGPClassifier": "estimators",
    "BSGPRegressor": "estimators",
    "Batch": "models.batch",
    "DeepGP": "models.deep_gp",
    "DivergenceError": "runtime.errors",
    "Fit": "methods.fit",
    "Layer": "models.layer",
    "Options": "methods.options",
    "Plan": "inference.sghmc_plan",
    "Posterior": "posterior.posterior",
    "Recipe": "methods.recipe",
    "Run": "inference.sampling",
    "Store": "data.store.store",
    "Target": "inference.target",
    "default_priors": "models.parameters",
    "fit": "methods.bsgp",
    "fit_method": "methods.registry",
    "init_deep_gp": "models.deep_gp",
    "join_processes": "runtime.processes",
    "load": "estimators",
    "open_store": "data.store.store",
    "progress_bar": "runtime.progress",
    "sample": "inference.sampling",
}

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

moved_modules.install()
_find = lazy_names("bsgp", _HOMES)


def __getattr__(name: str):
    return import_module(f"bsgp.{moved_modules.KEPT[name]}") if name in moved_modules.KEPT else _find(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
