"""`noise=`: every kind through the estimator, in the units of the targets."""

import logging

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from short_recipes import short_recipes
from unsampled_models import prior_draws

from bsgp import BSGPClassifier, BSGPRegressor, load
from bsgp.data.tables.columns import from_array
from bsgp.estimators.scoring import evaluate
from bsgp.models.likelihoods.noises import NOISES
from bsgp.models.likelihoods.student_t import StudentT

QUICK = {"num_inducing": 6, "random_state": 0}
WITH_UNITS = [name for name, noise in NOISES.items() if noise.has_units]
DISCRETE = [name for name in NOISES if name not in WITH_UNITS]


def table(noise: str, num_rows: int = 40):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((num_rows, 2))
    f = np.sin(2.0 * X[:, 0])
    if noise == "ordinal":
        return X, 1.0 + np.digitize(f + 0.3 * rng.standard_normal(num_rows), [-0.7, 0.0, 0.7])
    if noise in DISCRETE:
        return X, rng.poisson(np.exp(1.0 + f)).astype(float)
    return X, 500.0 + 40.0 * (f + 0.2 * rng.standard_normal(num_rows))


@pytest.fixture(scope="module")
def models():
    with prior_draws(16):
        return {noise: BSGPRegressor(noise=noise, **QUICK).fit(*table(noise)) for noise in NOISES}


@pytest.mark.parametrize("noise", WITH_UNITS)
def test_density_quantiles_and_moments_belong_together_in_the_units_of_y(noise, models):
    model, (X, _) = models[noise], table(noise)
    mean, sd = model.predict(X[:1], return_std=True)
    grid = mean[0] + sd[0] * np.linspace(-60.0, 60.0, 12_001)  # Student-t has far tails
    rows = np.repeat(X[:1], len(grid), axis=0)
    density, spacing = np.exp(model.log_density(rows, grid)), grid[1] - grid[0]
    assert_allclose(np.sum(density) * spacing, 1.0, rtol=1e-3)
    assert_allclose(np.sum(density * grid) * spacing, mean[0], rtol=1e-3)
    levels = (0.05, 0.5, 0.95)
    quantiles = model.predict_quantiles(X, levels)
    for level, quantile in zip(levels, quantiles.T, strict=True):
        assert_allclose(model.cdf(X, quantile), level, atol=1e-6)
    assert 300 < np.median(quantiles) < 700


@pytest.mark.parametrize("noise", DISCRETE)
def test_quantiles_of_counts_and_levels_are_such_numbers(noise, models):
    model, (X, y) = models[noise], table(noise)
    quantiles = model.predict_quantiles(X, (0.05, 0.5, 0.95))
    possible = np.unique(y) if noise == "ordinal" else np.arange(quantiles.max() + 1)
    assert np.isin(quantiles, possible).all()
    slack = 1e-9 if noise == "ordinal" else 0.03  # those of counts come from samples
    for level, quantile in zip((0.05, 0.5, 0.95), quantiles.T, strict=True):
        at = model.cdf(X, quantile)
        assert (at >= level - slack).all()
        assert (at - np.exp(model.log_density(X, quantile)) <= level + slack).all()


@pytest.mark.parametrize("noise", NOISES)
def test_draws_and_crps_are_those_of_the_predictive_distribution(noise, models):
    model, (X, y) = models[noise], table(noise)
    drawn = model.sample_y(X[:3], 4_000)
    mean, sd = model.predict(X[:3], return_std=True)
    assert_allclose(drawn.mean(axis=1), mean, atol=6 * sd.max() / 4_000**0.5)
    pairs = np.abs(drawn[:, :2_000] - drawn[:, 2_000:]).mean(axis=1)
    crps = np.abs(drawn - y[:3, None]).mean(axis=1) - 0.5 * pairs
    assert_allclose(model.crps(X[:3], y[:3]), crps, atol=0.15 * sd.max())


@pytest.mark.parametrize("noise", NOISES)
def test_a_saved_model_predicts_the_same(noise, models, tmp_path):
    model, (X, y) = models[noise], table(noise)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.noise == noise
    assert_array_equal(again.predict(X), model.predict(X))
    assert_array_equal(again.log_density(X, y), model.log_density(X, y))
    assert_array_equal(again.target_sd, model.target_sd)


def test_coverage_of_counts_is_that_of_their_closed_intervals(models):
    model, (X, y) = models["poisson"], table("poisson")
    low, high = model.predict_quantiles(X, (0.05, 0.95)).T
    inside = np.mean((low <= y) & (y <= high))
    assert_allclose(evaluate(model, from_array(X), y).scores["coverage90"], inside, atol=0.06)


@pytest.mark.parametrize("noise", ["mixture", pytest.param("negative-binomial", marks=pytest.mark.slow)])
def test_sampled_fits_find_a_simple_truth(noise):
    """Hardly any updates, but with real chains: the mean follows the sine."""
    X, y = table(noise)
    with short_recipes(num_draws=8, adam_steps=300, burn_in=96, thinning=4, chunk=32):
        model = BSGPRegressor(noise=noise, **QUICK).fit(X, y)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.6


def test_the_mean_count_is_proportional_to_the_exposure(caplog):
    X, y = table("poisson")
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(hours=np.linspace(0.5, 8.0, len(X)))
    with prior_draws(8):
        model = BSGPRegressor(noise="poisson", exposure="hours", **QUICK).fit(frame, y)
    assert model.schema_.names == ("a", "b")
    rate = model.predict(frame.assign(hours=1.0))
    assert_allclose(model.predict(frame), rate * frame["hours"])
    with caplog.at_level(logging.WARNING):
        assert_allclose(model.predict(frame[["a", "b"]]), rate)
    assert "exposure of 1" in caplog.text
    assert_allclose(model.sample_y(frame, 4_000).mean(axis=1), model.predict(frame), rtol=0.5)
    with prior_draws(8):
        positional = BSGPRegressor(noise="poisson", exposure=2, **QUICK).fit(frame.to_numpy(), y)
    assert_allclose(positional.predict(frame.to_numpy()), model.predict(frame))


