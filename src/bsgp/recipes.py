"""Ready-made settings: from standardised data to a posterior in one call, nothing looked up by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bsgp.anchor import Anchor
from bsgp.bijectors import Exp
from bsgp.checkpoints import Checkpoints
from bsgp.checks import check_count, check_option
from bsgp.data.sources import AbstractSource, Rows, as_source
from bsgp.feed import rows_to_begin_from
from bsgp.fitted import Fit
from bsgp.history import Report
from bsgp.inducing import AbstractInducingPrior, InducingAround
from bsgp.infer import join, sample
from bsgp.kernels import RBF, stationary
from bsgp.likelihoods import AbstractLikelihood, Gaussian
from bsgp.mesh import Layout
from bsgp.model import DeepGP, init_deep_gp
from bsgp.plan import Plan
from bsgp.posterior import Posterior
from bsgp.priors import AbstractPrior, Flat, LogNormal
from bsgp.target import Target, default_priors, flat_priors, is_prior

PLAIN_PLAN = Plan(warm_start=4_000, burn_in=8_192, thinning=32)
"""Where u cannot be anchored: 20,384 gradient evaluations, and with many rows the longer warm start of its recipe."""
LATENT_VARIANCE_PRIOR = LogNormal.with_median(1.0, scale=2.0)
"""Where y has no units to be standardised in: a latent function that tells classes well apart may be of any size."""
MANY_ROWS = 5_000


@dataclass(frozen=True)
class Recipe:
    """How a table becomes a posterior: size of the model, what is sampled, and for how long."""

    name: str
    num_inducing: int
    plan: Plan
    treatment: Mapping[str, str] = field(default_factory=dict)
    objective: str = "fitc"
    likelihood_power: float = 1.0
    """Below 1 the data count for fewer rows than they are (`target.Target`)."""
    num_anchor: int | None = None
    """Rows that anchor the coordinates of u where the likelihood is Gaussian (`bsgp.anchor`); None for plain V."""
    start_noise: float | None = None
    """Noise variance that a Gaussian likelihood begins from; None keeps the likelihood's own."""
    shares_noise: bool = False
    """Whether all targets have one noise variance between them."""
    priors: Mapping[str, AbstractPrior] = field(default_factory=dict)
    """In the place of `target.DEFAULT_PRIORS`, by the parameter's name."""
    stays_near_start: bool = False
    """Whether the default prior on Z is around the cluster centres that it begins from, in the place of the origin."""
    has_priors: bool = True
    """Whether Z, theta and the noise have priors at all; V always has."""
    start_variance: float = 0.1
    """Of the kernel of every layer."""


def default_recipe(num_rows: int, num_inputs: int, num_targets: int, depth: int) -> Recipe:
    """One for all data sets and depths; docs/recipe.md says how it was found.

    Up to 1,000 rows all anchor u, which a single layer then integrates out, and chains are short. More rows make the
    posterior narrower and farther from the start, the warm start longer, and more inducing points worth their while;
    hidden layers then take twice as long to find their shape. Between 1,000 and 5,000 rows lies the middle of the two.
    """
    del num_inputs, num_targets
    if num_rows <= 1_000:
        plan = Plan(warm_start=2_500, burn_in=2_560, thinning=12, batch_size=500)
        return Recipe("default", num_inducing=min(100, num_rows), plan=plan, num_anchor=num_rows, start_noise=0.01)
    if num_rows <= MANY_ROWS:
        plan = Plan(warm_start=5_000, burn_in=3_200, thinning=20, batch_size=1_000)
        return Recipe("default", num_inducing=100, plan=plan, num_anchor=500, start_noise=0.01)
    if depth > 1:
        plan = Plan(warm_start=16_000, burn_in=7_680, thinning=64, batch_size=1_000)
        return Recipe("default", num_inducing=100, plan=plan, num_anchor=500, start_noise=0.01)
    plan = Plan(warm_start=8_000, burn_in=3_840, thinning=32, batch_size=1_000)
    return Recipe("default", num_inducing=128, plan=plan, num_anchor=500, start_noise=0.01)


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
        shares_noise=True,
        priors={"noise_variance": Flat(Exp())},
    )


