"""Module names of version 0.1.0: some, such as `bsgp.kernels`, stay; the others warn and name the new module.

An alias is the same module object, not a copy, so classes are identical whichever name they are imported by.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

KEPT = {"kernels": "models.kernels", "likelihoods": "models.likelihoods", "priors": "models.priors"}
"""Short names that stay, and the modules that they stand for."""
MOVED = {
    "anchor": "inference.anchor",
    "baselines": "estimators.baselines",
    "bijectors": "models.priors",
    "checkpoints": "inference.checkpoints",
    "chunks": "inference.programs",
    "convergence": "estimators.diagnostics",
    "data.files": "data.tables.files",
    "data.folds": "experiments.datasets.folds",
    "data.named": "experiments.datasets.named",
    "data.schema": "data.encoding.schema",
    "data.sources": "data.store.sources",
    "data.standardise": "data.encoding.standardise",
    "deep_kernel": "methods.dkl",
    "diagnostics": "posterior.statistics",
    "estimators.files": "estimators.persistence",
    "evaluate": "posterior.metrics",
    "exact": "models.exact_gp",
    "experiments.runner": "experiments.engine.runner",
    "experiments.uci": "experiments.kinds.uci",
    "fastpath": "models.linalg.conditional",
    "fisher": "inference.fisher_mass",
    "fitted": "methods.fit",
    "fitting": "methods.registry",
    "grids": "models.grid_gp",
    "health": "inference.guard",
    "history": "inference.history",
    "implicit": "methods.ipvi_dgp",
    "inducing": "models.inducing_priors",
    "infer": "inference.sampling",
    "krylov": "models.linalg.conjugate_gradients",
    "mcmc_svgp": "methods.mcmc_svgp",
    "mesh": "runtime.mesh",
    "model": "models.deep_gp",
    "numerics": "models.linalg.numerics",
    "plan": "inference.sghmc_plan",
    "processes": "runtime.processes",
    "progress": "runtime.progress",
    "recipes": "methods.bsgp",
    "scoring": "estimators.scoring",
    "sghmc": "inference.sghmc",
    "startup": "runtime.compilation",
    "storage": "posterior.storage",
    "structured": "methods.kiss_gp",
    "target": "inference.target",
    "variational": "methods.svgp",
}
"""Names shown in the documentation of version 0.1.0. Importing them warns; a later version will remove them."""


class _Alias(Loader):
    """Loads the module `home` under another name."""

    def __init__(self, home: str):
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has replaced it by the alias's


class _Finder(MetaPathFinder):
    """Finds the old names."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package != "bsgp" or name not in KEPT | MOVED:
            return None
        home = f"bsgp.{(KEPT | MOVED)[name]}"
        if name in MOVED:
            warnings.warn(f"`{fullname}` is now `{home}`. Import it from there.", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(home))


def install() -> None:
    """Makes the old names importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
