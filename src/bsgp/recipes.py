"""Ready-made settings: from standardised data to a posterior in one call, nothing looked up by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bsgp.bijectors import Exp
from bsgp.checks import check_count, check_option
from bsgp.inducing import AbstractInducingPrior
from bsgp.infer import Report, Run, sample
from bsgp.likelihoods import AbstractLikelihood
from bsgp.model import DeepGP, init_deep_gp
from bsgp.plan import Plan
from bsgp.posterior import Posterior
from bsgp.priors import AbstractPrior, Flat
from bsgp.target import Target, default_priors, is_prior


@dataclass(frozen=True)
class Recipe:
    """How a table becomes a posterior: size of the model, what is sampled, and for how long."""

    name: str
    num_inducing: int
    plan: Plan
    treatment: Mapping[str, str] = field(default_factory=dict)
    objective: str = "fitc"
    noise_prior: AbstractPrior | None = None
    """None keeps the default of `target.DEFAULT_PRIORS`."""


def default_recipe(num_rows: int, num_inputs: int, num_targets: int, depth: int) -> Recipe:
    """One for all data sets and depths, about 21,000 gradient evaluations; docs/recipe.md says how it was found.

    With many rows the posterior is narrow and far from the start: most updates before the draws go to the warm start.
    With few rows the mode lies outside of where the posterior's mass is, and burn-in has to come back from it.
    """
    del num_inputs, num_targets, depth
    warm_start = min(8_000, max(1_000, num_rows))
    plan = Plan(warm_start=warm_start, burn_in=12_800 - warm_start)
    return Recipe("default", num_inducing=min(100, num_rows), plan=plan)


def paper_recipe(num_rows: int, num_inputs: int, num_targets: int, depth: int) -> Recipe:
    """What the authors did (METHOD section 3): 210,000 updates from a cold start, and a noise that is optimised."""
    del num_inputs, num_targets, depth
    plan = Plan(
        warm_start=0,
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
        num_inducing=min(100, num_rows),
        plan=plan,
        treatment={"noise": "optimise"},
        noise_prior=Flat(Exp()),
    )


def scaled(recipe: Recipe, num_inducing: int | None = None, scale: float = 1.0) -> Recipe:
    """The same with another number of inducing points, or with all phases longer; draws stay as many."""
    plan = replace(
        recipe.plan,
        warm_start=round(scale * recipe.plan.warm_start),
        burn_in=round(scale * recipe.plan.burn_in),
        thinning=max(1, round(scale * recipe.plan.thinning)),
    )
    return replace(recipe, plan=plan, num_inducing=num_inducing or recipe.num_inducing)


RECIPES: dict[str, Callable[[int, int, int, int], Recipe]] = {"default": default_recipe, "paper": paper_recipe}


def named_recipe(name: str, X: np.ndarray, y: np.ndarray, depth: int) -> Recipe:
    return RECIPES[check_option("recipe", name, list(RECIPES))](X.shape[0], X.shape[1], y.shape[1], depth)


class Fit(NamedTuple):
    """A posterior, and the run that it came from."""

    posterior: Posterior
    run: Run


def fit(
    X: np.ndarray,
    y: np.ndarray,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    recipe: Recipe | str = "default",
    depth: int = 1,
    inducing_prior: AbstractInducingPrior | None = None,
    num_chains: int = 1,
    report: Report | None = None,
) -> Fit:
    """Fit standardised `X [N D]`, `y [N P]`."""
    depth = check_count("depth", depth)
    if isinstance(recipe, str):
        recipe = named_recipe(recipe, X, y, depth)
    model_key, sample_key = jr.split(key)
    model = init_deep_gp(
        X, likelihood, model_key, num_targets=y.shape[1], num_inducing=recipe.num_inducing, depth=depth
    )
    target = Target(
        model,
        X.shape[0],
        priors=_priors(model, recipe, inducing_prior),
        objective=recipe.objective,
        treatment=recipe.treatment,
    )
    run = sample(target, X, y, sample_key, plan=recipe.plan, num_chains=num_chains, report=report)
    return Fit(Posterior.from_run(run), run)


def _priors(model: DeepGP, recipe: Recipe, inducing_prior: AbstractInducingPrior | None) -> DeepGP:
    priors = default_priors(model, inducing_prior)
    if recipe.noise_prior is None or not hasattr(model.likelihood, "noise_variance"):
        return priors
    return eqx.tree_at(lambda tree: tree.likelihood.noise_variance, priors, recipe.noise_prior, is_leaf=is_prior)
