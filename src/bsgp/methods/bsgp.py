"""bsgp, the paper's method, and its two ablations: u, Z, theta and noise by stochastic-gradient HMC.

The default recipe is what `docs/recipe.md` describes; the paper's recipe is what the authors did.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from bsgp.data.store.sources import ArraySource, as_source
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import Report
from bsgp.inference.objectives import OBJECTIVES
from bsgp.inference.sghmc_plan import Plan
from bsgp.methods.fit import Fit
from bsgp.methods.memory import memory_of_chains
from bsgp.methods.method import Method, Task
from bsgp.methods.options import Options
from bsgp.methods.recipe import ProblemSize, Recipe, fit_with_recipe, scaled
from bsgp.models.inducing_priors import AbstractInducingPrior
from bsgp.models.kernel_choice import KernelChoice
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.priors import Exp, Flat, LogNormal
from bsgp.runtime.checks import check_count, check_option
from bsgp.runtime.memory import check_memory
from bsgp.runtime.mesh import Layout, mesh_shape

PLAIN_PLAN = Plan(adam_steps=2_800, burn_in=5_632, num_draws=128, thinning=44)
"""Plan for likelihoods whose u cannot be anchored: 14,064 gradient evaluations, more with a longer warm start."""
EXACT_PLAN = Plan(adam_steps=0, lbfgs_steps=80, burn_in=960, thinning=28, adaptation="position", persistence=2.5)
"""Plan for few rows, one layer and Gaussian noise: u is integrated out, and gradients are exact."""
LONG_EXACT_PLAN = replace(EXACT_PLAN, num_draws=128, thinning=24, chunk=48)
"""Plan for up to 10,000 rows: fewer updates, as a gradient of all rows takes longer."""
DEEP_PLAN = Plan(adam_steps=1_800, burn_in=1_920, num_draws=128, thinning=16, batch_size=500)
"""Plan for few rows and several layers. Under the position mass chains agree better, but predict worse."""
NOISE_PLAN = replace(PLAIN_PLAN, learns_spread=True)
"""Plan for regression with other than Gaussian noise."""
LONG_NOISE_PLAN = replace(NOISE_PLAN, adam_steps=4_800, burn_in=2_816, thinning=16)
"""Plan for the same with many rows."""
LATENT_VARIANCE_PRIOR = LogNormal.with_median(1.0, scale=2.0)
"""Kernel variance of latent functions without units: one that separates classes well may be of any size."""
SMALL_TABLE, MANY_ROWS = 1_000, 5_000
FEW_CLASSES, LEAST_SHARE = 4, 0.4
"""More classes take a share of the updates, as each costs more: `FEW_CLASSES / K`, but at least `LEAST_SHARE`."""
MANY_INPUTS = 12
MOST_EXACT_ROWS = 10_000
"""Rows up to which a gradient of all of them, with u integrated out, is worth its time."""


# -- recipes -----------------------------------------------------------------------------------------------------


def default_recipe(size: ProblemSize) -> Recipe:
    """One recipe for all data sets and depths; docs/recipe.md says how it was found.

    A single layer with Gaussian noise integrates u out up to 10,000 rows, all of which are anchors. Several layers have
    all rows as anchors up to 1,000. More rows make the posterior narrower and put it farther from the start: the warm
    start is longer, and more inducing points are worth their cost. Hidden layers then take twice as long to find their
    shape.
    """
    num_inducing, num_anchor = min(100, size.num_rows), 500
    has_exact_gradients = size.depth == 1 and size.is_gaussian and not size.is_streamed
    if has_exact_gradients and size.num_rows <= MOST_EXACT_ROWS:
        plan, num_anchor = EXACT_PLAN if size.num_rows <= SMALL_TABLE else LONG_EXACT_PLAN, size.num_rows
        num_inducing = num_inducing if size.num_rows <= MANY_ROWS else 128
    elif size.num_rows <= SMALL_TABLE:
        plan, num_anchor = DEEP_PLAN, size.num_rows
    elif size.num_rows <= MANY_ROWS:
        plan = Plan(adam_steps=3_500, burn_in=2_240, num_draws=128, thinning=28, batch_size=1_000)
    elif size.depth > 1:
        plan = Plan(adam_steps=11_200, burn_in=5_632, num_draws=128, thinning=88, batch_size=1_000)
    else:
        plan = Plan(adam_steps=5_600, burn_in=2_816, num_draws=128, thinning=44, batch_size=1_000)
        num_inducing = 128
    recipe = Recipe("default", num_inducing=num_inducing, plan=plan, num_anchor=num_anchor, start_noise=0.01)
    if size.is_gaussian:
        return recipe
    return _without_anchor(recipe, size) if size.num_classes else _for_other_noise(recipe, size)


def _for_other_noise(recipe: Recipe, size: ProblemSize) -> Recipe:
    """Chains that start where a Gaussian approximation has learned how far u spreads: the mode of u overfits."""
    return replace(
        recipe,
        num_inducing=recipe.num_inducing if size.num_rows <= MANY_ROWS else 128,
        plan=NOISE_PLAN if size.num_rows <= MANY_ROWS else LONG_NOISE_PLAN,
        num_anchor=None,
        priors={"variance": LATENT_VARIANCE_PRIOR},
    )


def _without_anchor(recipe: Recipe, size: ProblemSize) -> Recipe:
    """Longer chains instead of better coordinates, and with many rows a mass that learns from gradient noise."""
    plan = replace(PLAIN_PLAN, adam_steps=max(PLAIN_PLAN.adam_steps, recipe.plan.adam_steps))
    recipe = replace(recipe, plan=plan, num_anchor=None, priors={"variance": LATENT_VARIANCE_PRIOR})
    if size.num_rows <= MANY_ROWS:
        return _for_classes(recipe, size) if size.depth == 1 else recipe
    return replace(
        recipe,
        plan=replace(plan, adaptation="fisher"),
        priors={
            "variance": LogNormal.with_median(1.0, scale=5.0),
            "lengthscales": LogNormal.with_median(size.num_inputs**0.5, scale=3.0),
        },
        stays_near_start=True,
    )


def _for_classes(recipe: Recipe, size: ProblemSize) -> Recipe:
    """A prior under which functions of many inputs are close to straight, and fewer updates for many classes."""
    recipe = replace(recipe, priors={**recipe.priors, "lengthscales": lengthscale_prior(size.num_inputs)})
    return scaled(recipe, effort=min(1.0, max(LEAST_SHARE, FEW_CLASSES / size.num_classes)))


def lengthscale_prior(num_inputs: int) -> LogNormal:
    """From the paper's prior for few inputs to that of Hvarfner et al. (2024) for many, half way at `MANY_INPUTS`.

    Distances grow with the root of the number of inputs, and with many of them so must lengthscales. With few, shorter
    ones predict better, and chains under them mix faster.
    """
    share = num_inputs**2 / (num_inputs**2 + MANY_INPUTS**2)
    log_median = math.sqrt(2.0) + 0.5 * math.log(num_inputs)
    return LogNormal(share * log_median, 1.0 + share * (math.sqrt(3.0) - 1.0))


def paper_recipe(size: ProblemSize) -> Recipe:
    """The authors' own settings (docs/method.md): 210,000 updates from a cold start, and a noise that is optimised."""
    plan = Plan(
        adam_steps=0,
        burn_in=210_000,
        step_size=0.01,
        integrator="euler",
        adaptation="paper",
        optimise_every=21,
        window=64,
        start_spread=0.0,
        chunk=21 * 32,
    )
    return Recipe(
        "paper",
        num_inducing=min(100, size.num_rows),
        plan=plan,
        treatment={"noise": "optimise"},
        shares_noise=True,
        priors={"noise_variance": Flat(Exp())},
    )


