"""Names, blocks and default priors of a model's parameters."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.tree_util as jtu

from bsgp.models.deep_gp import DeepGP
from bsgp.models.inducing_priors import AbstractInducingPrior, InducingNormal, InducingUniform
from bsgp.models.kernels import ActiveDimensions, Linear, Product, Sum
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
    # of terms beside a linear one: what a line leaves over may be of any size, nothing included
    "rest_variance": LogNormal.with_median(0.05, scale=2.0),
    "rest_lengthscales": LogNormal.with_median(1.0, scale=2.0),
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
    """Name in `DEFAULT_PRIORS` of the prior of a leaf: its field's, or that of its place in a product or a sum."""
    name = path[-1].name
    nodes = list(_walked(model, path))
    if name.endswith(("variance", "variances")) and any(_is_later_factor(*place) for place in nodes):
        return "factor_variance"
    if name in ("variance", "lengthscales") and any(_is_beside_line(*place) for place in nodes):
        return f"rest_{name}"
    return name


def _walked(model, path) -> Iterator[tuple[Any, str | None]]:
    """Each node on the way to a leaf, and the field that the way leaves it by."""
    node = model
    for entry in path:
        field = getattr(entry, "name", None)
        yield node, field
        node = node[entry.idx] if field is None else getattr(node, field)


def _is_later_factor(node, field: str | None) -> bool:
    return isinstance(node, Product) and field == "right"


def _is_beside_line(node, field: str | None) -> bool:
    """Whether the other side of a sum has a linear term."""
    return isinstance(node, Sum) and _has_line(node.left if field == "right" else node.right)


def _has_line(kernel) -> bool:
    if isinstance(kernel, Sum):
        return _has_line(kernel.left) or _has_line(kernel.right)
    return isinstance(kernel.kernel if isinstance(kernel, ActiveDimensions) else kernel, Linear)


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

    `others` replaces priors by parameter name in all layers, such as `lengthscales=LogNormal.with_median(2.0)`, which
    then also holds beside a linear kernel, unless `rest_lengthscales` is given.
    """
    names = {prior_name(model, path) for path, _ in jtu.tree_leaves_with_path(model)} | DEFAULT_PRIORS.keys()
    for name in others:
        check_option("the name of a prior", name, sorted(names - {"Z"}))
    table = DEFAULT_PRIORS | {f"rest_{name}": prior for name, prior in others.items()} | others
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