def sghmc_dgp_recipe(num_rows: int, num_inputs: int, num_targets: int, depth: int) -> Recipe:
    """sghmc-dgp (METHOD section 5): one update of V, then one of Adam on the rest at one of the last hundred V.

    The authors keep 100 draws 50 apart. Where the noise is next to nothing a hundred spikes leave gaps between them
    that a test row can fall into; as many updates give 250 draws. As in their release all targets share one noise:
    without priors a noise of its own for each collapses more easily.
    """
    del num_inputs, num_targets, depth
    plan = Plan(warm_start=0, burn_in=10_000, num_draws=250, thinning=20, window=100, optimise_rate=0.01)
    return Recipe(
        "default",
        num_inducing=min(100, num_rows),
        plan=plan,
        treatment={"Z": "optimise", "theta": "optimise", "noise": "optimise"},
        start_noise=0.1,
        shares_noise=True,
        has_priors=False,
        start_variance=0.01,
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


def named_recipe(name: str, source: AbstractSource, likelihood: AbstractLikelihood, depth: int) -> Recipe:
    size = source.num_rows, source.num_inputs, source.num_targets
    recipe = RECIPES[check_option("recipe", name, list(RECIPES))](*size, depth)
    if recipe.num_anchor is not None and not isinstance(likelihood, Gaussian):
        # longer chains in the place of better ones
        plan = replace(PLAIN_PLAN, warm_start=max(PLAIN_PLAN.warm_start, recipe.plan.warm_start))
        plain = replace(recipe, plan=plan, num_anchor=None, priors={"variance": LATENT_VARIANCE_PRIOR})
        return plain if source.num_rows <= MANY_ROWS else _with_many_rows(plain, source.num_inputs)
    return recipe


def _with_many_rows(plain: Recipe, num_inputs: int) -> Recipe:
    """Minibatches small enough to learn from their noise, and kernel parameters that the data may put anywhere."""
    return replace(
        plain,
        plan=replace(plain.plan, adaptation="fisher"),
        priors={
            "variance": LogNormal.with_median(1.0, scale=5.0),
            "lengthscales": LogNormal.with_median(num_inputs**0.5, scale=3.0),
        },
        stays_near_start=True,
    )


def fit(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    recipe: Recipe | str = "default",
    depth: int = 1,
    inducing_prior: AbstractInducingPrior | None = None,
    num_chains: int = 1,
    report: Report | None = None,
    checkpoints: Checkpoints | None = None,
    layout: Layout | None = None,
    target_key: Array | None = None,
) -> Fit:
    """Fit standardised `X [N D]`, `y [N P]`, or a source and None.

    Where chains are run one by one, each with a `key` of its own, a `target_key` that they share gives them one start,
    and with it one target: the prior on Z may be around it.
    """
    source = as_source(X, y)
    depth = check_count("depth", depth)
    if isinstance(recipe, str):
        recipe = named_recipe(recipe, source, likelihood, depth)
    if isinstance(likelihood, Gaussian):
        likelihood = _start_noise(likelihood, recipe)
    model_key, anchor_key, sample_key = jr.split(key, 3)
    if target_key is not None:
        model_key, anchor_key = jr.split(target_key)
    first = rows_to_begin_from(source, model_key)
    model = init_deep_gp(
        first.X, likelihood, model_key,
        num_targets=source.num_targets,
        num_inducing=recipe.num_inducing,
        depth=depth,
        kernel=partial(stationary, RBF, variance=recipe.start_variance),
    )  # fmt: skip
    target = Target(
        model,
        source.num_rows,
        anchor=_anchor(first, likelihood, recipe, anchor_key),
        priors=_priors(model, recipe, inducing_prior),
        objective=recipe.objective,
        treatment=recipe.treatment,
        power=recipe.likelihood_power,
    )
    run = sample(
        target, source, None, sample_key,
        plan=recipe.plan, num_chains=num_chains, report=report, checkpoints=checkpoints, layout=layout,
    )  # fmt: skip
    return Fit(Posterior.from_run(run), run.history, run)


def extend(fitted: Fit, X, y, key: Array, *, report: Report | None = None) -> Fit:
    """As many draws again from where the chains stand, behind those that there are. `X`, `y` as they were."""
    before = fitted.run
    if before is None:
        raise ValueError("`fitted` must come from a sampler, got a fit without chains. Fit anew, with more steps.")
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
    rows = slice(None)
    if recipe.num_anchor < len(first.X):
        rows = np.asarray(jr.choice(key, len(first.X), (recipe.num_anchor,), replace=False))
    return Anchor(jnp.asarray(first.X[rows]), jnp.asarray(first.y[rows]))


def _priors(model: DeepGP, recipe: Recipe, inducing_prior: AbstractInducingPrior | None) -> DeepGP:
    if not recipe.has_priors:
        return flat_priors(model)
    priors = default_priors(model, inducing_prior, **recipe.priors)
    if recipe.stays_near_start and inducing_prior is None:
        around = [InducingAround(layer.Z) for layer in model.layers]
        priors = eqx.tree_at(lambda tree: [layer.Z for layer in tree.layers], priors, around, is_leaf=is_prior)
    return priors