RECIPES: dict[str, Callable[[ProblemSize], Recipe]] = {"default": default_recipe, "paper": paper_recipe}


def named_recipe(name: str, size: ProblemSize) -> Recipe:
    """A recipe of `RECIPES` for a problem of this size."""
    return RECIPES[check_option("recipe", name, list(RECIPES))](size)


# -- fitting -----------------------------------------------------------------------------------------------------


def fit(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    recipe: Recipe | str = "default",
    depth: int = 1,
    kernel: KernelChoice = None,
    inducing_prior: AbstractInducingPrior | None = None,
    num_chains: int = 1,
    report: Report | None = None,
    checkpoints: Checkpoints | None = None,
    layout: Layout | None = None,
) -> Fit:
    """Fit standardised `X [N D]`, `y [N P]`, or a source and None, with a recipe or the name of one."""
    source, depth = as_source(X, y), check_count("depth", depth)
    if isinstance(recipe, str):
        recipe = named_recipe(recipe, ProblemSize.of(source, likelihood, depth))
    return fit_with_recipe(
        source, likelihood, key,
        recipe=recipe, depth=depth, kernel=kernel, inducing_prior=inducing_prior, num_chains=num_chains,
        report=report, checkpoints=checkpoints, layout=layout,
    )  # fmt: skip


