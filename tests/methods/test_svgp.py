"""svgp and fitc-svgp: where q has converged, they are the closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import optimal_u, regression, shallow

from bsgp.inference.host_loop import Clock
from bsgp.inference.objectives import OBJECTIVES, expected_log_marginal
from bsgp.inference.target import Target
from bsgp.methods.svgp import (
    VariationalPlan,
    elbo,
    fit_variational,
    gaussian_model,
    kl_to_prior,
    start,
)
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.numerics import Marginals
from bsgp.models.parameters import flat_priors

U_ONLY = {"u": "optimise", "Z": "fix", "theta": "fix", "noise": "fix"}


def with_gaussian_V(model: DeepGP, mean, covariance) -> DeepGP:
    """`mean` and `covariance` are those of u; V is the whitened one."""
    layer = model.layers[0]
    Lz = jnp.linalg.cholesky(layer.kernel(layer.Z, layer.Z) + 1e-10 * jnp.eye(layer.Z.shape[0]))
    V = jnp.linalg.solve(Lz, mean)
    half = jnp.linalg.solve(Lz, jnp.linalg.cholesky(covariance + 1e-12 * jnp.eye(len(covariance))))
    root = jnp.linalg.qr(half.T, mode="r").T
    new = eqx.tree_at(lambda m: m.layers[0].V, model, V)
    is_none = {"is_leaf": lambda leaf: leaf is None}
    return eqx.tree_at(lambda m: m.layers[0].root, new, root[None], **is_none)


def exact_log_evidence(model: DeepGP, X, y, objective: str) -> float:
    """VFE's (Titsias, also the tighter one) or FITC's marginal likelihood of u's model, dense."""
    layer, noise = model.layers[0], float(model.likelihood.noise_variance[0])
    X = jnp.asarray(X)
    Kzz, Kzx = layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, X)
    Q = Kzx.T @ jnp.linalg.solve(Kzz, Kzx)
    left = layer.kernel.diag(X) - jnp.diag(Q)
    diagonal = noise + (left if objective == "fitc" else jnp.zeros_like(left))
    log_evidence = jax.scipy.stats.multivariate_normal.logpdf(y[:, 0], jnp.zeros(len(y)), Q + jnp.diag(diagonal))
    penalty = {"fitc": jnp.zeros_like(left), "vfe": left / noise, "tighter-vfe": jnp.log1p(left / noise)}[objective]
    return float(log_evidence - 0.5 * jnp.sum(penalty))


@pytest.mark.parametrize("objective", ["vfe", "fitc", "tighter-vfe"])
def test_the_optimal_q_closes_the_bound(objective):
    X, y = regression()
    model = shallow(np.linspace(-2.0, 2.0, 6)[:, None])
    best = with_gaussian_V(model, *optimal_u(model, X, y, objective))
    bound = elbo(best, Batch(jnp.asarray(X), jnp.asarray(y)), jr.key(0), len(X), OBJECTIVES[objective])
    assert float(bound) == pytest.approx(exact_log_evidence(model, X, y, objective), abs=1e-5)
    worse = eqx.tree_at(lambda m: m.layers[0].V, best, best.layers[0].V + 0.05)
    assert (
        float(elbo(worse, Batch(jnp.asarray(X), jnp.asarray(y)), jr.key(0), len(X), OBJECTIVES[objective]))
        < float(bound) - 0.01
    )


def test_minibatches_average_to_the_whole():
    X, y = regression(40)
    model = gaussian_model(*_target_and_start(X, y))
    whole = elbo(model, Batch(jnp.asarray(X), jnp.asarray(y)), jr.key(0), 40, OBJECTIVES["vfe"])
    parts = [
        elbo(model, Batch(jnp.asarray(X[i : i + 10]), jnp.asarray(y[i : i + 10])), jr.key(0), 40, OBJECTIVES["vfe"])
        for i in range(0, 40, 10)
    ]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-10)


def _target_and_start(X, y):
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.3)), jr.key(0), num_inducing=6)
    target = Target(model, len(X), priors=flat_priors(model), objective="vfe", treatment=U_ONLY)
    return target, start(target)


def test_svgp_with_an_inducing_point_at_every_row_is_the_exact_gp():
    X, y = regression(25)
    model = shallow(X, lengthscale=0.5)
    target = Target(model, 25, priors=flat_priors(model), objective="vfe", treatment=U_ONLY)
    fitted = fit_variational(target, X, y, jr.key(0), plan=VariationalPlan(num_steps=6_000, learning_rate=0.05))
    kernel, noise = model.layers[0].kernel, 0.2
    X_new = jnp.linspace(-2.2, 2.2, 15)[:, None]
    K = kernel(jnp.asarray(X), jnp.asarray(X)) + noise * jnp.eye(25)
    cross = kernel(jnp.asarray(X), X_new)
    mean = cross.T @ jnp.linalg.solve(K, jnp.asarray(y))
    variance = kernel.diag(X_new) - jnp.sum(cross * jnp.linalg.solve(K, cross), axis=0) + noise
    found = fitted.posterior.predict(X_new, jr.key(1))
    np.testing.assert_allclose(found.mean, mean, atol=2e-3)
    np.testing.assert_allclose(found.variance[:, 0], variance, rtol=5e-3)


