"""Options of a fit: one list that estimators, command line and experiments share. Importing it does not import JAX."""

from dataclasses import dataclass, field, fields
from typing import Any

from bsgp.runtime.checks import check_count, check_option, check_positive


def option(default: Any, help: str) -> Any:
    """A field with a sentence for `--help` and the documentation."""
    return field(default=default, metadata={"help": help})


def help_of(options: type, name: str) -> str:
    """The sentence that describes an option of a class of options."""
    return next(one.metadata["help"] for one in fields(options) if one.name == name)


@dataclass(frozen=True)
class Options:
    """What a user may choose about a fit. A method that has no use for an option refuses it or ignores it."""

    depth: int = option(1, "Number of layers.")
    kernel: Any = option(
        "rbf",
        "Kernel in words, such as `linear + rbf` or `rbf(age, income) * periodic(12)(month)`: sums and products of "
        "`rbf`, `matern12`, `matern32`, `matern52`, `rational-quadratic`, `linear` and `periodic`.",
    )
    """In words, a kernel of `bsgp.models`, or a function `(num_dims, dtype) -> kernel`. None means RBF."""
    num_inducing: int | None = option(None, "Number of inducing points. None: the recipe's choice.")
    objective: str = option("fitc", "`fitc`, `vfe` or `tighter-vfe`. Only bsgp and its ablations have a choice.")
    inducing_prior: Any = option(
        None,
        "Prior on the inducing inputs: `normal`, `determinantal`, `strauss`, `strauss-hard` or `uniform`. None: the "
        "recipe's choice. Only bsgp and its ablations use it.",
    )
    """A name, or a `bsgp.models.AbstractInducingPrior`."""
    likelihood_power: float = option(
        1.0, "Power of the likelihood. Below 1 every row counts for less, and the posterior is wider."
    )
    recipe: str = option("default", "`default`, or `paper` for the authors' own settings. Only bsgp and its ablations.")
    num_chains: int | None = option(
        None, "Number of Markov chains. None: four, which a grade of `converged` needs, for methods that sample."
    )
    effort: float = option(1.0, "Factor on the number of updates.")
    thinning: int | None = option(None, "Updates from one draw to the next. None: the recipe's choice.")
    max_seconds: float | None = option(None, "Stop after this many seconds and keep the draws made so far.")
    mesh: str | None = option(
        None, "Devices for chains and shares of each minibatch, CHAINSxDATA, such as 2x1. None: one device."
    )

    def __post_init__(self):
        from bsgp.inference.objectives import OBJECTIVES
        from bsgp.methods.bsgp import RECIPES
        from bsgp.models.inducing_priors import INDUCING_PRIORS
        from bsgp.models.kernel_choice import check_kernel
        from bsgp.runtime.mesh import mesh_shape

        check_count("depth", self.depth)
        check_kernel(self.kernel)
        check_option("objective", self.objective, list(OBJECTIVES))
        check_option("recipe", self.recipe, list(RECIPES))
        check_positive("effort", self.effort)
        check_positive("likelihood_power", self.likelihood_power)
        if isinstance(self.inducing_prior, str):
            check_option("inducing_prior", self.inducing_prior, list(INDUCING_PRIORS))
        for name in ("num_inducing", "num_chains", "thinning"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds)
        if self.mesh is not None:
            mesh_shape(self.mesh)

    @property
    def prior_on_inducing_inputs(self):
        """The chosen `AbstractInducingPrior`, or None for the recipe's."""
        from bsgp.models.inducing_priors import INDUCING_PRIORS

        return INDUCING_PRIORS[self.inducing_prior] if isinstance(self.inducing_prior, str) else self.inducing_prior
