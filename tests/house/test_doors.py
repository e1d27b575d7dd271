"""Bad input at every public door: a ValueError that says what was expected, what came, and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import tiny_target

from bsgp import Plan, Posterior, Target, init_deep_gp, sample
from bsgp.data.encoding.standardise import Standardiser
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import gaussian

GOOD_X = np.random.default_rng(0).standard_normal((20, 2))
TINY = Plan(adam_steps=1, burn_in=0, num_draws=2, thinning=1)


def with_entry(value):
    X = GOOD_X.copy()
    X[3, 1] = value
    return X


BAD_X = {
    "one-dimensional": (GOOD_X[:, 0], r"two-dimensional.*reshape\(-1, 1\)"),
    "NaN": (with_entry(np.nan), "finite.*row 3, column 1"),
    "infinity": (with_entry(-np.inf), "finite.*row 3, column 1"),
    "no rows": (GOOD_X[:0], "at least one row"),
    "no columns": (GOOD_X[:, :0], "at least one row and one column"),
    "text": (GOOD_X.astype(str), "numbers"),
    "objects": (GOOD_X.astype(object), "numbers"),
    "ragged": (np.zeros((2, 2, 2)), "two-dimensional"),
}


@pytest.mark.parametrize("case", BAD_X)
def test_init_refuses_bad_inputs(case, getkey):
    X, message = BAD_X[case]
    with pytest.raises(ValueError, match=message):
        init_deep_gp(X, gaussian(1, np.float64), getkey(), num_inducing=3)


@pytest.mark.parametrize("case", BAD_X)
def test_sample_and_predict_refuse_bad_inputs(case, getkey):
    X, message = BAD_X[case]
    target, good_X, good_y = tiny_target(num_rows=20)
    with pytest.raises(ValueError, match=message):
        sample(target, X, good_y, getkey(), plan=TINY)
    posterior = Posterior(jax.tree.map(lambda x: x[None, None], target.model))
    with pytest.raises(ValueError, match=message):
        posterior.predict(X, getkey())
    with pytest.raises(ValueError, match="`y`" if case not in ("no rows", "no columns") else "at least one"):
        posterior.log_density(good_X, X if case != "ragged" else np.zeros((3, 1)), getkey())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_inducing": 21}, "at most the number of rows, 20, got 21"),
        ({"num_inducing": 0}, "at least 1, got 0"),
        ({"depth": 0}, "`depth`"),
        ({"width": -1}, "`width`"),
        ({"num_targets": 0}, "`num_targets`"),
    ],
)
def test_init_refuses_impossible_sizes(options, message, getkey):
    with pytest.raises(ValueError, match=message):
        init_deep_gp(GOOD_X, gaussian(1, np.float64), getkey(), **{"num_inducing": 3, **options})


def test_rows_and_columns_must_match(getkey):
    target, X, y = tiny_target(num_rows=20)
    with pytest.raises(ValueError, match="`y` must have 20 rows"):
        sample(target, X, y[:10], getkey(), plan=TINY)
    with pytest.raises(ValueError, match="`X` must have 2 columns"):
        sample(target, X[:, :1], y, getkey(), plan=TINY)
    with pytest.raises(ValueError, match="`X` must have 20 rows"):
        sample(target, X[:10], y[:10], getkey(), plan=TINY)
    with pytest.raises(ValueError, match="num_chains"):
        sample(target, X, y, getkey(), plan=TINY, num_chains=0)


def test_something_must_be_sampled(getkey):
    target, X, y = tiny_target(num_rows=20, treatment=dict.fromkeys(("u", "Z", "theta", "noise"), "optimise"))
    with pytest.raises(ValueError, match="at least one block"):
        sample(target, X, y, getkey(), plan=TINY)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (gaussian(1, np.float64), np.full((20, 1), 7.0), "constant column.*Drop it"),
        (Bernoulli(), np.zeros((20, 1)), "both classes"),
        (Poisson(), -np.ones((20, 1)), "counts"),
    ],
)
def test_targets_that_cannot_be_learned_are_refused(likelihood, y, message, getkey):
    model = init_deep_gp(GOOD_X, likelihood, getkey(), num_inducing=3)
    with pytest.raises(ValueError, match=message):
        sample(Target(model, 20), GOOD_X, y, getkey(), plan=TINY)


def test_quantile_levels_and_joint_rows(getkey):
    target, X, _ = tiny_target(num_rows=20)
    posterior = Posterior(jax.tree.map(lambda x: x[None, None], target.model))
    for levels in ([0.0], [1.5], [[0.5]]):
        with pytest.raises(ValueError, match="levels"):
            posterior.quantiles(X, levels, getkey())
    with pytest.raises(ValueError, match="at most 5000 rows"):
        posterior.sample_functions(np.zeros((5001, 2)), getkey())


def test_a_constant_input_column_survives(getkey):
    """naval has two: they are centred, not divided, and the model copes."""
    X = np.column_stack([GOOD_X, np.full(20, 288.15)])
    units = Standardiser.fit(X)
    standard = units.transform(X)
    np.testing.assert_allclose(standard[:, 2], 0.0, atol=1e-9)
    np.testing.assert_allclose(standard[:, :2].std(axis=0), 1.0)
    np.testing.assert_allclose(units.inverse(standard), X)
    model = init_deep_gp(standard, gaussian(1, np.float64), getkey(), num_inducing=3)
    run = sample(Target(model, 20), standard, GOOD_X[:, :1], getkey(), plan=TINY)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.model))


def test_integers_and_booleans_are_taken_as_numbers(getkey):
    X = (GOOD_X > 0).astype(int) + np.arange(20)[:, None]
    model = init_deep_gp(X, gaussian(1, np.float64), getkey(), num_inducing=3)
    assert model.layers[0].Z.dtype == jnp.float64
