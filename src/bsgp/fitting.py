"""Every method of `bsgp.methods` behind one function, with settings that depend on nothing but the table's size."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bsgp import recipes
from bsgp.checkpoints import Checkpoints
from bsgp.checks import check_count, check_option, check_positive
from bsgp.data.sources import AbstractSource, ArraySource, as_source
from bsgp.deep_kernel import fit_dkl
from bsgp.exact_fits import fit_exact_gp, fit_mcmc_gp
from bsgp.feed import rows_to_begin_from
from bsgp.fitted import Fit
from bsgp.history import Report, silent
from bsgp.implicit import ImplicitPlan, fit_implicit
from bsgp.inducing import AbstractInducingPrior
from bsgp.likelihoods import AbstractLikelihood, Gaussian
from bsgp.mcmc_svgp import fit_mcmc_svgp
from bsgp.memory import check_memory, memory_of_chains, memory_of_exact
from bsgp.mesh import Layout, mesh_shape
from bsgp.methods import METHODS
from bsgp.model import DeepGP, init_deep_gp
from bsgp.nuts import NutsPlan
from bsgp.optimise import Clock
from bsgp.programs import let_go_of_programs
from bsgp.recipes import Recipe, named_recipe, scaled
from bsgp.structured import fit_kiss_gp
from bsgp.target import ALL_OPTIMISED, OBJECTIVES, Target, flat_priors
from bsgp.variational import VariationalPlan, fit_variational

START_NOISE = 0.1  # variance, where it is optimised; y is standardised
ABLATIONS = {
    "bsgp": {},
    "bsgp-z-optimised": {"Z": "optimise"},
    "bsgp-u": {"Z": "optimise", "theta": "optimise", "noise": "optimise"},
}


@dataclass(frozen=True)
class Options:
    """What a user may choose. Not every method looks at everything: a grid has no inducing points."""

    depth: int = 1
    num_inducing: int | None = None
    """None leaves it to the method."""
    objective: str = "fitc"
    """Of bsgp and its ablations."""
    inducing_prior: AbstractInducingPrior | None = None
    """Of bsgp and its ablations; None is the recipe's: normal, or around cluster centres."""
    likelihood_power: float = 1.0
    """Below 1 the data count for fewer rows than they are; of methods with checkpoints."""
    recipe: str = "default"
    """Of bsgp and its ablations."""
    num_chains: int = 1
    effort: float = 1.0
    """Multiplies the number of updates."""
    thinning: int | None = None
    """Updates from one draw to the next, of bsgp, its ablations and sghmc-dgp; None is the recipe's."""
    max_seconds: float | None = None
    mesh: str | None = None
    """Devices to spread chains and minibatches over, `CHAINSxDATA`, of bsgp, its ablations and sghmc-dgp."""

    def __post_init__(self):
        check_count("depth", self.depth)
        check_count("num_chains", self.num_chains)
        check_option("objective", self.objective, OBJECTIVES)
        check_option("recipe", self.recipe, list(recipes.RECIPES))
        check_positive("effort", self.effort)
        check_positive("likelihood_power", self.likelihood_power)
        for name in ("num_inducing", "thinning"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds)
        if self.mesh is not None:
            mesh_shape(self.mesh)


