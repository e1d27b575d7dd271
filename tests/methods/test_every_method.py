"""Every method fits, predicts, saves and loads through the same door, and says so where it cannot."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from problems import optimal_u, regression, shallow
from short_recipes import short_recipes

import bsgp
from bsgp.data.store.sources import as_source
from bsgp.inference.history import silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.sampling import sample
from bsgp.inference.target import Target
from bsgp.methods.bsgp import fit, named_recipe, recipe_of, with_options
from bsgp.methods.method import Task
from bsgp.methods.options import Options
from bsgp.methods.recipe import ProblemSize, scaled
from bsgp.methods.registry import METHODS, fit_method
from bsgp.methods.sghmc_dgp import sghmc_dgp_recipe
from bsgp.models.inducing_priors import InducingAround, InducingNormal, Strauss
from bsgp.models.kernels import Linear, Matern52, Sum
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import Gaussian, gaussian
from bsgp.models.parameters import BLOCKS, block_of

QUICK = {"effort": 0.02, "num_inducing": 8}
EFFORTS = {"dkl": 0.06, "mcmc-svgp": 0.1, "mcmc-gp": 0.1, "exact-gp": 0.2, "kiss-gp": 0.1, "svgp": 0.05}
EFFORTS |= {"fitc-svgp": 0.1, "ipvi-dgp": 0.2, "sghmc-dgp": 0.2}


def table(num_rows=60):
    X, y = regression(num_rows, 2, noise=0.2)
    return X, y[:, 0]


def quick(method, **options):
    return {**QUICK, "effort": EFFORTS.get(method, 0.02), **options, "method": method, "random_state": 0}


def sampled_blocks(model) -> set[str]:
    """Blocks that differ between the draws `[C S ...]` of a model."""
    leaves = jtu.tree_leaves_with_path(model)
    return {block_of(path) for path, leaf in leaves if np.ptp(np.asarray(leaf), axis=1).max() > 0} - {None}


@pytest.mark.parametrize("method", list(METHODS))
def test_regression_fits_predicts_saves_and_loads(method, tmp_path):
    X, y = table()
    with short_recipes(num_draws=32):
        model = bsgp.BSGPRegressor(**quick(method)).fit(X, y)
    mean, sd = model.predict(X, return_std=True)
    assert np.corrcoef(mean, y)[0, 1] > 0.85
    assert sampled_blocks(model.posterior_.model) == {b for b in BLOCKS if getattr(METHODS[method], b) == "sample"}
    assert (sd > 0).all()
    low, high = model.predict_quantiles(X, [0.05, 0.95]).T
    assert (low < high).all()
    assert np.isfinite(model.log_density(X, y)).all()
    assert model.sample_y(X[:5], 3).shape == (5, 3)
    model.save(tmp_path / "model")
    again = bsgp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), mean)
    assert again.diagnostics_.verdict == model.diagnostics_.verdict
    assert (model.diagnostics_.move is None) == METHODS[method].has_chains


@pytest.mark.parametrize("method", ["svgp", "fitc-svgp", "ipvi-dgp", "sghmc-dgp", "mcmc-svgp"])
def test_classification(method):
    X, y = table()
    model = bsgp.BSGPClassifier(**quick(method)).fit(X, np.where(y > 0, "up", "down"))
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    assert probability[y > 0, 1].mean() > probability[y <= 0, 1].mean()


@pytest.mark.parametrize("method", ["svgp", "sghmc-dgp"])
def test_two_layers_and_two_targets(method):
    X, y = table(40)
    model = bsgp.BSGPRegressor(**quick(method, depth=2)).fit(X, np.stack([y, -y], axis=1))
    assert model.predict(X).shape == (40, 2)
    assert model.posterior_.model.depth == 2


def test_bsgp_is_what_it_was():
    """`fit_method` adds nothing to the recipe: the same key, the same draws."""
    X, y = regression(40)
    size = ProblemSize.of(as_source(X, y), gaussian(1, X.dtype), 1)
    recipe = scaled(named_recipe("default", size), 6, 0.01)
    direct = fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe=recipe)
    by_name = fit_method(
        "bsgp", X, y, gaussian(1, X.dtype), jr.key(0), options=Options(num_inducing=6, effort=0.01, num_chains=1)
    )
    np.testing.assert_array_equal(direct.posterior.model.layers[0].V, by_name.posterior.model.layers[0].V)


@pytest.mark.parametrize("num_rows", [5_000, 5_001])
def test_classes_of_many_rows_have_a_recipe_of_their_own(num_rows, rng):
    X = rng.standard_normal((num_rows, 4))
    y = (X[:, :1] > 0).astype(float)
    fitted = fit_method("bsgp", X, y, Bernoulli(), jr.key(0), options=Options(num_inducing=6, effort=0.002, thinning=1))
    is_many = num_rows > 5_000
    assert fitted.run.plan.adaptation == ("fisher" if is_many else "steady")
    priors = fitted.run.target.priors.layers[0]
    assert isinstance(priors.Z, InducingAround if is_many else InducingNormal)
    if is_many:  # around the cluster centres that the chain began from, and the paper's priors are left for wider ones
        np.testing.assert_array_equal(priors.Z.centres, fitted.run.target.model.layers[0].Z)
        assert np.abs(priors.Z.centres).max() > 0.1
    assert (priors.kernel.lengthscales.scale == 3.0) == is_many
    estimator = bsgp.BSGPClassifier(num_inducing=6, effort=0.002, random_state=0, warm_start=True).fit(X, y[:, 0])
    assert isinstance(estimator._session.fitted.run.target.priors.layers[0].Z, type(priors.Z))
    chosen = Options(num_inducing=6, effort=0.002, thinning=1, inducing_prior=Strauss())
    fitted = fit_method("bsgp", X, y, Bernoulli(), jr.key(0), options=chosen)
    assert isinstance(fitted.run.target.priors.layers[0].Z, Strauss)


def chosen_recipe(method, X, y, options):
    source, likelihood = as_source(X, y), gaussian(1, X.dtype)
    task = Task(METHODS[method], source, likelihood, jr.key(0), options, silent, Clock(), None, None)
    return with_options(recipe_of(task), options, task.num_rows)


@pytest.mark.parametrize("objective", ["fitc", "vfe", "tighter-vfe"])
def test_options_reach_the_recipe(objective):
    X, y = regression(40)
    options = Options(objective=objective, num_inducing=50, effort=0.5, max_seconds=7.0)
    recipe = chosen_recipe("bsgp-z-optimised", X, y, options)
    assert (recipe.objective.name, recipe.treatment["Z"], recipe.num_inducing) == (objective, "optimise", 40)
    assert recipe.plan.max_seconds == 7.0
    full = chosen_recipe("bsgp", X, y, Options())
    assert recipe.plan.burn_in == full.plan.burn_in // 2


@pytest.mark.parametrize("method", ["bsgp", "sghmc-dgp"])
def test_a_power_of_the_likelihood_reaches_the_target(method):
    X, y = regression(40)
    options = Options(num_inducing=6, effort=0.02, likelihood_power=0.25)
    run = fit_method(method, X, y, gaussian(1, X.dtype), jr.key(0), options=options).run
    assert run is not None
    assert run.target.num_counted == 10


def test_sghmc_dgp_with_all_else_fixed_draws_from_the_closed_form():
    X, y = regression(60)
    model = shallow(np.linspace(-2.0, 2.0, 4)[:, None], lengthscale=0.6)
    recipe = sghmc_dgp_recipe(60)
    treatment = {**recipe.treatment, "Z": "fix", "theta": "fix", "noise": "fix"}
    target = Target(model, 60, objective=recipe.objective, treatment=treatment)
    plan = replace(recipe.plan, burn_in=4_000, num_draws=1_000, thinning=20)
    run = sample(target, X, y, jr.key(0), plan=plan, num_chains=2)
    layer = model.layers[0]
    Lz = np.linalg.cholesky(np.asarray(layer.kernel(layer.Z, layer.Z)) + 1e-10 * np.eye(4))
    u = np.einsum("ij,csjp->csip", Lz, np.asarray(run.model.layers[0].V)).reshape(-1, 4)
    mean, covariance = optimal_u(model, X, y, "fitc")
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((u.mean(axis=0) - np.asarray(mean)[:, 0]) / sd, 0.0, atol=0.15)
    np.testing.assert_allclose(np.cov(u.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.2)


@pytest.mark.parametrize(
    ("method", "likelihood", "options", "message"),
    [
        ("mcmc-svgp", Gaussian(jnp.ones(1)), {"depth": 2}, "has one layer, got `depth` 2. Pass 1, or use `bsgp`"),
        (
            "kiss-gp",
            Bernoulli(),
            {},
            "is for regression with Gaussian noise, got a Bernoulli likelihood. Use `bsgp` or `svgp`",
        ),
        ("svgp", Gaussian(jnp.ones(1)), {"num_chains": 2}, "has no chains, got 2. Pass 1, or use `bsgp`"),
        ("svgp", Gaussian(jnp.ones(1)), {"likelihood_power": 0.5}, "got `likelihood_power` 0.5. Leave it out"),
        (
            "kiss-gp",
            Gaussian(jnp.ones(1)),
            {"kernel": "linear + rbf"},
            "has an RBF kernel, got `linear . rbf` as `kernel`",
        ),
        ("dkl", Gaussian(jnp.ones(1)), {"kernel": "matern52"}, "Leave it out, or use `bsgp`, .*`exact-gp`"),
        ("magic", Gaussian(jnp.ones(1)), {}, "`method` must be one of 'bsgp'"),
    ],
)
def test_what_a_method_cannot_do_is_said(method, likelihood, options, message):
    X, y = regression(20)
    with pytest.raises(ValueError, match=message):
        fit_method(method, X, y, likelihood, jr.key(0), options=Options(**options))


class ReachedError(Exception):
    """Raised with the kernel that a method's model is about to be made with."""


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.can_choose_kernel])
def test_a_method_that_takes_a_kernel_passes_it_to_its_model(method, monkeypatch):
    def reached(choice, *ignored, **also_ignored):
        raise ReachedError(choice)

    monkeypatch.setattr("bsgp.models.deep_gp.layer_kernels", reached)
    monkeypatch.setattr("bsgp.inference.exact_target.layer_kernels", reached)
    X, y = regression(20)
    with pytest.raises(ReachedError, match=r"^linear \+ matern52$"):
        fit_method(method, X, y, gaussian(1, X.dtype), jr.key(0), options=Options(kernel="linear + matern52"))


def test_draws_have_the_kernel_and_its_parameters_vary():
    X, y = regression(20)
    options = Options(kernel="linear + matern52", num_inducing=4)
    with short_recipes(num_draws=4, burn_in=4, lbfgs_steps=1, thinning=1, chunk=4):
        model = fit_method("bsgp", X, y, gaussian(1, X.dtype), jr.key(0), options=options).posterior.model
    kernel = model.input_kernel
    assert (type(kernel), type(kernel.left), type(kernel.right)) == (Sum, Linear, Matern52)
    assert all(np.ptp(np.asarray(leaf), axis=1).min() > 0 for leaf in jax.tree.leaves(kernel))


def test_adding_draws_is_for_samplers_only():
    X, y = table(30)
    with pytest.raises(ValueError, match="`warm_start` adds draws to chains, got the method `svgp`"):
        bsgp.BSGPRegressor(method="svgp", warm_start=True).fit(X, y)
