"""mcmc-svgp: with the kernel held, its draws of u are the closed form."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bsgp.likelihoods import Bernoulli, Gaussian
from bsgp.mcmc_svgp import MAX_ROWS, fit_mcmc_svgp
from bsgp.model import init_deep_gp
from bsgp.nuts import NutsPlan
from bsgp.variational import VariationalPlan
from problems import regression

QUICK = {"plan": NutsPlan(warm_up=100, num_draws=100, chunk=20), "optimisation": VariationalPlan(num_steps=1_000)}


@pytest.fixture(scope="module")
def fitted():
    X, y = regression(60, noise=0.3)
    said = []
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.1)), jr.key(0), num_inducing=8)
    return fit_mcmc_svgp(model, X, y, jr.key(1), num_chains=2, report=lambda *at: said.append(at), **QUICK), X, y, said


def test_u_given_the_rest_is_its_closed_form(fitted):
    """Every draw of u, standardised by the optimal q(u) of its own kernel and noise, is N(0, I)."""
    posterior, X, y = fitted[0].posterior, *fitted[1:3]
    model = posterior.model
    residuals = []
    for draw in range(posterior.num_draws):
        for chain in range(2):
            layer = model.layers[0]
            kernel = type(layer.kernel)(layer.kernel.variance[chain, draw], layer.kernel.lengthscales[chain, draw])
            Z, V = layer.Z[chain, draw], layer.V[chain, draw]
            noise = model.likelihood.noise_variance[chain, draw, 0]
            Lz = jnp.linalg.cholesky(kernel(Z, Z) + 1e-7 * kernel.variance * jnp.eye(8))
            A = jnp.linalg.solve(Lz, kernel(Z, jnp.asarray(X)))
            precision = jnp.eye(8) + A @ A.T / noise
            mean = jnp.linalg.solve(precision, A @ jnp.asarray(y) / noise)
            residuals.append(np.asarray(jnp.linalg.cholesky(precision).T @ (V - mean)))
    residuals = np.stack(residuals)[:, :, 0]
    assert abs(residuals.mean()) < 0.1
    np.testing.assert_allclose(np.cov(residuals.T), np.eye(8), atol=0.4)
    assert residuals.std() == pytest.approx(1.0, abs=0.06)


def test_kernel_and_noise_vary_and_Z_does_not(fitted):
    model = fitted[0].posterior.model
    assert np.ptp(model.layers[0].Z, axis=(0, 1)).max() == 0.0
    assert model.layers[0].kernel.lengthscales.std() > 0.01
    assert model.likelihood.noise_variance.mean() == pytest.approx(0.3**2 / 0.6, abs=0.1)  # y was standardised


def test_the_chains_agree_and_say_where_they_are(fitted):
    fit, X, _, said = fitted
    assert np.median(fit.posterior.predictive_rhat(X[:20], jr.key(3))) < 1.1
    assert list(dict.fromkeys(phase for phase, *_ in said)) == ["optimise", "warm-up", "draws"]
    assert set(fit.history.energy) == {"optimise", "warm-up", "draws"}


def test_classes_are_sampled_without_a_closed_form():
    X, y = regression(60)
    labels = (y > 0).astype(float)
    model = init_deep_gp(X, Bernoulli(), jr.key(0), num_inducing=6)
    fitted = fit_mcmc_svgp(model, X, labels, jr.key(1), **QUICK)
    probability = np.asarray(fitted.posterior.predict(X, jr.key(2)).mean)
    assert np.mean((probability > 0.5) == labels) > 0.85


def test_too_many_rows_are_refused():
    model = init_deep_gp(np.zeros((10, 1)) + np.arange(10)[:, None], Bernoulli(), jr.key(0), num_inducing=2)
    with pytest.raises(ValueError, match=r"at most 100,000, got 100,001. Use `method=\"bsgp\"`"):
        fit_mcmc_svgp(model, np.zeros((MAX_ROWS + 1, 1)), np.zeros((MAX_ROWS + 1, 1)), jr.key(0))
