"""What the estimators say about doubt: in the units of the targets, with intervals that hold what they promise."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from refusals import message
from scipy.stats import binom
from unsampled_models import prior_draws

import bsgp
from bsgp import BSGPClassifier, BSGPRegressor

TINY = {"num_inducing": 6, "random_state": 0}


@pytest.fixture(autouse=True)
def _plain_jax():
    """As users have it: float32 unless asked."""
    with jax.enable_x64(False):
        yield


def table(num_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (num_rows, 2))
    return X, 100 + 20 * np.sin(2 * X[:, 0]) + 6 * rng.standard_normal(num_rows)


@pytest.fixture(scope="module")
def regressor():
    with prior_draws(8):
        return BSGPRegressor(**TINY).fit(*table())


@pytest.fixture(scope="module")
def two_targets():
    X, y = table()
    with prior_draws(8):
        return BSGPRegressor(**TINY).fit(X, np.stack([y, 1e3 * y], axis=1))


def test_the_squares_of_the_parts_add_up_in_the_units_of_the_target(regressor, two_targets):
    for model in (regressor, two_targets):
        mean, std = model.predict(table()[0], return_std=True)
        same, epistemic, aleatoric = model.predict(table()[0], return_std="parts")
        assert_allclose(same, mean, rtol=1e-12)
        assert_allclose(epistemic**2 + aleatoric**2, std**2, rtol=1e-12)
        assert epistemic.shape == std.shape
    assert_allclose(aleatoric[:, 1] / aleatoric[:, 0], model.target_scale[1] / model.target_scale[0], rtol=0.5)
    assert 'False, True or "parts"' in message(regressor.predict, table()[0], return_std="part")


def test_an_interval_lies_between_two_quantiles(regressor, two_targets):
    X = table(7)[0]
    assert_allclose(regressor.predict_interval(X), regressor.predict_quantiles(X, [0.05, 0.95]), rtol=1e-12)
    assert_allclose(two_targets.predict_interval(X, 0.5), two_targets.predict_quantiles(X, [0.25, 0.75]))
    assert two_targets.predict_interval(X).shape == (7, 2, 2)
    for level in (0.0, 1.0, 90.0, float("nan")):
        assert "`level` must lie between 0 and 1" in message(regressor.predict_interval, X, level)


def test_intervals_hold_as_many_targets_as_they_promise():
    model = BSGPRegressor(method="exact-gp", random_state=0).fit(*table(100))
    X, y = table(400, seed=1)
    for level in (0.5, 0.9):
        low, high = model.predict_interval(X, level).T
        # a thousandth of tables; the model knows kernel and noise only as well as 100 rows tell
        fewest, most = binom.interval(0.999, 400, level)
        assert fewest <= np.sum((y >= low) & (y <= high)) <= most


def test_a_classifier_splits_its_entropy():
    X, y = table()
    with prior_draws(8):
        two = BSGPClassifier(**TINY).fit(X, y > 100)
    found, p = two.predict_entropy(X), two.predict_proba(X)
    assert_allclose(found.total, -(p * np.log(p)).sum(axis=1), rtol=1e-9)
    assert_allclose(found.epistemic + found.aleatoric, found.total)
    assert_array_equal(found.total, two.predict_entropy(X).total)  # the same whenever it is asked


def test_extrapolation_has_a_number_per_row_and_survives_a_file(two_targets, tmp_path):
    X = np.array([[0.0, 0.0], [300.0, 0.0]])
    score = two_targets.extrapolation(X)
    assert score.shape == (2,)
    assert score[1] > 0.9
    two_targets.save(tmp_path / "model")
    same = bsgp.load(tmp_path / "model")
    assert_array_equal(same.extrapolation(X), score)
    assert_array_equal(same.predict(X, return_std="parts"), two_targets.predict(X, return_std="parts"))


@pytest.mark.slow
def test_extrapolation_of_a_fit_looks_at_the_columns_that_matter():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 2))
    model = BSGPRegressor(num_inducing=20, random_state=0).fit(X, np.sin(3 * X[:, 0]) + 0.2 * rng.standard_normal(150))
    assert np.quantile(model.extrapolation(X), 0.9) < 0.2
    assert model.extrapolation([[6.0, 0.0]])[0] > 0.9
    assert model.extrapolation([[0.0, 4.0]])[0] < 0.3
