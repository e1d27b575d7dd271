"""The sampled posterior of u against the supplement's formulas, within Monte-Carlo error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp import Plan, Posterior, Target, sample
from bsgp.diagnostics import ess
from problems import U_ONLY, optimal_u, regression, shallow

NUM_ROWS = 40


def sample_u(objective, batch_size, getkey):
    X, y = regression(NUM_ROWS)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None])
    target = Target(model, NUM_ROWS, objective=objective, treatment=U_ONLY)
    # full batches: BAOAB is exact on this Gaussian at any stable step; minibatches: the noise heats, so short steps
    step = 0.05 if batch_size == NUM_ROWS else 0.01
    plan = Plan(
        warm_start=200, burn_in=4_000, num_draws=4_000, thinning=10 if batch_size == NUM_ROWS else 50,
        batch_size=batch_size, step_size=step, friction=0.1, chunk=2_000,
    )  # fmt: skip
    run = sample(target, X, y, getkey(), plan=plan, num_chains=4)
    layer = model.layers[0]
    Lz = np.linalg.cholesky(layer.kernel(layer.Z, layer.Z))
    return np.einsum("mk,csko->csmo", Lz, run.model.layers[0].V)[..., 0], optimal_u(model, X, jnp.asarray(y), objective)


@pytest.mark.parametrize("batch_size", [NUM_ROWS, NUM_ROWS // 2], ids=["full batch", "minibatch"])
@pytest.mark.parametrize("objective", ["fitc", pytest.param("vfe", marks=pytest.mark.slow)])
def test_sampled_u_has_the_supplements_mean_and_covariance(objective, batch_size, getkey):
    u, (mean, covariance) = sample_u(objective, batch_size, getkey)  # [C S M]
    error = u.std(axis=(0, 1)) / np.sqrt(ess(u))
    assert (np.abs(u.mean(axis=(0, 1)) - mean[:, 0]) < 4 * error).all()
    centred = u - u.mean(axis=(0, 1))
    products = np.einsum("csi,csj->csij", centred, centred)
    error = products.std(axis=(0, 1)) / np.sqrt(ess(products, method="mean"))
    assert (np.abs(products.mean(axis=(0, 1)) - covariance) < 4 * error).all()
    # the errors are small enough for the other objective to fail: this test can tell the two apart
    other = "vfe" if objective == "fitc" else "fitc"
    X, y = regression(NUM_ROWS)
    wrong_mean, _ = optimal_u(shallow(np.linspace(-1.8, 1.8, 4)[:, None]), X, jnp.asarray(y), other)
    error = u.std(axis=(0, 1)) / np.sqrt(ess(u))
    assert (np.abs(u.mean(axis=(0, 1)) - wrong_mean[:, 0]) > 8 * error).any()


def test_predictions_from_draws_are_the_fitc_predictive(getkey):
    X, y = regression(NUM_ROWS)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None])
    target = Target(model, NUM_ROWS, treatment=U_ONLY)
    plan = Plan(warm_start=200, burn_in=2_000, num_draws=2_000, thinning=10, step_size=0.05, friction=0.1, chunk=2_000)
    posterior = Posterior.from_run(sample(target, X, y, getkey(), plan=plan, num_chains=2))
    X_new = np.linspace(-2.5, 2.5, 30)[:, None]
    predicted = posterior.predict(X_new, getkey())

    mean_u, covariance_u = optimal_u(model, X, jnp.asarray(y), "fitc")
    layer = model.layers[0]
    weights = jnp.linalg.solve(layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, jnp.asarray(X_new)))
    assert_allclose(predicted.mean, weights.T @ mean_u, atol=0.03)
    variance = layer.conditional(jnp.asarray(X_new)).variance[:, 0] + jnp.sum(
        weights * (covariance_u @ weights), axis=0
    )
    assert_allclose(predicted.variance[:, 0], variance + 0.2, rtol=0.05)
    assert jax.tree.leaves(posterior.model)[0].shape[:2] == (2, 2000)
