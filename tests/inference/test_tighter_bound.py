"""The tighter bound lies between VFE and the evidence, and is VFE where nothing is left unexplained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal
from numpy.testing import assert_allclose
from problems import regression, shallow, tiny_target

from bsgp import Batch, Target
from bsgp.inference.anchor import Anchor
from bsgp.inference.objectives import OBJECTIVES, _expected_over_u
from bsgp.inference.tighter_bound import tighter_row_terms
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.likelihoods.student_t import StudentT
from bsgp.models.linalg.numerics import Marginals, gauss_hermite

TIGHTER, VFE = OBJECTIVES["tighter-vfe"], OBJECTIVES["vfe"]


def integrated(model, X, y, objective):
    """The evidence with u integrated out, under an objective."""
    return Anchor(jnp.asarray(X), jnp.asarray(y)).log_evidence(model, len(X), objective)


def exact_evidence(model, X, y):
    kernel, noise = model.layers[0].kernel, model.likelihood.noise_variance[0]
    covariance = kernel(jnp.asarray(X), jnp.asarray(X)) + noise * jnp.eye(len(X))
    return multivariate_normal.logpdf(jnp.asarray(y[:, 0]), jnp.zeros(len(X)), covariance)


@pytest.mark.parametrize(("lengthscale", "noise"), [(0.2, 0.2), (0.7, 0.01), (0.7, 2.0), (2.0, 0.2)])
def test_it_lies_between_vfe_and_the_evidence(lengthscale, noise):
    X, y = regression(30)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None], lengthscale=lengthscale, noise=noise)
    vfe, tighter = (float(integrated(model, X, y, one)) for one in (VFE, TIGHTER))
    assert vfe < tighter < float(exact_evidence(model, X, y))


def test_it_is_vfe_and_the_evidence_if_inducing_points_are_the_rows():
    X, y = regression(12)
    model = shallow(X, lengthscale=0.3)
    exact = exact_evidence(model, X, y)
    assert_allclose(integrated(model, X, y, TIGHTER), exact, rtol=1e-6)
    assert_allclose(integrated(model, X, y, VFE), exact, rtol=1e-6)


def test_the_row_terms_integrated_over_u_are_the_collapsed_bound():
    """The log joint is quadratic in V, so its integral follows from its mode and its curvature."""
    X, y = regression(20)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None])
    batch = Batch(jnp.asarray(X), jnp.asarray(y))

    @jax.jit
    def log_joint(V):
        at = eqx.tree_at(lambda tree: tree.layers[0].V, model, V[:, None])
        rows = TIGHTER.row_terms(at.likelihood)(batch.y, at.propagate(batch.X, jr.key(0)))
        return jnp.sum(rows) - 0.5 * jnp.sum(V**2 + jnp.log(2.0 * jnp.pi))

    curvature = -jax.jit(jax.hessian(log_joint))(jnp.zeros(4))
    mode = jnp.linalg.solve(curvature, jax.grad(log_joint)(jnp.zeros(4)))
    integral = log_joint(mode) + 0.5 * (4 * jnp.log(2.0 * jnp.pi) - jnp.linalg.slogdet(curvature)[1])
    assert_allclose(integrated(model, X, y, TIGHTER), integral, rtol=1e-10)


def test_its_gradient_with_u_integrated_out_is_that_of_autodiff():
    target, X, y = tiny_target(objective="tighter-vfe")

    def dense(model):
        A, left = model.layers[0].whitened(jnp.asarray(X))
        A, noise = jnp.concatenate(A), model.likelihood.noise_variance[0]
        marginal = multivariate_normal.logpdf(
            jnp.asarray(y[:, 0]), jnp.zeros(len(X)), A.T @ A + noise * jnp.eye(len(X))
        )
        return marginal - 0.5 * jnp.sum(jnp.log1p(left / noise))

    got = jax.jit(jax.grad(lambda model: integrated(model, X, y, TIGHTER)))(target.model)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(jax.grad(dense))(target.model)), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8 * max(1.0, float(jnp.abs(other).max())))


COUNTED = [(Poisson(), (0.0, 3.0)), (Bernoulli("probit"), (0.0, 1.0)), (Bernoulli("logit"), (0.0, 1.0))]
IDS = ["poisson", "probit", "logit"]


@pytest.mark.parametrize(("likelihood", "labels"), COUNTED, ids=IDS)
def test_other_likelihoods_lie_between_vfe_and_the_evidence(likelihood, labels, rng):
    """Two rows with correlated f: the evidence given u by quadrature over both."""
    num, (nodes, weights) = 64, gauss_hermite(60)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(1, -1, 2)
    log_weight = jnp.log(jnp.asarray(np.outer(weights, weights).reshape(1, -1) + 1e-300))
    correlation = np.repeat([-0.9, 0.0, 0.5, 0.999], num // 4)[:, None]
    mean, sd, y = rng.uniform(-3, 2, (num, 2)), rng.uniform(0.2, 1.5, (num, 2)), rng.choice(labels, (num, 2))
    second = correlation * z[:, :, 0] + np.sqrt(1.0 - correlation**2) * z[:, :, 1]
    f = mean[:, None] + sd[:, None] * np.stack([np.broadcast_to(z[:, :, 0], second.shape), second], axis=-1)
    each = likelihood.log_prob(jnp.broadcast_to(jnp.asarray(y)[:, None], f.shape), jnp.asarray(f))
    exact = jax.nn.logsumexp(log_weight + jnp.sum(each, axis=2), axis=1)
    rows, at = jnp.asarray(y.reshape(-1, 1)), Marginals(*(jnp.asarray(one.reshape(-1, 1)) for one in (mean, sd**2)))
    vfe, tighter = (
        np.asarray(one).reshape(num, 2).sum(axis=1)
        for one in (likelihood.expected_log_prob(rows, at), tighter_row_terms(likelihood, rows, at))
    )
    assert (vfe <= tighter).all()
    assert (tighter <= exact + 1e-6).all()
    assert (tighter - vfe).max() > 0.01


@pytest.mark.parametrize(("likelihood", "labels"), COUNTED, ids=IDS)
def test_the_line_lies_below_the_expected_log_likelihood_at_every_smaller_variance(likelihood, labels):
    """What the bound rests on: `a - b s / 2 <= E log p` for s from 0 to r, on a grid of means and variances."""
    mean, r = (one.ravel()[:, None] for one in np.meshgrid(np.linspace(-6, 4, 41), [0.01, 0.1, 0.5, 1.0, 3.0, 9.0]))
    for label in labels:
        y, at = jnp.full(mean.shape, label), Marginals(jnp.asarray(mean), jnp.asarray(r))
        expected = likelihood.expected_log_prob(y, at)
        gain = tighter_row_terms(likelihood, y, at) - expected  # (d - log(1 + d)) / 2 of the drop d, which grows with d
        drop = _drop_of(gain)
        for share in np.linspace(0.0, 1.0, 26):
            there = likelihood.expected_log_prob(y, Marginals(at.mean, share * at.variance))
            line = expected + 0.5 * drop * (1.0 - share)
            # 32 quadrature nodes are exact to about 1e-4 where f is widely spread
            assert (line <= there + 1e-3 * (1.0 + jnp.abs(there))).all()


def _drop_of(gain):
    """The d whose `(d - log(1 + d)) / 2` is the gain, by bisection."""
    low, high = jnp.zeros_like(gain), 4.0 * gain + 10.0 * jnp.sqrt(gain) + 1e-6
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = 0.5 * (middle - jnp.log1p(middle)) > gain
        low, high = jnp.where(above, low, middle), jnp.where(above, middle, high)
    return 0.5 * (low + high)


def test_its_expectation_under_a_gaussian_q_is_that_of_quadrature(rng):
    likelihood = Gaussian(jnp.asarray([0.3]))
    y, mean = jnp.asarray(rng.standard_normal((5, 1))), jnp.asarray(rng.standard_normal((5, 1)))
    left, spread = jnp.asarray(rng.uniform(0.1, 1.0, 5)), jnp.asarray(rng.uniform(0.1, 1.0, (5, 1)))
    closed = TIGHTER.expected_row_terms(likelihood, y, mean, left, spread)
    by_quadrature = _expected_over_u(TIGHTER.row_terms(likelihood), y, Marginals(mean, spread), left)
    assert_allclose(closed, by_quadrature, rtol=1e-10)
    counts = jnp.asarray([[0.0], [1.0], [3.0], [2.0], [0.0]])
    found = TIGHTER.expected_row_terms(Poisson(), counts, mean, left, spread)
    assert (found > VFE.expected_row_terms(Poisson(), counts, mean, left, spread)).all()


@pytest.mark.parametrize("likelihood", [StudentT(jnp.ones(1)), Categorical(3)], ids=["student", "classes"])
def test_likelihoods_without_a_known_bound_are_refused_in_one_line(likelihood):
    model = eqx.tree_at(lambda tree: tree.likelihood, shallow(np.zeros((3, 1))), likelihood)
    with pytest.raises(ValueError, match=r"tighter-vfe must go with .* Use vfe") as refused:
        Target(model, 10, objective="tighter-vfe")
    assert "\n" not in str(refused.value)
