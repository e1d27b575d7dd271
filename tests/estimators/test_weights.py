"""Weights of rows and classes, and known noise, from the door of an estimator to its predictions."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from short_recipes import short_recipes
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight
from unsampled_models import prior_draws

import bsgp
from bsgp import BSGPClassifier, BSGPRegressor
from bsgp.data.store.sources import ArraySource

QUICK = {"effort": 0.02, "num_inducing": 6, "random_state": 0, "num_chains": 1}
NUM_ROWS = 24
WEIGHT = np.tile([0.0, 0.5, 1.0, 2.0], NUM_ROWS // 4)


@contextmanager
def seen_sources():
    """What `fit` hands to its method, which gets prior draws instead of a sampler. All else follows from it."""
    seen: list[ArraySource] = []
    with prior_draws(4):
        unsampled = bsgp.estimators.base.fit_method

        def record(method, source, *args, **options):
            seen.append(source)
            return unsampled(method, source, *args, **options)

        with mock.patch("bsgp.estimators.base.fit_method", record):
            yield seen


def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"t": rng.uniform(-2, 2, NUM_ROWS), "colour": np.tile(["red", "green", "blue"], NUM_ROWS // 3)})
    X.loc[::5, "t"] = np.nan
    return X, pd.Series(100 + 20 * np.sin(X["t"].fillna(1.0)) + rng.standard_normal(NUM_ROWS), name="height")


def labels():
    X, y = table()
    return X, np.where(y > np.quantile(y, 0.7), "high", "low")


# -- rows of weight zero -----------------------------------------------------------------------------------------


def test_rows_of_weight_zero_are_as_if_absent_bit_for_bit():
    X, y = table()
    X.loc[WEIGHT == 0, "colour"] = "a colour that no other row has"
    kept = WEIGHT > 0
    with seen_sources() as seen:
        model = BSGPRegressor(**QUICK).fit(X, y, sample_weight=WEIGHT)
        absent = BSGPRegressor(**QUICK).fit(X[kept], y[kept], sample_weight=WEIGHT[kept])
    assert seen[0].fingerprint == seen[1].fingerprint
    assert model.schema_ == absent.schema_
    assert model.num_rows_ == 18
    assert model.notes_[0] == "6 rows of weight zero are left out."
    assert_array_equal(model.predict(X[kept]), absent.predict(X[kept]))
    assert_array_equal(model.baselines_["linear"].weights, absent.baselines_["linear"].weights)


@pytest.mark.parametrize("kind", [list, pd.DataFrame, lambda X: pa.table(dict(zip("ab", np.array(X).T, strict=True)))])
def test_any_table_loses_its_rows_of_weight_zero(kind):
    X, (_, y) = np.random.default_rng(1).standard_normal((NUM_ROWS, 2)), table()
    weight = (WEIGHT > 0).astype(int)
    with seen_sources() as seen:
        BSGPRegressor(**QUICK).fit(kind(X), y.tolist(), sample_weight=weight.tolist())
        BSGPRegressor(**QUICK).fit(X[weight > 0], y[weight > 0])
    assert seen[0].total_weight is None  # the rows that are left count once
    assert seen[0].fingerprint == seen[1].fingerprint


def test_a_class_of_weight_zero_is_no_class():
    X, y = labels()
    y[0] = "seen once"
    with seen_sources():
        model = BSGPClassifier(**QUICK).fit(X, y, sample_weight=np.arange(NUM_ROWS))
    assert list(model.classes_) == ["high", "low"]


def test_weights_of_one_change_nothing():
    X, y = table()
    with seen_sources() as seen:
        BSGPRegressor(**QUICK).fit(X, y)
        BSGPRegressor(**QUICK).fit(X, y, sample_weight=np.ones(NUM_ROWS))
    assert seen[0].fingerprint == seen[1].fingerprint


# -- weights of rows ---------------------------------------------------------------------------------------------


def test_rows_of_weight_two_are_scaled_as_rows_that_occur_twice():
    X, y = table()
    weight = np.tile([1, 2, 3], NUM_ROWS // 3)
    copies = np.repeat(np.arange(NUM_ROWS), weight)
    with seen_sources() as seen:
        weighted = BSGPRegressor(**QUICK).fit(X, y, sample_weight=weight)
        repeated = BSGPRegressor(**QUICK).fit(X.iloc[copies], y.iloc[copies])
    assert seen[0].total_weight == seen[1].num_rows == len(copies)
    assert_allclose(seen[0].X[copies], seen[1].X, atol=1e-12)
    assert_allclose(seen[0].y[copies], seen[1].y, atol=1e-12)
    assert_allclose(weighted.target_scale, repeated.target_scale, rtol=1e-12)
    constant, other = weighted.baselines_["constant"], repeated.baselines_["constant"]
    assert_allclose([*constant.bias, *constant.sd], [*other.bias, *other.sd], rtol=1e-12)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.r_[-1.0, np.ones(NUM_ROWS - 1)], "`sample_weight` must be finite and at least zero, got -1 in row 1"),
        (np.r_[1.0, np.nan, np.ones(NUM_ROWS - 2)], "`sample_weight` must be finite .* got nan in row 2"),
        (np.ones(NUM_ROWS - 1), "`sample_weight` must have one weight per row, 24, got shape"),
        (np.zeros(NUM_ROWS), "`sample_weight` must be above zero in some row, got 24 zeros"),
        (["heavy"] * NUM_ROWS, "`sample_weight` must hold numbers"),
    ],
)
def test_odd_weights_are_refused_in_one_line(weight, message):
    with pytest.raises(ValueError, match=message) as caught:
        BSGPRegressor(**QUICK).fit(*table(), sample_weight=weight)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("kiss-gp", {"sample_weight": WEIGHT + 1}, "`kiss-gp` counts every row once, got weights. Leave them out, or"),
        ("dkl", {"noise_std": WEIGHT}, "`dkl` learns one noise for all rows, got `noise_std`. Leave it out, or use"),
    ],
)
def test_methods_that_cannot_weight_rows_say_so(method, given, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        BSGPRegressor(method=method, **QUICK).fit(X, y, **given)


def test_pipelines_and_cross_validation_route_weights():
    X, y = table()
    with seen_sources() as seen, sklearn.config_context(enable_metadata_routing=True):
        model = BSGPRegressor(**QUICK).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
        found = cross_validate(pipeline, X[["t"]], y, cv=2, params={"sample_weight": WEIGHT}, return_estimator=True)
    assert [source.num_rows for source in seen] == [9, 9]
    assert [source.total_weight for source in seen] == [10.5, 10.5]
    halves = np.split(np.arange(NUM_ROWS), 2)
    scores = [
        one.score(X[["t"]].iloc[rows], y.iloc[rows], sample_weight=WEIGHT[rows])
        for one, rows in zip(found["estimator"], halves, strict=True)
    ]
    assert_allclose(scores, found["test_score"])


# -- weights of classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_weight", ["balanced", {"high": 3.0}])
def test_weights_of_classes_are_those_of_scikit_learn(class_weight):
    X, y = labels()
    weight = np.tile([1.0, 2.0], NUM_ROWS // 2)
    copies = np.repeat(np.arange(NUM_ROWS), weight.astype(int))  # scikit-learn 1.6 balances without weights
    with seen_sources() as seen:
        BSGPClassifier(**QUICK, class_weight=class_weight).fit(X, y)
        BSGPClassifier(**QUICK, class_weight=class_weight).fit(X, y, sample_weight=weight)
    assert_allclose(seen[0].weight, compute_sample_weight(class_weight, y))
    of_copies = compute_sample_weight(class_weight, y[copies])
    assert_allclose(seen[1].weight, weight * of_copies[np.searchsorted(copies, np.arange(NUM_ROWS))])


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "`class_weight` must be None, 'balanced' or a dict of weights by class, got 'even'"),
        ({"huge": 2.0}, "`class_weight` must name classes of `y`, `high`, `low`, got `huge`"),
        ({"high": 0.0}, "`class_weight` must be above zero, got 0 for `high`"),
    ],
)
def test_odd_weights_of_classes_are_refused(class_weight, message):
    with pytest.raises(ValueError, match=message):
        BSGPClassifier(**QUICK, class_weight=class_weight).fit(*labels())


def test_weights_of_classes_are_a_parameter_and_are_saved(tmp_path):
    X, y = labels()
    codes = (y == "high").astype(int)
    model = clone(BSGPClassifier(**QUICK, class_weight={np.int64(0): 2.0, 1: 1.5}))
    assert model.get_params()["class_weight"] == {0: 2.0, 1: 1.5}
    assert {*BSGPRegressor().get_params()} - {"noise", "exposure"} | {"class_weight"} == {*model.get_params()}
    with seen_sources():
        model.fit(X, codes)
    model.save(tmp_path / "model")
    assert bsgp.load(tmp_path / "model").get_params() == model.get_params()


# -- known noise -------------------------------------------------------------------------------------------------


def test_known_noise_is_scaled_with_the_target_it_belongs_to():
    X, y = table()
    std = np.random.default_rng(2).uniform(0.0, 3.0, NUM_ROWS)
    both, stds = np.stack([y, -2 * y], axis=1), np.stack([std, 5 * std], axis=1)
    with seen_sources() as seen:
        model = BSGPRegressor(**QUICK).fit(X, y, noise_std=std, sample_weight=WEIGHT)
        wide = BSGPRegressor(**QUICK).fit(X, both, noise_std=stds)
    assert_allclose(seen[0].known_variance[:, 0], (std[WEIGHT > 0] / model.target_scale) ** 2)
    assert_allclose(seen[1].known_variance, (stds / wide.target_scale) ** 2)
    with pytest.raises(ValueError, match=r"`noise_std` must have one column per target, 2, got shape \(24,\)"):
        BSGPRegressor(**QUICK).fit(X, both, noise_std=std)
    with pytest.raises(ValueError, match="`noise_std` must be finite and at least zero, got -1 in row 1"):
        BSGPRegressor(**QUICK).fit(X, y, noise_std=np.full(NUM_ROWS, -1.0))
    with pytest.raises(ValueError, match="`noise_std` must have one standard deviation per row of `X`, 24, got shape"):
        BSGPRegressor(**QUICK).fit(X, y, noise_std=std[1:])


def test_predictions_of_noisy_measurements_add_their_known_noise():
    """Of one draw the predictive distribution is normal, so that all of its statistics have closed forms."""
    X, y = table()
    with prior_draws(1):
        model = BSGPRegressor(**QUICK).fit(X, y)
    known = np.linspace(0.0, 30.0, NUM_ROWS)
    mean, std = model.predict(X, return_std=True)
    noisy_mean, noisy = model.predict(X, return_std=True, noise_std=known)
    assert_array_equal(noisy_mean, mean)
    assert_allclose(noisy, np.hypot(std, known))
    assert_allclose(model.log_density(X, y, noise_std=known), norm.logpdf(y, mean, noisy), rtol=1e-9)
    assert_allclose(model.cdf(X, y, noise_std=known), norm.cdf(y, mean, noisy), rtol=1e-9)
    assert_allclose(model.predict_quantiles(X, [0.9], noise_std=known)[:, 0], norm.ppf(0.9, mean, noisy), rtol=1e-9)
    z = (np.asarray(y) - mean) / noisy
    crps = noisy * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert_allclose(model.crps(X, y, noise_std=known), crps, atol=0.2 * noisy.max())


def test_weights_and_known_noise_reach_the_draws():
    """Where rows disagree, the heavy ones win, and those of large known noise have no say."""
    X = np.repeat(np.linspace(-1, 1, 8), 3)[:, None]
    y = np.tile([0.0, 1.0, 6.0], 8) + 0.05 * np.random.default_rng(3).standard_normal(24)
    weight, noise_std = np.tile([1.0, 9.0, 1.0], 8), np.tile([0.0, 0.0, 50.0], 8)
    with short_recipes(num_draws=8, burn_in=160, thinning=4):
        model = BSGPRegressor(**QUICK).fit(X, y, sample_weight=weight, noise_std=noise_std)
    assert_allclose(model.predict(X).mean(), 0.9, atol=0.1)