@dataclass(frozen=True)
class _Task:
    """One call of `fit_method`, as the methods see it."""

    method: str
    source: AbstractSource
    likelihood: AbstractLikelihood
    key: Array
    options: Options
    report: Report
    clock: Clock
    checkpoints: Checkpoints | None
    target_key: Array | None

    @property
    def rows(self) -> tuple[Any, np.ndarray | None]:
        """`X`, `y` as methods take them: arrays, or a source on disk and None."""
        return self.source.rows if isinstance(self.source, ArraySource) else (self.source, None)

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    def times(self, count: int) -> int:
        """A number of updates, with the user's effort."""
        return max(1, round(self.options.effort * count))

    def by_rows(self, small: int, large: int) -> int:
        """A number of updates for up to 1,000 rows, and for more."""
        return self.times(small if self.num_rows <= 1_000 else large)

    def start_model(self, key: Array) -> DeepGP:
        """A model for methods that optimise Z, kernel and noise."""
        likelihood = self.likelihood
        if isinstance(likelihood, Gaussian):
            likelihood = Gaussian(jnp.full_like(likelihood.noise_variance, START_NOISE))
        num_inducing = min(self.options.num_inducing or 100, self.num_rows)
        return init_deep_gp(
            rows_to_begin_from(self.source, key).X, likelihood, key,
            num_targets=self.source.num_targets, num_inducing=num_inducing, depth=self.options.depth,
        )  # fmt: skip


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
    """Fit standardised `X [N D]`, `y [N P]`, or a source and None, with a method of `bsgp.methods`.

    `target_key` is shared by chains that are run one by one (`recipes.fit`).
    """
    check_method(method, likelihood, options)
    about, source = METHODS[method], as_source(X, y)
    if not isinstance(source, ArraySource) and not about.can_stream:
        raise ValueError(
            f"`{method}` must have all rows in memory, got a source on disk. Pass fewer rows, or use "
            f"{_others('can_stream')}."
        )
    if checkpoints is not None and not about.can_resume:
        raise ValueError(f"`{method}` writes no checkpoints, got a folder for them. Use {_others('can_resume')}.")
    let_go_of_programs()
    clock = Clock(options.max_seconds)
    task = _Task(method, source, likelihood, key, options, report or silent, clock, checkpoints, target_key)
    return _FITS[method](task)


def check_method(method: str, likelihood: AbstractLikelihood, options: Options) -> None:
    """A `ValueError` where a method cannot do what is asked of it."""
    about = METHODS[check_option("method", method, list(METHODS))]
    if options.depth > 1 and not about.is_deep:
        raise ValueError(f"`{method}` has one layer, got `depth` {options.depth}. Pass 1, or use {_others('is_deep')}.")
    if about.needs_gaussian and not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"`{method}` is for regression, got a {type(likelihood).__name__} likelihood. Use `bsgp` or `svgp`."
        )
    if options.num_chains > 1 and not about.has_chains:
        raise ValueError(
            f"`{method}` optimises and has no chains, got {options.num_chains}. Pass 1, or use {_others('has_chains')}."
        )
    if options.likelihood_power != 1 and not about.can_resume:
        raise ValueError(
            f"`{method}` takes the likelihood as it is, got `likelihood_power` {options.likelihood_power}. "
            f"Leave it out, or use {_others('can_resume')}."
        )
    if options.mesh is not None and not about.can_resume:
        raise ValueError(f"`{method}` runs on one device, got a `mesh`. Leave it out, or use {_others('can_resume')}.")


def _others(flag: str) -> str:
    return ", ".join(f"`{name}`" for name, method in METHODS.items() if getattr(method, flag))


def bsgp_recipe(method: str, source: AbstractSource, likelihood: AbstractLikelihood, options: Options) -> Recipe:
    """The recipe of bsgp, of one of its ablations, or of sghmc-dgp, with a user's options."""
    if method == "sghmc-dgp":
        size = source.num_rows, source.num_inputs, source.num_targets
        recipe = recipes.sghmc_dgp_recipe(*size, options.depth)
    else:
        recipe = named_recipe(options.recipe, source, likelihood, options.depth)
        recipe = replace(recipe, objective=options.objective, treatment={**recipe.treatment, **ABLATIONS[method]})
    num_inducing = min(options.num_inducing or recipe.num_inducing, source.num_rows)
    recipe = scaled(recipe, num_inducing, options.effort)
    plan = replace(recipe.plan, max_seconds=options.max_seconds, thinning=options.thinning or recipe.plan.thinning)
    return replace(recipe, plan=plan, likelihood_power=options.likelihood_power)


def _fit_bsgp(task: _Task) -> Fit:
    options = task.options
    recipe = bsgp_recipe(task.method, task.source, task.likelihood, options)
    check_memory(_memory_of(task, recipe), "Lower `num_inducing`, `num_chains` or `depth`, or leave rows on disk.")
    return recipes.fit(
        *task.rows, task.likelihood, task.key,
        recipe=recipe,
        depth=options.depth,
        inducing_prior=options.inducing_prior,
        num_chains=options.num_chains,
        report=task.report,
        checkpoints=task.checkpoints,
        layout=None if options.mesh is None else Layout(mesh_shape(options.mesh)),
        target_key=task.target_key,
    )  # fmt: skip


