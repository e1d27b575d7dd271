"""Recipes of bsgp."""

import jax.random as jr
import numpy as np
import pytest

from bsgp import Plan, Recipe, fit
from bsgp.data.store.sources import ArraySource
from bsgp.methods.bsgp import RECIPES, default_recipe, lengthscale_prior, paper_recipe
from bsgp.methods.recipe import ProblemSize, scaled
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import gaussian

SMALL = ProblemSize(num_rows=60, num_inputs=2, num_targets=1, depth=1, is_gaussian=True)


def sine(rng, num_rows=60):
    X = rng.standard_normal((num_rows, 2))
    return X, np.sin(2 * X[:, :1]) + 0.1 * rng.standard_normal((num_rows, 1))


def brief(recipe: Recipe) -> Recipe:
    """A recipe cut down to what a test can afford."""
    return scaled(recipe, num_inducing=8, effort=0.01)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("depth", [1, 2])
def test_every_recipe_fits_and_predicts(name, depth, rng):
    X, y = sine(rng)
    recipe = RECIPES[name](ProblemSize(len(X), 2, 1, depth, True))
    posterior, _, run = fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe=brief(recipe), depth=depth)
    assert np.isfinite(posterior.log_density(X, y, jr.key(1))).all()
    assert run.history.evaluations > 0


@pytest.mark.parametrize(("depth", "budget"), [(1, 21_000), (2, 42_000), (5, 42_000)])
def test_the_default_recipe_stays_within_a_tenth_of_the_authors_cost_and_deep_within_a_fifth(depth, budget):
    for num_rows in (50, 1_000, 1_001, 10**7):
        recipe = default_recipe(ProblemSize(num_rows, 8, 1, depth, True))
        assert recipe.plan.evaluations <= budget
        assert recipe.num_inducing <= num_rows


def test_the_paper_recipe_counts_as_the_authors_did():
    plan = paper_recipe(SMALL).plan
    assert (plan.burn_in, plan.num_draws, plan.thinning, plan.step_size) == (210_000, 256, 32, 0.01)
    assert plan.burn_in // plan.optimise_every == 10_000


def test_the_paper_recipe_optimises_the_noise_and_keeps_it_for_the_draws(rng):
    X, y = sine(rng)
    recipe = brief(paper_recipe(SMALL))
    posterior, _, run = fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe=recipe)
    noise = np.asarray(posterior.model.likelihood.noise_variance)
    assert np.ptp(noise) == 0
    assert noise.ravel()[0] < 0.9  # it began at 1
    assert run.history.evaluations > recipe.plan.evaluations  # Adam's count, too


def test_the_paper_recipe_has_one_noise_for_all_targets(rng):
    X, y = sine(rng)
    y = np.concatenate([y, -2 * y], axis=1)
    posterior, *_ = fit(X, y, gaussian(2, X.dtype), jr.key(0), recipe=brief(paper_recipe(SMALL)))
    assert posterior.model.likelihood.noise_variance.shape[-1] == 1
    assert posterior.predict(X, jr.key(1)).variance.shape == y.shape
    assert np.isfinite(posterior.quantiles(X, [0.1], jr.key(2))).all()


def test_a_likelihood_without_a_conditional_is_fitted_without_an_anchor(rng):
    X, y = sine(rng)
    classes = SMALL._replace(is_gaussian=False)
    posterior, *_ = fit(X, (y > 0).astype(float), Bernoulli(), jr.key(0), recipe=brief(default_recipe(classes)))
    probability = posterior.predict(X, jr.key(1)).mean
    assert ((probability > 0) & (probability < 1)).all()


CLASSES = SMALL._replace(is_gaussian=False, num_classes=2)


def test_lengthscales_of_classes_are_the_papers_with_few_inputs_and_grow_with_the_root_of_many():
    priors = [lengthscale_prior(num_inputs) for num_inputs in (1, 8, 30, 100, 400)]
    medians, spreads = [np.exp(one.loc) for one in priors], [one.scale for one in priors]
    assert medians[0] == pytest.approx(1.0, rel=0.02)
    assert spreads[0] == pytest.approx(1.0, rel=0.01)
    assert np.all(np.diff(medians) > 0)
    assert np.all(np.diff(spreads) > 0)
    assert medians[4] / medians[3] == pytest.approx(2.0, rel=0.1)
    assert spreads[4] == pytest.approx(3**0.5, rel=0.01)
    assert default_recipe(CLASSES._replace(num_inputs=30)).priors["lengthscales"] == priors[2]
    for other in (SMALL, CLASSES._replace(num_classes=0), CLASSES._replace(depth=2)):
        assert "lengthscales" not in default_recipe(other).priors
    assert "lengthscales" not in paper_recipe(CLASSES).priors


def test_more_than_four_classes_take_fewer_updates_down_to_a_limit():
    evaluations = [default_recipe(CLASSES._replace(num_classes=k)).plan.evaluations for k in (2, 4, 6, 10, 1_000)]
    assert evaluations[0] == evaluations[1] > evaluations[2] > evaluations[3] == evaluations[4]
    assert evaluations[4] == pytest.approx(0.4 * evaluations[0], rel=0.05)
    assert default_recipe(CLASSES._replace(num_classes=1_000)).plan.num_draws == 128


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_size_knows_the_number_of_classes(num_classes, rng):
    source = ArraySource(*sine(rng))
    likelihood = Bernoulli() if num_classes == 2 else Categorical(num_classes)
    assert ProblemSize.of(source, likelihood, 1).num_classes == num_classes
    assert ProblemSize.of(source, Poisson(), 1).num_classes == 0


def test_fit_refuses_what_does_not_fit(rng):
    X, y = sine(rng)
    with pytest.raises(ValueError, match="two-dimensional"):
        fit(X, y.ravel(), gaussian(1, X.dtype), jr.key(0))
    with pytest.raises(ValueError, match="rows"):
        fit(X, y[:-1], gaussian(1, X.dtype), jr.key(0))
    with pytest.raises(ValueError, match="recipe"):
        fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe="grandmother's")


def test_scaling_keeps_draws():
    recipe = scaled(default_recipe(SMALL), num_inducing=10, effort=2.0)
    assert recipe.plan.num_draws == Plan().num_draws
    assert recipe.plan.thinning == 2 * default_recipe(SMALL).plan.thinning
    assert recipe.num_inducing == 10