def test_a_position_of_the_exposure_means_the_column_of_the_training_table(tmp_path):
    X, y = table("poisson")
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(hours=np.linspace(0.5, 8.0, len(X)))
    with prior_draws(8):
        model = BSGPRegressor(noise="poisson", exposure=2, **QUICK).fit(frame, y)
    expected = model.predict(frame)
    model.save(tmp_path / "model")
    other_order = frame[["hours", "b", "a"]]
    assert_allclose(model.predict(other_order), expected)
    assert_allclose(load(tmp_path / "model").predict(other_order), expected)


def test_a_likelihood_of_ones_own_takes_the_place_of_a_noise(tmp_path):
    X, y = table("student")
    import jax.numpy as jnp

    with prior_draws(8):
        model = BSGPRegressor(likelihood=StudentT(jnp.ones(1), 3.0), **QUICK).fit(X, y)
    assert isinstance(model.posterior_.model.likelihood, StudentT)
    model.save(tmp_path / "model")
    assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))


def test_several_targets_have_a_noise_each():
    X, y = table("mixture")
    with prior_draws(8):
        model = BSGPRegressor(noise="mixture", **QUICK).fit(X, np.stack([y, -2.0 * y], axis=1))
    assert model.predict(X).shape == (40, 2)
    assert model.crps(X, np.stack([y, -2.0 * y], axis=1)).shape == (40, 2)


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"noise": "cauchy"}, None, "`noise` must be one of 'gaussian'"),
        ({"noise": "poisson"}, lambda X, y: (X, y - 2.5), "counts 0, 1, 2"),
        ({"noise": "ordinal"}, lambda X, y: (X, np.stack([y, y], axis=1)), "one target, got 2"),
        ({"noise": "student", "exposure": 1}, None, "`exposure` is for counts"),
        ({"noise": "poisson", "exposure": 1}, None, "must hold positive numbers"),
        ({"noise": "poisson", "exposure": 2}, None, "`exposure` must be a column of `X`"),
        ({"noise": "student", "likelihood": StudentT}, None, "must be a `bsgp.models.AbstractLikelihood`"),
        ({"noise": "student", "method": "exact-gp"}, None, "for regression with Gaussian noise"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, change, message):
    X, y = table(settings["noise"] if settings["noise"] in NOISES else "gaussian")
    X, y = (X, y) if change is None else change(X, y)
    with pytest.raises(ValueError, match=message) as caught:
        BSGPRegressor(**QUICK, **settings).fit(X, y)
    assert "\n" not in str(caught.value)


def test_classes_take_no_noise():
    assert "noise" not in BSGPClassifier().get_params()
    assert "exposure" not in BSGPClassifier().get_params()
    assert BSGPRegressor(noise="student").get_params()["noise"] == "student"


# -- slow: simulated tables from each noise recover it -------------------------------------------------------------


def simulated(noise: str, num_rows: int, seed: int):
    """Inputs, targets and the 5% and 95% quantiles of the truth."""
    import scipy.stats as st

    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (num_rows, 2))
    f = np.sin(1.5 * X[:, 0]) + 0.3 * X[:, 1]
    if noise == "ordinal":
        return X, 1.0 + np.digitize(f + 0.5 * rng.standard_normal(num_rows), [-0.7, 0.2, 0.9]), None
    laws = {
        "gaussian": st.norm(f, 0.3),
        "student": st.t(3.0, f, 0.2),
        "heteroskedastic": st.norm(f, 0.3 * np.exp(0.6 * X[:, 1])),
        "poisson": st.poisson(np.exp(1.0 + f)),
        "negative-binomial": st.nbinom(3.0, 3.0 / (3.0 + np.exp(1.5 + f))),
    }
    if noise == "mixture":
        side = np.where(rng.random(num_rows) < 0.3 + 0.1 * X[:, 0], 1.2, -0.5)
        return X, f + side + 0.15 * rng.standard_normal(num_rows), None
    return X, laws[noise].rvs(random_state=rng).astype(float), laws[noise]


PARAMETERS = {
    "student": ("likelihood.degrees_of_freedom", 2.2, 5.0),
    "negative-binomial": ("likelihood.concentration", 2.0, 4.8),
}
"""A parameter with a known truth of 3, and the range in which its posterior mean should be."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("noise", NOISES)
def test_a_simulated_table_gives_its_noise_back(noise):
    X, y, _ = simulated(noise, 600, seed=1)
    X_new, y_new, law = simulated(noise, 2_000, seed=2)
    model = BSGPRegressor(noise=noise, num_inducing=40, num_chains=2, effort=0.5, random_state=0).fit(X, y)
    low, high = model.predict_quantiles(X_new, (0.05, 0.95)).T
    coverage = np.mean((low <= y_new) & (y_new <= high))
    if noise in DISCRETE:  # closed intervals of steps hold 90% or more
        assert coverage >= 0.88
    else:
        assert 0.88 <= coverage <= 0.92
    if law is not None:
        log_density = law.logpmf(y_new) if noise in DISCRETE else law.logpdf(y_new)
        # no model can beat the true distribution on average; this one should come within 0.08
        assert np.mean(log_density) - np.mean(model.log_density(X_new, y_new)) < 0.08
    if noise in PARAMETERS:
        name, least, most = PARAMETERS[noise]
        assert least < np.mean(model.posterior_._named_draws()[name]) < most
