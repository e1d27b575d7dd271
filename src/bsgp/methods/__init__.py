"""BSGP and every method that it is compared with, a file for each, behind one function."""

from typing import TYPE_CHECKING

from bsgp.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from bsgp.methods.bsgp import RECIPES
    from bsgp.methods.fit import Fit
    from bsgp.methods.method import Method, Task
    from bsgp.methods.options import Options
    from bsgp.methods.recipe import ProblemSize, Recipe
    from bsgp.methods.registry import METHODS, fit_method

__all__ = ["METHODS", "RECIPES", "Fit", "Method", "Options", "ProblemSize", "Recipe", "Task", "fit_method"]

# the command line reads `Options` for its help texts, and should not wait for JAX
__getattr__ = lazy_names(
    "bsgp.methods",
    {
        "METHODS": "registry",
        "RECIPES": "bsgp",
        "Fit": "fit",
        "Method": "method",
        "Options": "options",
        "ProblemSize": "recipe",
        "Recipe": "recipe",
        "Task": "method",
        "fit_method": "registry",
    },
)