def _memory_of(task: _Task, recipe: Recipe) -> int:
    source, plan = task.source, recipe.plan
    return memory_of_chains(
        num_rows=source.num_rows,
        num_inputs=source.num_inputs,
        num_targets=task.likelihood.num_latent(source.num_targets),
        num_inducing=recipe.num_inducing,
        depth=task.options.depth,
        num_chains=task.options.num_chains,
        num_draws=plan.num_draws,
        batch_size=min(plan.batch_size, source.num_rows),
        updates_per_chunk=max(plan.chunk, plan.thinning),
        itemsize=jnp.result_type(float).itemsize,
        is_streamed=not isinstance(source, ArraySource),
        learns_axes=plan.adaptation == "fisher",
    )


def _check_exact_memory(task: _Task) -> None:
    check_memory(memory_of_exact(task.num_rows), "Pass fewer rows, or use `bsgp`.")


def _optimised_target(model: DeepGP, num_rows: int, objective: str) -> Target:
    """FITC overfits few rows unless kernel and noise have the priors of bsgp; VFE does not, and is better without."""
    priors = flat_priors(model) if objective == "vfe" else None
    return Target(model, num_rows, priors=priors, objective=objective, treatment=ALL_OPTIMISED)


def _variational_plan(task: _Task) -> VariationalPlan:
    return VariationalPlan(num_steps=task.by_rows(5_000, 10_000))


def _fit_variational(task: _Task) -> Fit:
    model_key, key = jr.split(task.key)
    objective = "vfe" if task.method == "svgp" else "fitc"
    target = _optimised_target(task.start_model(model_key), task.num_rows, objective)
    plan = _variational_plan(task)
    return fit_variational(target, *task.rows, key, plan=plan, report=task.report, clock=task.clock)


def _fit_implicit(task: _Task) -> Fit:
    model_key, key = jr.split(task.key)
    target = _optimised_target(task.start_model(model_key), task.num_rows, "fitc")
    # on few rows the log of the expectation goes on to overfit where an expectation of the log would have settled
    plan = ImplicitPlan(num_steps=task.by_rows(1_500, 6_000))
    return fit_implicit(target, *task.rows, key, plan=plan, report=task.report, clock=task.clock)


def _nuts_plan(task: _Task) -> NutsPlan:
    return NutsPlan(warm_up=task.times(200), num_draws=task.times(200))


def _fit_mcmc_svgp(task: _Task) -> Fit:
    model_key, key = jr.split(task.key)
    optimise_key = None
    if task.target_key is not None:
        model_key, optimise_key = jr.split(task.target_key)
    return fit_mcmc_svgp(
        task.start_model(model_key), *task.rows, key,
        optimise_key=optimise_key,
        plan=_nuts_plan(task),
        optimisation=_variational_plan(task),
        num_chains=task.options.num_chains,
        report=task.report,
        clock=task.clock,
    )  # fmt: skip


def _fit_mcmc_gp(task: _Task) -> Fit:
    _check_exact_memory(task)
    return fit_mcmc_gp(
        *task.rows, task.likelihood, task.key,
        plan=_nuts_plan(task), num_chains=task.options.num_chains, report=task.report, clock=task.clock,
    )  # fmt: skip


def _fit_exact_gp(task: _Task) -> Fit:
    _check_exact_memory(task)
    num_steps = task.times(200)
    return fit_exact_gp(
        *task.rows, task.likelihood, task.key, num_steps=num_steps, report=task.report, clock=task.clock
    )


def _fit_kiss_gp(task: _Task) -> Fit:
    num_steps = task.times(100)
    return fit_kiss_gp(*task.rows, task.likelihood, task.key, num_steps=num_steps, report=task.report, clock=task.clock)


def _fit_dkl(task: _Task) -> Fit:
    effort = task.options.effort
    return fit_dkl(*task.rows, task.likelihood, task.key, effort=effort, report=task.report, clock=task.clock)


_FITS: dict[str, Callable[[_Task], Fit]] = {
    "bsgp": _fit_bsgp,
    "bsgp-z-optimised": _fit_bsgp,
    "bsgp-u": _fit_bsgp,
    "sghmc-dgp": _fit_bsgp,
    "ipvi-dgp": _fit_implicit,
    "svgp": _fit_variational,
    "fitc-svgp": _fit_variational,
    "mcmc-svgp": _fit_mcmc_svgp,
    "mcmc-gp": _fit_mcmc_gp,
    "exact-gp": _fit_exact_gp,
    "kiss-gp": _fit_kiss_gp,
    "dkl": _fit_dkl,
}
