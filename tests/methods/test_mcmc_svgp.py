"""mcmc-svgp: its chains have the density of VFE, and its draws of u given the rest are the closed form."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import regression

from bsgp.inference.nuts import NutsPlan
from bsgp.inference.target import Target
from bsgp.methods.mcmc_svgp import MAX_ROWS, fit_mcmc_svgp
from bsgp.methods.svgp import VariationalPlan
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import Gaussian

NUM_INDUCING = 3  # too few for the function, so that FITC and VFE differ
OPTIMISATION = VariationalPlan(num_steps=400)


@pytest.fixture(scope="module")
def fitted():
    X, y = regression(60, noise=0.3)
    said = []
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.1)), jr.key(0), num_inducing=NUM_INDUCING)
    fit = fit_mcmc_svgp(
        model, X, y, jr.key(1), num_chains=2, plan=NutsPlan(warm_up=100, num_draws=1_000, chunk=100),
        optimisation=OPTIMISATION, report=lambda *at: said.append(at),
    )  # fmt: skip
    return fit, jnp.asarray(X), jnp.asarray(y), said


def by_draw(posterior) -> DeepGP:
    """The draws of all chains along one axis."""
    return jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), posterior.model)


def whitened(model: DeepGP, X):
    """`A = Lz^-1 Kzx` of a draw, dense."""
    layer = model.layers[0]
    Kzz = layer.kernel(layer.Z, layer.Z) + layer.jitter * layer.kernel.variance * jnp.eye(NUM_INDUCING)
    return jnp.linalg.solve(jnp.linalg.cholesky(Kzz), layer.kernel(layer.Z, X))


def log_evidence(model: DeepGP, X, y, objective):
    """Log evidence of FITC, or the bound of Titsias (2009), of a draw's kernel and noise, dense."""
    A, noise = whitened(model, X), model.likelihood.noise_variance[0]
    residual = model.layers[0].kernel.diag(X) - jnp.sum(A * A, axis=0)
    diagonal = noise + (residual if objective == "fitc" else jnp.zeros_like(residual))
    covariance = A.T @ A + jnp.diag(diagonal)
    log_prob = jax.scipy.stats.multivariate_normal.logpdf(y[:, 0], jnp.zeros(len(y)), covariance)
    return log_prob - (0.5 * jnp.sum(residual) / noise if objective == "vfe" else 0.0)


def log_prior(model: DeepGP, num_rows: int):
    """Log prior of a draw's kernel and noise, as a density of their unconstrained values."""
    target = Target(model, num_rows, treatment={"Z": "fix"})
    return target.log_prior(model, without="u") + target.constrain(target.unconstrain(model))[1]


def test_the_chains_have_the_density_of_vfe_with_u_integrated_out(fitted):
    """Energies are the negative log density but for a constant; under FITC it would not be constant."""
    fit, X, y, _ = fitted
    draws = by_draw(fit.posterior)

    def spread(objective):
        log_joint = jax.lax.map(lambda draw: log_evidence(draw, X, y, objective) + log_prior(draw, len(y)), draws)
        return np.std(len(y) * fit.history.energy["draws"].ravel() + np.asarray(log_joint))

    assert spread("vfe") < 1e-4
    assert spread("fitc") > 0.3


def test_u_given_the_rest_is_its_closed_form(fitted):
    """Every draw of u, standardised by the optimal q(u) of its own kernel and noise, is N(0, I)."""
    fit, X, y, _ = fitted

    def standardised(draw):
        A, noise = whitened(draw, X), draw.likelihood.noise_variance[0]
        precision = jnp.eye(NUM_INDUCING) + A @ A.T / noise
        mean = jnp.linalg.solve(precision, A @ y / noise)
        return (jnp.linalg.cholesky(precision).T @ (draw.layers[0].V - mean))[:, 0]

    residuals = np.asarray(jax.lax.map(standardised, by_draw(fit.posterior)))
    error = len(residuals) ** -0.5  # the draws of u given the rest are independent
    np.testing.assert_allclose(residuals.mean(axis=0), 0.0, atol=4 * error)
    np.testing.assert_allclose(np.cov(residuals.T), np.eye(NUM_INDUCING), atol=4 * 2**0.5 * error)


def test_kernel_and_noise_vary_and_Z_does_not(fitted):
    model = fitted[0].posterior.model
    assert np.ptp(model.layers[0].Z, axis=(0, 1)).max() == 0.0
    assert model.layers[0].kernel.lengthscales.std() > 0.01
    assert model.likelihood.noise_variance.std() > 0.01


def test_the_chains_agree_and_say_where_they_are(fitted):
    fit, X, _, said = fitted
    assert np.median(fit.posterior.predictive_rhat(X[:20], jr.key(3))) < 1.02
    assert list(dict.fromkeys(phase for phase, *_ in said)) == ["optimise", "warm-up", "draws"]
    assert set(fit.history.energy) == {"optimise", "warm-up", "draws"}


def test_classes_are_sampled_without_a_closed_form_and_with_the_density_of_vfe():
    X, y = regression(60)
    labels = (y > 0).astype(float)
    model = init_deep_gp(X, Bernoulli(), jr.key(0), num_inducing=5)
    plan = NutsPlan(warm_up=40, num_draws=40, max_doublings=5)
    fitted = fit_mcmc_svgp(model, X, labels, jr.key(1), plan=plan, optimisation=OPTIMISATION)
    probability = np.asarray(fitted.posterior.predict(X, jr.key(2)).mean)
    assert np.mean((probability > 0.5) == labels) > 0.8

    def energy(draw, objective):
        target = Target(draw, 60, objective=objective, treatment={"Z": "fix"})
        return -target.log_joint(target.unconstrain(draw), target.all_rows(X, labels), jr.key(0)) / 60

    found = fitted.history.energy["draws"].ravel()
    vfe, fitc = (
        np.asarray(jax.lax.map(lambda draw, name=name: energy(draw, name), by_draw(fitted.posterior)))
        for name in ("vfe", "fitc")
    )
    np.testing.assert_allclose(found, vfe, rtol=1e-8)
    assert np.abs(found - fitc).max() > 1e-3


def test_too_many_rows_are_refused():
    model = init_deep_gp(np.zeros((10, 1)) + np.arange(10)[:, None], Bernoulli(), jr.key(0), num_inducing=2)
    with pytest.raises(ValueError, match=r"at most 100,000 rows .*, got 100,001. Use `method=\"bsgp\"`"):
        fit_mcmc_svgp(model, np.zeros((MAX_ROWS + 1, 1)), np.zeros((MAX_ROWS + 1, 1)), jr.key(0))
