"""Names, blocks and default priors of a model's parameters."""

from typing import Any, cast

import jax
import jax.tree_util as jtu

from bsgp.models.deep_gp import DeepGP
from bsgp.models.inducing_priors import AbstractInducingPrior, InducingNormal, InducingUniform
from bsgp.models.kernels import Product
from bsgp.models.priors import AbstractPrior, Flat, Gamma, LogNormal, Normal
from bsgp.runtime.checks import check_option

BLOCKS = ("u", "Z", "theta", "noise")
"""Groups of parameters that are sampled, optimised or fixed together."""

# lengthscales and variance follow the paper: log-normal with medians 1 and 0.05
DEFAULT_PRIORS: dict[str, AbstractPrior | AbstractInducingPrior] = {
    "V": Normal(),
    "Z": InducingNormal(),
    "lengthscales": LogNormal.with_median(1.0),
    "variance": LogNormal.with_median(0.05),
    "variances": LogNormal.with_median(0.05),
    "bias_variance": LogNormal.with_median(0.05),
    "factor_variance": LogNormal.with_median(1.0, scale=0.3),  # the first factor of a product carries its variance
    "alpha": LogNormal.with_median(1.0),
    "period": LogNormal.with_median(1.0),
    "noise_variance": LogNormal.with_median(0.01, scale=3.0),
    "scale": LogNormal.with_median(0.1, scale=1.5),
    "degrees_of_freedom": LogNormal.with_median(12.0, scale=1.0, low=2.0),
    "concentration": LogNormal.with_median(5.0, scale=1.5),
    "log_rate": Normal(scale=10.0),
    "first_cut": Normal(scale=5.0),
    "gaps": LogNormal.with_median(0.5, scale=1.5),
    "locations": Normal(),
    "log_widths": Normal(scale=0.7),
    "weights": Gamma(0.5, 1.0),  # normalised: a Dirichlet of 1/2, which empties components that are not needed
    "shift_amplitude": LogNormal.with_median(0.5),
    "width_amplitude": LogNormal.with_median(0.5),
    "weight_amplitude": LogNormal.with_median(0.5),
}


def is_prior(node) -> bool:
    return isinstance(node, AbstractPrior | AbstractInducingPrior)


def prior_name(model, path) -> str:
    """Name in `DEFAULT_PRIORS` of the prior of a leaf: its field's, or `factor_variance` for later factors."""
    name = path[-1].name
    if not name.endswith(("variance", "variances")):
        return name
    node: Any = model
    is_later_factor = False
    for entry in path:
        step = getattr(entry, "name", None)
        is_later_factor = is_later_factor or (isinstance(node, Product) and step == "right")
        node = cast(Any, node)[entry.idx] if step is None else getattr(node, step)
    return "factor_variance" if is_later_factor else name


def block_of(path) -> str | None:
    """Block of a leaf of a `DeepGP`; None for constants such as the linear mean."""
    names = [getattr(entry, "name", None) for entry in path]
    if names[-1] in ("V", "Z", "W", "root"):
        return {"V": "u", "Z": "Z", "W": None, "root": None}[names[-1]]
    return "theta" if "kernel" in names else "noise"


def leaf_name(path) -> str:
    """Readable name of a leaf, such as `layers.0.kernel.lengthscales`."""
    return ".".join(str(getattr(entry, "name", getattr(entry, "idx", entry))) for entry in path)


def default_priors(
    model: DeepGP, inducing_prior: AbstractInducingPrior | None = None, **others: AbstractPrior
) -> DeepGP:
    """A tree of priors for `model`: the paper's, with `inducing_prior` (normal by default) on every Z.

    `others` replaces priors by parameter name in all layers, such as `lengthscales=LogNormal.with_median(2.0)`.
    """
    names = {prior_name(model, path) for path, _ in jtu.tree_leaves_with_path(model)} | DEFAULT_PRIORS.keys()
    for name in others:
        check_option("the name of a prior", name, sorted(names - {"Z"}))
    table = DEFAULT_PRIORS | others
    if inducing_prior is not None:
        table = table | {"Z": inducing_prior}

    def prior_of(path, _):
        if block_of(path) is None:
            return None
        name = prior_name(model, path)
        if name not in table:
            raise ValueError(
                f"`{leaf_name(path)}` must have a prior, got none: its name has no default. Pass one as `{name}=`."
            )
        return table[name]

    return jtu.tree_map_with_path(prior_of, model)


def flat_priors(model: DeepGP) -> DeepGP:
    """Improper constant priors on Z, theta and the noise, for methods that optimise them; V keeps its N(0, I)."""

    def flat(prior):
        if isinstance(prior, AbstractInducingPrior):
            return InducingUniform()
        return prior if isinstance(prior, Normal) else Flat(prior.bijector)

    return jax.tree.map(flat, default_priors(model), is_leaf=is_prior)
