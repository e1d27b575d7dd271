"""`kernel=` of the estimators: columns by name, units of the table, files, checkpoints, report and command line."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from unsampled_models import prior_draws

import bsgp
from bsgp import BSGPClassifier, BSGPRegressor
from bsgp.cli import main
from bsgp.estimators.table_kernel import describe_kernel, kernel_text
from bsgp.models import RBF, ActiveDimensions, Matern32, Seasonal, Sum, linear, stationary
from bsgp.report.content import Fact, gather

KERNEL = "linear(age) + rbf(city, month) * periodic(12)(month)"
TINY = {"num_inducing": 6, "random_state": 0}


def table(num_rows=30):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(20, 60, num_rows),
            "city": rng.choice(["Lima", "Oslo", "Rome"], num_rows),
            "month": rng.integers(1, 25, num_rows).astype(float),
            "same": 1.0,
        }
    )
    frame.loc[3, "month"] = np.nan
    return frame, frame["age"] + rng.standard_normal(num_rows)


def unsampled(kernel=KERNEL, estimator=BSGPRegressor, **options):
    frame, y = table()
    y = np.where(y > y.median(), "old", "young") if estimator is BSGPClassifier else y
    with prior_draws(2):
        return estimator(kernel=kernel, **TINY, **options).fit(frame, y)


@pytest.mark.parametrize("estimator", [BSGPRegressor, BSGPClassifier])
def test_columns_are_found_by_name_and_periods_are_in_their_units(estimator):
    model = unsampled(estimator=estimator)
    kernel = model.posterior_.model.layers[0].kernel
    assert isinstance(kernel, Sum)
    assert (kernel.left.dimensions, kernel.right.left.dimensions) == ((0,), (1, 2, 3, 4, 5))
    seasonal = kernel.right.right.kernel
    assert isinstance(seasonal, Seasonal)
    (scale,) = (feature.scale for feature in model.schema_.features if feature.name == "month")
    assert seasonal.periods == (pytest.approx(12.0 / scale), 2.0)
    assert kernel.right.left.kernel.lengthscales.shape[-1] == 5


def test_arrays_have_columns_too():
    frame, y = table()
    with prior_draws(2):
        model = BSGPRegressor(kernel="rbf(x1)", **TINY).fit(frame[["age", "month"]].to_numpy(), y)
    assert model.posterior_.model.layers[0].kernel.dimensions == (1, 2)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("rbf(agee)", "`kernel` must name columns of the table, got `agee`. Did you mean `age`?"),
        ("rbf(price)", "got `price`. Choose from `age`, `city`, `month`."),
        ("rbf(same)", "got `same`, which is left out (constant). Take it out."),
        ("periodic(3)(city)", "must give `periodic` columns of numbers, got `city`, a category. Use `rbf` for it."),
        (
            "periodic(3)",
            "must name the column of `periodic(3)`, got none and 3 to choose from. Write `periodic(3)(age)`",
        ),
        ("linaer", "got `linaer`. Did you mean `linear`?"),
        (RBF(jnp.ones(()), jnp.ones(3)), "`lengthscales` of `kernel` must be one for each of 6 inputs, got 3"),
    ],
)
def test_a_kernel_that_the_table_has_no_columns_for_is_refused(kernel, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        unsampled(kernel)


def test_it_survives_saving_and_loading(tmp_path):
    model = unsampled(depth=2)
    model.save(tmp_path / "model")
    again = bsgp.load(tmp_path / "model")
    frame, _ = table()
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.kernel == KERNEL
    assert describe_kernel(again) == f"{KERNEL} in the first layer, rbf after it"
    assert clone(again).get_params()["kernel"] == KERNEL


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (None, "rbf"),
        (lambda d, dtype: linear(d, dtype) + stationary(RBF, d, dtype), "linear + rbf"),
        (Matern32, "matern32"),
        (linear(6, np.float64) * ActiveDimensions(RBF(jnp.ones(()), jnp.ones(2)), (4, 5)), "linear * rbf(month)"),
    ],
)
def test_objects_are_saved_as_words(kernel, words, tmp_path):
    model = unsampled(kernel)
    assert describe_kernel(model) == words
    model.save(tmp_path / "model")
    again = bsgp.load(tmp_path / "model")
    assert again.kernel == (None if kernel is None else words)
    with prior_draws(2):
        refitted = clone(again).fit(*table())
    assert describe_kernel(refitted) == words


def test_checkpoints_hold_words():
    model = unsampled()
    functions = kernel_text(Matern32, model.schema_), kernel_text(lambda d, dtype: None, model.schema_)
    objects = kernel_text(linear(6, np.float64), model.schema_)
    assert (kernel_text(KERNEL, model.schema_), *functions, objects) == (KERNEL, "Matern32", "<lambda>", "linear")


def test_the_report_shows_it_and_which_inputs_matter():
    found = gather(unsampled("linear(age)"), None)
    assert Fact("Kernel", "linear(age)") in found.facts
    assert Fact("kernel", "linear(age)") in found.settings
    assert found.relevance is not None
    assert (found.relevance.columns[0], found.relevance.median[0]) == ("age", 1.0)
    plain = gather(unsampled(linear(6, np.float64)), None)  # an object is shown in words
    assert Fact("Kernel", "linear") in plain.facts
    assert Fact("kernel", "linear") in plain.settings


def test_the_command_line_takes_it(tmp_path, capsys):
    frame, y = table()
    frame.assign(price=y).to_csv(tmp_path / "train.csv", index=False)
    command = [
        "fit",
        str(tmp_path / "train.csv"),
        "--target",
        "price",
        "--num-inducing",
        "6",
        "--out",
        str(tmp_path / "m"),
    ]
    with prior_draws(2):
        main([*command, "--kernel", KERNEL, "--method", "svgp", "-q"])
    assert bsgp.load(tmp_path / "m").kernel == KERNEL
    for kernel, message in (("linaer", "Did you mean `linear`?"), ("rbf(agee)", "Did you mean `age`?")):
        with pytest.raises(SystemExit) as caught:
            main([*command, "--kernel", kernel])
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
    assert json.loads((tmp_path / "m" / "posterior.json").read_text())["meta"]["params"]["kernel"] == KERNEL


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_a_straight_line_is_predicted_as_well_as_by_linear_regression(noise):
    from scipy.stats import norm
    from sklearn.linear_model import BayesianRidge

    rng = np.random.default_rng(1)
    X, slopes = rng.standard_normal((2_200, 5)), rng.standard_normal(5)
    y = X @ slopes / np.linalg.norm(slopes) + noise * rng.standard_normal(2_200)
    train, test = slice(200), slice(200, None)
    mean, sd = BayesianRidge().fit(X[train], y[train]).predict(X[test], return_std=True)
    model = BSGPRegressor(kernel="linear + rbf", random_state=0).fit(X[train], y[train])
    line = norm(mean, sd).logpdf(y[test]).mean()
    assert model.log_density(X[test], y[test]).mean() > line - 0.01


def test_a_seasonal_pattern_is_continued():
    """Two years of months are enough to predict the third, where an RBF kernel returns to the mean."""
    months = np.arange(48.0)[:, None]
    y = np.sin(2 * np.pi * months[:, 0] / 12)
    model = BSGPRegressor(kernel="periodic(12)", method="exact-gp", random_state=0).fit(months[:24], y[:24])
    assert np.abs(model.predict(months[24:]) - y[24:]).max() < 0.2
