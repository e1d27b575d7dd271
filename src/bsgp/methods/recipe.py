"""A recipe: how a standardised table becomes a posterior by SGHMC, for methods that sample with it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bsgp.data.store.sources import AbstractSource, ArraySource, Rows
from bsgp.inference.anchor import Anchor
from bsgp.inference.batches import starting_rows
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import Report
from bsgp.inference.objectives import FITC, AbstractObjective
from bsgp.inference.sampling import join, sample
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.target import Target
from bsgp.methods.fit import Fit
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.inducing_priors import AbstractInducingPrior, InducingAround
from bsgp.models.kernel_choice import KernelChoice
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.parameters import default_priors, flat_priors, is_prior
from bsgp.models.priors import AbstractPrior
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.mesh import Layout


class ProblemSize(NamedTuple):
    """Everything that a recipe may depend on: nothing is looked up by name."""

    num_rows: int
    num_inputs: int
    num_targets: int
    depth: int
    is_gaussian: bool
    """Whether the likelihood has Gaussian noise."""
    is_streamed: bool = False
    """Whether rows stay on disk, so that only minibatches are seen."""
    num_classes: int = 0
    """Number of classes, if y is the label of one."""

    @classmethod
    def of(cls, source: AbstractSource, likelihood: AbstractLikelihood, depth: int) -> "ProblemSize":
        is_gaussian = isinstance(likelihood, Gaussian)
        is_streamed = not isinstance(source, ArraySource)
        size = (source.num_rows, source.num_inputs, source.num_targets, depth, is_gaussian, is_streamed)
        return cls(*size, num_classes=_num_classes(likelihood))


def _num_classes(likelihood: AbstractLikelihood) -> int:
    if isinstance(likelihood, Categorical):
        return likelihood.num_classes
    return 2 if isinstance(likelihood, Bernoulli) else 0


@dataclass(frozen=True)
class Recipe:
    """Size of the model, what is sampled, and for how long."""

    name: str
    num_inducing: int
    plan: Plan
    treatment: Mapping[str, str] = field(default_factory=dict)
    objective: AbstractObjective = FITC()
    likelihood_power: float = 1.0
    """Power of the likelihood; below 1 the data count for fewer rows than there are."""
    num_anchor: int | None = None
    """Rows that anchor the coordinates of u under Gaussian noise (`inference.anchor`); None for plain V."""
    start_noise: float | None = None
    """Noise variance from which a Gaussian likelihood starts; None keeps the likelihood's own."""
    shares_noise: bool = False
    """Whether all targets share one noise variance."""
    priors: Mapping[str, AbstractPrior] = field(default_factory=dict)
    """Priors by parameter name, instead of those of `models.parameters.DEFAULT_PRIORS`."""
    stays_near_start: bool = False
    """Whether the default prior on Z is centred on the cluster centres it starts from, instead of the origin."""
    has_priors: bool = True
    """Whether Z, theta and the noise have priors; V always has one."""
    start_variance: float = 0.1
    """Kernel variance of every layer at the start."""


def scaled(recipe: Recipe, num_inducing: int | None = None, effort: float = 1.0) -> Recipe:
    """A recipe with another number of inducing points, and `effort` times as many updates for as many draws."""
    plan = replace(
        recipe.plan,
        adam_steps=round(effort * recipe.plan.adam_steps),
        lbfgs_steps=math.ceil(effort * recipe.plan.lbfgs_steps),
        burn_in=round(effort * recipe.plan.burn_in),
        thinning=max(1, round(effort * recipe.plan.thinning)),
    )
    return replace(recipe, plan=plan, num_inducing=num_inducing or recipe.num_inducing)


def fit_with_recipe(
    source: AbstractSource,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    recipe: Recipe,
    depth: int = 1,
    kernel: KernelChoice = None,
    inducing_prior: AbstractInducingPrior | None = None,
    num_chains: int = 1,
    report: Report | None = None,
    checkpoints: Checkpoints | None = None,
    layout: Layout | None = None,
    target_key: Array | None = None,
) -> Fit:
    """Sample the posterior of a standardised table as a recipe says.

    Chains that run in different processes have a `key` each and share a `target_key`: it decides their start, and with
    it their target, since the prior on Z may be centred on the start.
    """
    if isinstance(likelihood, Gaussian):
        likelihood = _start_noise(likelihood, recipe)
    model_key, anchor_key, sample_key = jr.split(key, 3)
    if target_key is not None:
        model_key, anchor_key = jr.split(target_key)
    first = starting_rows(source, model_key)
    model = init_deep_gp(
        first.X, likelihood, model_key,
        num_targets=source.num_targets,
        num_inducing=recipe.num_inducing,
        depth=depth,
        kernel=kernel,
        start_variance=recipe.start_variance,
        weight=first.weight,
    )  # fmt: skip
    target = Target(
        model,
        source.num_rows,
        anchor=_anchor(first, likelihood, recipe, anchor_key),
        priors=_priors(model, recipe, inducing_prior),
        objective=recipe.objective,
        treatment=recipe.treatment,
        power=recipe.likelihood_power,
        total_weight=source.total_weight,
    )
    run = sample(
        target, source, None, sample_key,
        plan=recipe.plan, num_chains=num_chains, report=report, checkpoints=checkpoints, layout=layout,
    )  # fmt: skip
    return Fit(Posterior.from_run(run), run.history, run)


def add_draws(fitted: Fit, X, y, key: Array, *, report: Report | None = None) -> Fit:
    """Continue the chains of a fit and append as many draws again. `X`, `y` must be those of the fit."""
    before = fitted.run
    if before is None:
        raise ValueError("`fitted` must come from a sampler, got a fit without chains. Fit again, with more steps.")
    after = sample(
        before.target, X, y, key,
        plan=before.plan, num_chains=fitted.posterior.num_chains, chains=before.chains, report=report,
    )  # fmt: skip
    run = join(before, after)
    return Fit(Posterior.from_run(run), run.history, run)


def _start_noise(likelihood: Gaussian, recipe: Recipe) -> Gaussian:
    noise = likelihood.noise_variance
    if recipe.start_noise is not None:
        noise = jnp.full_like(noise, recipe.start_noise)
    return Gaussian(noise[:1], shared_by=noise.shape[0]) if recipe.shares_noise else Gaussian(noise)


def _anchor(first: Rows, likelihood: AbstractLikelihood, recipe: Recipe, key: Array) -> Anchor | None:
    if recipe.num_anchor is None or not isinstance(likelihood, Gaussian):
        return None
    rows = first
    if recipe.num_anchor < len(first.X):
        rows = first.take(np.asarray(jr.choice(key, len(first.X), (recipe.num_anchor,), replace=False)))
    return Anchor(*jax.tree.map(jnp.asarray, rows))


def _priors(model: DeepGP, recipe: Recipe, inducing_prior: AbstractInducingPrior | None) -> DeepGP:
    if not recipe.has_priors:
        return flat_priors(model)
    priors = default_priors(model, inducing_prior, **recipe.priors)
    if recipe.stays_near_start and inducing_prior is None:
        around = [InducingAround(layer.Z) for layer in model.layers]
        priors = eqx.tree_at(lambda tree: [layer.Z for layer in tree.layers], priors, around, is_leaf=is_prior)
    return priors
