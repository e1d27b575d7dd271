"""Every method by name, behind one function."""

from jaxtyping import Array

from bsgp.data.store.sources import AbstractSource, ArraySource, as_source
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import Report, silent
from bsgp.inference.host_loop import Clock
from bsgp.methods.bsgp import BSGP, U_SAMPLED, Z_OPTIMISED
from bsgp.methods.dkl import DKL
from bsgp.methods.exact_gp import EXACT_GP, MCMC_GP
from bsgp.methods.fit import Fit
from bsgp.methods.ipvi_dgp import IPVI_DGP
from bsgp.methods.kiss_gp import KISS_GP
from bsgp.methods.mcmc_svgp import MCMC_SVGP
from bsgp.methods.method import Method, Task
from bsgp.methods.options import Options
from bsgp.methods.sghmc_dgp import SGHMC_DGP
from bsgp.methods.svgp import FITC_SVGP, SVGP
from bsgp.models.kernel_choice import TableKernel, is_plain_rbf
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import Gaussian, check_gaussian
from bsgp.runtime.checks import check_option

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(BSGP, Z_OPTIMISED, U_SAMPLED, SGHMC_DGP, IPVI_DGP, SVGP, FITC_SVGP),
        *(MCMC_SVGP, MCMC_GP, EXACT_GP, KISS_GP, DKL),
    )
}
"""The rows at the end of the methods' files, in the order of the paper's Table 1."""


def fit_method(
    method: str,
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    options: Options = Options(),
    report: Report | None = None,
    checkpoints: Checkpoints | None = None,
    target_key: Array | None = None,
) -> Fit:
    """Fit standardised `X [N D]`, `y [N P]`, or a source and None, with a method by name.

    Chains that run in different processes share a `target_key` (`recipe.fit_with_recipe`).
    """
    source = as_source(X, y)
    check_method(method, likelihood, options, source=source, writes_checkpoints=checkpoints is not None)
    chosen, clock = METHODS[method], Clock(options.max_seconds)
    return chosen.fit(Task(chosen, source, likelihood, key, options, report or silent, clock, checkpoints, target_key))


def check_method(
    method: str,
    likelihood: AbstractLikelihood,
    options: Options,
    *,
    source: AbstractSource | None = None,
    writes_checkpoints: bool = False,
) -> None:
    """A `ValueError` if a method cannot do what is asked of it."""
    chosen = METHODS[check_option("method", method, list(METHODS))]
    if chosen.needs_gaussian:
        check_gaussian(method, likelihood)
    if options.depth > 1 and not chosen.is_deep:
        raise ValueError(f"`{method}` has one layer, got `depth` {options.depth}. Pass 1, or use {_that('is_deep')}.")
    if chosen.num_chains(options) > 1 and not chosen.has_chains:
        raise ValueError(
            f"`{method}` optimises and has no chains, got {options.num_chains}. Pass 1, or use {_that('has_chains')}."
        )
    if options.likelihood_power != 1 and not chosen.can_temper:
        raise ValueError(
            f"`{method}` takes the likelihood as it is, got `likelihood_power` {options.likelihood_power}. "
            f"Leave it out, or use {_that('can_temper')}."
        )
    if not is_plain_rbf(options.kernel) and not chosen.can_choose_kernel:
        got = f"`{options.kernel}`" if isinstance(options.kernel, str | TableKernel) else "another kernel"
        raise ValueError(
            f"`{method}` has an RBF kernel, got {got} as `kernel`. Leave it out, or use {_that('can_choose_kernel')}."
        )
    if options.mesh is not None and not chosen.can_use_mesh:
        raise ValueError(f"`{method}` runs on one device, got a `mesh`. Leave it out, or use {_that('can_use_mesh')}.")
    if source is not None and not isinstance(source, ArraySource) and not chosen.can_stream:
        raise ValueError(
            f"`{method}` must have all rows in memory, got a source on disk. Pass fewer rows, or use "
            f"{_that('can_stream')}."
        )
    if source is not None:
        _check_rows(chosen, likelihood, source)
    if writes_checkpoints and not chosen.can_checkpoint:
        raise ValueError(f"`{method}` writes no checkpoints, got a folder for them. Use {_that('can_checkpoint')}.")


def _check_rows(chosen: Method, likelihood: AbstractLikelihood, source: AbstractSource) -> None:
    """A `ValueError` if rows have weights or known noise that a method or a likelihood cannot take."""
    if source.total_weight is not None and not chosen.can_weight:
        raise ValueError(
            f"`{chosen.name}` counts every row once, got weights. Leave them out, or use {_that('can_weight')}."
        )
    if source.has_known_noise and not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"`noise_std` must go with Gaussian noise, got a {type(likelihood).__name__} likelihood. Leave it out."
        )
    if source.has_known_noise and not chosen.can_know_noise:
        raise ValueError(
            f"`{chosen.name}` learns one noise for all rows, got `noise_std`. Leave it out, or use "
            f"{_that('can_know_noise')}."
        )


def _that(capability: str) -> str:
    return ", ".join(f"`{name}`" for name, method in METHODS.items() if getattr(method, capability))