def recipe_of(task: Task) -> Recipe:
    """The recipe that a user's options name, with the blocks optimised that the method optimises."""
    recipe = named_recipe(task.options.recipe, ProblemSize.of(task.source, task.likelihood, task.options.depth))
    treatment = {**recipe.treatment, **task.method.optimised}
    return replace(recipe, objective=OBJECTIVES[task.options.objective], treatment=treatment)


def with_options(recipe: Recipe, options: Options, num_rows: int) -> Recipe:
    """A recipe changed by the user's options."""
    recipe = scaled(recipe, min(options.num_inducing or recipe.num_inducing, num_rows), options.effort)
    plan = replace(recipe.plan, max_seconds=options.max_seconds, thinning=options.thinning or recipe.plan.thinning)
    return replace(recipe, plan=plan, likelihood_power=options.likelihood_power)


def fit_by_sghmc(task: Task, recipe: Recipe) -> Fit:
    """Fit a task with a recipe, changed by the user's options."""
    options = task.options
    recipe = with_options(recipe, options, task.num_rows)
    check_memory(_memory_of(task, recipe), "Lower `num_inducing`, `num_chains` or `depth`, or leave rows on disk.")
    return fit_with_recipe(
        task.source, task.likelihood, task.key,
        recipe=recipe,
        depth=options.depth,
        kernel=options.kernel,
        inducing_prior=options.prior_on_inducing_inputs,
        num_chains=task.num_chains,
        report=task.report,
        checkpoints=task.checkpoints,
        layout=None if options.mesh is None else Layout(mesh_shape(options.mesh)),
        target_key=task.target_key,
    )  # fmt: skip


def _memory_of(task: Task, recipe: Recipe) -> int:
    source, plan = task.source, recipe.plan
    return memory_of_chains(
        num_rows=source.num_rows,
        num_inputs=source.num_inputs,
        num_targets=task.likelihood.num_latent(source.num_targets),
        num_inducing=recipe.num_inducing,
        depth=task.options.depth,
        num_chains=task.num_chains,
        num_draws=plan.num_draws,
        batch_size=min(plan.batch_size, source.num_rows),
        updates_per_chunk=max(plan.chunk, plan.thinning),
        itemsize=jnp.result_type(float).itemsize,
        is_streamed=not isinstance(source, ArraySource),
        learns_axes=plan.adaptation == "fisher",
    )


def _fit(task: Task) -> Fit:
    return fit_by_sghmc(task, recipe_of(task))


BSGP = Method(
    name="bsgp",
    about="Fully Bayesian sparse or deep Gaussian process by stochastic-gradient HMC.",
    objectives=("fitc", "vfe", "tighter-vfe"),
    u="sample",
    Z="sample",
    theta="sample",
    noise="sample",
    fit=_fit,
    is_deep=True,
    has_chains=True,
    can_checkpoint=True,
    can_add_draws=True,
    can_stream=True,
    can_use_mesh=True,
    can_temper=True,
    can_choose_kernel=True,
    can_weight=True,
    can_know_noise=True,
)
Z_OPTIMISED = replace(
    BSGP,
    name="bsgp-z-optimised",
    about="bsgp with its inducing inputs optimised: the ablation {u, theta}.",
    Z="optimise",
)
U_SAMPLED = replace(
    BSGP,
    name="bsgp-u",
    about="bsgp with only its inducing variables sampled: the ablation {u}.",
    Z="optimise",
    theta="optimise",
    noise="optimise",
)
