"""The sampled posterior of u against the supplement's formulas, within Monte-Carlo error."""

from functools import cache

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import U_ONLY, assert_moments, optimal_u, regression, shallow, whitened_moments

from bsgp import Plan, Posterior, Target, sample
from bsgp.data.store.sources import ArraySource

NUM_ROWS = 40
MODEL = shallow(np.linspace(-1.8, 1.8, 3)[:, None])  # few inducing points, so that FITC and VFE differ


@cache
def run(objective: str, batch_size: int):
    X, y = regression(NUM_ROWS)
    target = Target(MODEL, NUM_ROWS, objective=objective, treatment=U_ONLY)
    # full batches: BAOAB is exact on this Gaussian at any stable step; minibatches: the noise heats, so short steps
    step, thinning = (0.05, 10) if batch_size == NUM_ROWS else (0.03, 20)
    plan = Plan(
        adam_steps=200, burn_in=2_000, num_draws=1_000, thinning=thinning,
        batch_size=batch_size, step_size=step, friction=0.1, chunk=2_000,
    )  # fmt: skip
    return sample(target, X, y, jr.key(7), plan=plan, num_chains=4)


def optimum(objective: str):
    X, y = regression(NUM_ROWS)
    mean, covariance = optimal_u(MODEL, X, jnp.asarray(y), objective)
    return mean[:, 0], covariance


@pytest.mark.parametrize("batch_size", [NUM_ROWS, NUM_ROWS // 2], ids=["full batch", "minibatch"])
@pytest.mark.parametrize("objective", ["fitc", "vfe"])
def test_sampled_u_has_the_supplements_mean_and_covariance(objective, batch_size):
    layer = MODEL.layers[0]
    Lz = np.linalg.cholesky(layer.kernel(layer.Z, layer.Z))
    u = np.einsum("mk,csko->csmo", Lz, run(objective, batch_size).model.layers[0].V)[..., 0]
    assert_moments(u, *optimum(objective))
    # the errors are small enough for the other objective to fail: this test can tell the two apart
    other = "vfe" if objective == "fitc" else "fitc"
    (mean, error), _ = whitened_moments(u, *optimum(other))
    assert (np.abs(mean) > 20 * error).any()


def test_predictions_from_draws_are_the_fitc_predictive(getkey):
    posterior = Posterior.from_run(run("fitc", NUM_ROWS))
    X_new = np.linspace(-2.5, 2.5, 30)[:, None]
    predicted = posterior.predict(X_new, getkey())
    mean_u, covariance_u = optimum("fitc")
    layer = MODEL.layers[0]
    weights = jnp.linalg.solve(layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, jnp.asarray(X_new)))
    variance_of_mean = jnp.sum(weights * (covariance_u @ weights), axis=0)
    # of 4,000 draws at least 1,500 count as independent ones
    assert (np.abs(predicted.mean[:, 0] - weights.T @ mean_u) < 4 * np.sqrt(variance_of_mean / 1_500)).all()
    variance = layer.conditional(jnp.asarray(X_new)).variance[:, 0] + variance_of_mean
    assert_allclose(predicted.variance[:, 0], variance + 0.2, rtol=0.03)
    assert jax.tree.leaves(posterior.model)[0].shape[:2] == (4, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["fitc", "vfe"])
def test_sampled_u_of_weighted_rows_has_its_closed_form(objective):
    X, y = regression(NUM_ROWS)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, NUM_ROWS)
    target = Target(MODEL, NUM_ROWS, objective=objective, treatment=U_ONLY, total_weight=float(weight.sum()))
    plan = Plan(
        adam_steps=200, burn_in=2_000, num_draws=1_000, thinning=10,
        batch_size=NUM_ROWS, step_size=0.05, friction=0.1, chunk=2_000,
    )  # fmt: skip
    drawn = sample(target, ArraySource(X, y, weight), None, jr.key(7), plan=plan, num_chains=4)
    layer = MODEL.layers[0]
    Lz = np.linalg.cholesky(layer.kernel(layer.Z, layer.Z))
    u = np.einsum("mk,csko->csmo", Lz, drawn.model.layers[0].V)[..., 0]
    mean, covariance = optimal_u(MODEL, X, jnp.asarray(y), objective, jnp.asarray(weight))
    assert_moments(u, mean[:, 0], covariance)
    (white, error), _ = whitened_moments(u, *optimum(objective))  # that of rows without weights
    assert (np.abs(white) > 20 * error).any()