def test_fitc_svgp_with_its_optimal_q_predicts_as_fitc_does():
    X, y = regression(60)
    model = shallow(np.linspace(-2.0, 2.0, 5)[:, None], lengthscale=0.5)
    target = Target(model, 60, priors=flat_priors(model), objective="fitc", treatment=U_ONLY)
    fitted = fit_variational(target, X, y, jr.key(0), plan=VariationalPlan(num_steps=4_000, learning_rate=0.05))
    mean, covariance = optimal_u(model, X, y, "fitc")
    layer = model.layers[0]
    X_new = jnp.linspace(-2.2, 2.2, 15)[:, None]
    A = jnp.linalg.solve(layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, X_new))
    left = layer.kernel.diag(X_new) - jnp.sum(layer.kernel(layer.Z, X_new) * A, axis=0)
    variance = left + jnp.sum(A * (covariance @ A), axis=0) + 0.2
    found = fitted.posterior.predict(X_new, jr.key(1))
    np.testing.assert_allclose(found.mean, A.T @ mean, atol=2e-3)
    np.testing.assert_allclose(found.variance[:, 0], variance, rtol=2e-3)


def test_kl_against_samples():
    rng = np.random.default_rng(0)
    V = jnp.asarray(rng.standard_normal((3, 2)))
    root = jnp.asarray(np.tril(0.3 * rng.standard_normal((2, 3, 3))) + 0.5 * np.eye(3))
    noise = rng.standard_normal((200_000, 2, 3))
    drawn = np.asarray(V).T[None] + np.einsum("pij,spj->spi", np.asarray(root), noise)
    log_q = -0.5 * (noise**2).sum(axis=(1, 2)) - np.log(np.diagonal(np.asarray(root), axis1=1, axis2=2)).sum()
    estimate = np.mean(log_q + 0.5 * (drawn**2).sum(axis=(1, 2)))
    assert float(kl_to_prior(V, root)) == pytest.approx(estimate, abs=0.02)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Poisson(), Categorical(3), Gaussian(jnp.full(1, 0.3))])
def test_the_nested_expectation_against_samples(likelihood):
    num_latent = likelihood.num_latent(1)
    rng = np.random.default_rng(1)
    g = Marginals(jnp.asarray(0.5 * rng.standard_normal((4, num_latent))), jnp.full((4, num_latent), 0.4))
    left, y = jnp.asarray([0.1, 0.5, 0.9, 0.3]), jnp.asarray([[0.0], [1.0], [1.0], [0.0]])
    found = expected_log_marginal(likelihood, y, g, left)
    noise = jnp.asarray(rng.standard_normal((2_000, 4, num_latent)))
    at = (g.mean[None] + jnp.sqrt(g.variance)[None] * noise).reshape(-1, num_latent)  # every draw as rows of its own
    inner = jnp.broadcast_to(jnp.tile(left, 2_000)[:, None], at.shape)
    each = np.asarray(likelihood.log_expected_prob(jnp.tile(y, (2_000, 1)), Marginals(at, inner)))
    np.testing.assert_allclose(found, each.reshape(2_000, 4, 1).mean(axis=0), atol=0.06)


@pytest.mark.slow
def test_two_layers_of_a_classifier_learn():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (120, 2))
    y = (X[:, :1] * X[:, 1:] > 0).astype(float)
    model = init_deep_gp(X, Bernoulli(), jr.key(0), num_inducing=16, depth=2)
    target = Target(model, 120, priors=flat_priors(model), objective="vfe", treatment={b: "optimise" for b in U_ONLY})
    fitted = fit_variational(target, X, y, jr.key(1), plan=VariationalPlan(num_steps=1_500))
    assert fitted.posterior.passes == 100
    probability = fitted.posterior.predict(X, jr.key(2)).mean
    assert np.mean((probability > 0.5) == y) > 0.93
    assert fitted.history.energy["optimise"].shape == (1, 1_500)


def test_time_is_up():
    X, y = regression(30)
    target, _ = _target_and_start(X, y)
    plan = VariationalPlan(num_steps=1_000_000)
    fitted = fit_variational(target, X, y, jr.key(0), plan=plan, clock=Clock(0.01))
    assert fitted.history.interrupted
    assert fitted.history.evaluations < 1_000_000


def test_it_says_where_it_is():
    X, y = regression(30)
    target, _ = _target_and_start(X, y)
    said = []
    plan = VariationalPlan(num_steps=400)
    fit_variational(target, X, y, jr.key(0), plan=plan, report=lambda *at: said.append(at))
    assert [at[:3] for at in said] == [("optimise", 200, 400), ("optimise", 400, 400)]
    assert said[1][3] < said[0][3]
