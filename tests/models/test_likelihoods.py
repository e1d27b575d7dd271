import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from numpy.testing import assert_allclose

from bsgp.models.likelihoods.base import expected_log_prob_by_quadrature, log_expected_prob_by_quadrature
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.likelihoods.student_t import StudentT
from bsgp.models.linalg.numerics import Marginals, gauss_hermite

MEAN = jnp.asarray([[0.3], [-1.2], [2.0], [0.0]])
VARIANCE = jnp.asarray([[0.5], [0.01], [1.5], [2.0]])
F = Marginals(MEAN, VARIANCE)
REAL = jnp.asarray([[0.5], [-3.0], [1.0], [0.2]])
BINARY = jnp.asarray([[1.0], [0.0], [0.0], [1.0]])
COUNTS = jnp.asarray([[2.0], [0.0], [11.0], [1.0]])
SCALAR = [
    (Gaussian(jnp.asarray([0.3])), REAL),
    (StudentT(jnp.asarray([0.4])), REAL),
    (StudentT(jnp.asarray([0.05]), 3.0), REAL),
    (Bernoulli("probit"), BINARY),
    (Bernoulli("logit"), BINARY),
    (Poisson(), COUNTS),
]
IDS = ["gaussian", "student", "narrow student", "probit", "logit", "poisson"]


def on_a_grid(integrand):
    """Integral over f of integrand(f) N(f; mean, variance), by a fine trapezoidal rule."""
    z = np.linspace(-12.0, 12.0, 20_001)
    f = MEAN + jnp.sqrt(VARIANCE) * z[None, :]
    return np.trapezoid(np.asarray(integrand(f)) * st.norm.pdf(z), z, axis=1)[:, None]


@pytest.mark.parametrize(("likelihood", "y"), SCALAR, ids=IDS)
def test_both_integrals_are_those_of_a_fine_grid(likelihood, y):
    dense = np.log(on_a_grid(lambda f: jnp.exp(likelihood.log_prob(y, f))))
    assert_allclose(likelihood.log_expected_prob(y, F), dense, rtol=2e-5, atol=1e-7)
    expectation = on_a_grid(lambda f: likelihood.log_prob(y, f))
    assert_allclose(likelihood.expected_log_prob(y, F), expectation, rtol=2e-5)
    assert (likelihood.log_expected_prob(y, F) > likelihood.expected_log_prob(y, F)).all()  # Jensen


@pytest.mark.parametrize(("likelihood", "y"), SCALAR, ids=IDS)
def test_gradients_of_the_fitc_integral_are_those_of_the_grid(likelihood, y):
    """Also where quadrature nodes move with the marginals."""

    def on_grid(mean):
        z = jnp.linspace(-10.0, 10.0, 8_001)
        f = mean + jnp.sqrt(VARIANCE) * z[None, :]
        weights = jnp.exp(-0.5 * z**2)
        return jnp.sum(jnp.log(jnp.sum(jnp.exp(likelihood.log_prob(y, f)) * weights[None, :], axis=1)))

    got = jax.grad(lambda mean: jnp.sum(likelihood.log_expected_prob(y, Marginals(mean, VARIANCE))))(MEAN)
    assert_allclose(got, jax.grad(on_grid)(MEAN), rtol=1e-3, atol=1e-6)


def test_probit_closed_form_is_100_point_quadrature(rng):
    f = Marginals(jnp.asarray(rng.normal(0, 2, (50, 1))), jnp.asarray(rng.uniform(0.01, 3, (50, 1))))
    y = jnp.asarray(rng.integers(0, 2, (50, 1)).astype(float))
    nodes, weights = gauss_hermite(100)
    at = f.mean + jnp.sqrt(f.variance) * nodes[None, :]
    expected = np.log(np.sum(weights * np.exp(Bernoulli().log_prob(y, at)), axis=1, keepdims=True))
    assert_allclose(Bernoulli().log_expected_prob(y, f), expected, rtol=1e-9)


def test_closed_forms_are_the_default_quadrature():
    gaussian, poisson = SCALAR[0][0], SCALAR[5][0]
    assert_allclose(gaussian.expected_log_prob(REAL, F), expected_log_prob_by_quadrature(gaussian, REAL, F), rtol=1e-9)
    assert_allclose(gaussian.log_expected_prob(REAL, F), log_expected_prob_by_quadrature(gaussian, REAL, F), rtol=1e-3)
    assert_allclose(
        poisson.expected_log_prob(COUNTS, F), expected_log_prob_by_quadrature(poisson, COUNTS, F), rtol=1e-9
    )


def test_large_counts_are_integrated_too():
    f = Marginals(jnp.asarray([[7.0]]), jnp.asarray([[4.0]]))
    y = jnp.asarray([[1500.0]])
    z = np.linspace(6.5, 8.5, 200_001)
    dense = np.trapezoid(st.poisson.pmf(1500, np.exp(z)) * st.norm.pdf(z, 7.0, 2.0), z)
    assert_allclose(Poisson().log_expected_prob(y, f), [[np.log(dense)]], rtol=1e-6)


CONDITIONALS = [
    lambda f: st.norm(f, 0.3**0.5),
    lambda f: st.t(4.0, f, 0.4),
    lambda f: st.t(3.0, f, 0.05),
    lambda f: st.bernoulli(st.norm.cdf(f)),
    lambda f: st.bernoulli(1.0 / (1.0 + np.exp(-f))),
    lambda f: st.poisson(np.exp(f)),
]
WITH_SCIPY = [(*case, conditional) for case, conditional in zip(SCALAR, CONDITIONALS, strict=True)]
"""Likelihood, targets, and SciPy's `p(y | f)`."""


@pytest.mark.parametrize(("likelihood", "y", "conditional"), WITH_SCIPY, ids=IDS)
def test_predicted_moments_and_distribution_are_integrals_of_scipys(likelihood, y, conditional):
    mean = on_a_grid(lambda f: conditional(np.asarray(f)).mean())
    square = on_a_grid(lambda f: conditional(np.asarray(f)).var() + conditional(np.asarray(f)).mean() ** 2)
    predicted = likelihood.predict(F)
    assert_allclose(predicted.mean, mean, rtol=1e-6)
    assert_allclose(predicted.variance, square - mean**2, rtol=1e-6)
    if isinstance(likelihood, Bernoulli):
        with pytest.raises(ValueError, match="ordered"):
            likelihood.cdf(y, F)
    else:
        below = on_a_grid(lambda f: conditional(np.asarray(f)).cdf(np.asarray(y)))
        # 32 nodes resolve the steep distribution function of a count only roughly
        assert_allclose(likelihood.cdf(y, F), below, atol=5e-3 if isinstance(likelihood, Poisson) else 1e-7)


@pytest.mark.parametrize(("likelihood", "y", "conditional"), WITH_SCIPY, ids=IDS)
def test_samples_follow_scipys_distribution(likelihood, y, conditional, getkey):
    num = 10_000
    samples = np.asarray(likelihood.sample(getkey(), jnp.broadcast_to(MEAN, (4, num))[:, :, None]))[:, :, 0]
    exact = conditional(np.asarray(MEAN))
    assert (np.abs(samples.mean(axis=1, keepdims=True) - exact.mean()) < 5 * exact.std() / num**0.5).all()
    for level in (0.1, 0.5, 0.9):
        edge = exact.ppf(level)
        assert_allclose((samples <= edge).mean(axis=1, keepdims=True), exact.cdf(edge), atol=5 * 0.5 / num**0.5)


def orthant_probability(mean, variance, label):
    """`P(f_c + e_c > f_j + e_j for both others)` of three independent Gaussians, as SciPy integrates it."""
    others = [index for index in range(3) if index != label]
    covariance = np.full((2, 2), 1.0 + variance[label]) + np.diag(1.0 + variance[others])
    return st.multivariate_normal(np.zeros(2), covariance).cdf(mean[label] - mean[others])


def test_categorical_integrals():
    likelihood = Categorical(3)
    mean, variance = np.array([[0.5, -0.3, 1.0], [2.0, 0.0, -2.0]]), np.array([[0.5, 1.0, 0.2], [0.1, 2.0, 0.3]])
    f = Marginals(jnp.asarray(mean), jnp.asarray(variance))
    exact = np.array([[orthant_probability(m, v, c) for c in range(3)] for m, v in zip(mean, variance, strict=True)])
    probabilities = likelihood.predict(f).mean
    assert_allclose(probabilities, exact, atol=1e-7)
    assert_allclose(np.sum(probabilities, axis=1), 1.0)
    nodes, weights = gauss_hermite(8)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes), axis=-1).reshape(-1, 3)
    grid_weights = np.prod(np.stack(np.meshgrid(weights, weights, weights), axis=-1).reshape(-1, 3), axis=1)
    at = (mean[:, None] + np.sqrt(variance)[:, None] * grid).reshape(-1, 3)
    log_probabilities = np.asarray(likelihood.log_probabilities(Marginals(jnp.asarray(at), jnp.zeros_like(at))))
    expected_logs = np.einsum("g,ngc->nc", grid_weights, log_probabilities.reshape(2, -1, 3))
    expected_log_prob = jax.jit(Categorical(3, num_lattice_points=1024).expected_log_prob)  # 64 points: 0.02 off
    for label in range(3):
        y = jnp.full((2, 1), float(label))
        assert_allclose(likelihood.log_expected_prob(y, f), np.log(exact[:, [label]]), atol=3e-5)
        assert_allclose(expected_log_prob(y, f), expected_logs[:, [label]], atol=0.002)


def test_categorical_samples_have_their_probabilities(getkey):
    num = 20_000
    latent = jnp.asarray([[0.5, -0.3, 1.0]])
    labels = np.asarray(Categorical(3).sample(getkey(), jnp.broadcast_to(latent, (num, 3))))
    frequencies = np.bincount(labels[:, 0].astype(int), minlength=3) / num
    exact = [orthant_probability(np.asarray(latent[0]), np.zeros(3), label) for label in range(3)]
    assert_allclose(frequencies, exact, atol=5 * 0.5 / num**0.5)


def test_two_classes_are_the_probit_with_twice_the_noise():
    f = Marginals(jnp.concatenate([-MEAN, MEAN], axis=1) / 2**0.5, jnp.concatenate([VARIANCE, VARIANCE], axis=1))
    got = Categorical(2).log_expected_prob(jnp.ones_like(MEAN), f)
    assert_allclose(got, Bernoulli().log_expected_prob(jnp.ones_like(MEAN), F), rtol=3e-5)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (Gaussian(jnp.ones(1)), np.full((5, 1), 3.0), "vary"),
        (Gaussian(jnp.ones(2)), np.ones((5, 1)), "2 columns"),
        (StudentT(jnp.ones(1)), np.full((5, 1), 3.0), "vary"),
        (Bernoulli(), np.array([[0.0], [2.0]]), "0 and 1"),
        (Bernoulli(), np.ones((4, 1)), "both classes"),
        (Categorical(3), np.array([[0.0], [3.0]]), "labels 0 to 2"),
        (Categorical(3), np.array([[0.5], [1.0]]), "labels 0 to 2"),
        (Categorical(3), np.ones((4, 1)), "at least two classes"),
        (Poisson(), np.array([[1.0], [-2.0]]), "counts"),
        (Poisson(), np.array([[1.0], [0.5]]), "counts"),
        (Poisson(), np.array([["a"], ["b"]]), "numbers"),
    ],
)
def test_impossible_targets_are_refused(likelihood, y, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check_targets(y)


@pytest.mark.parametrize(
    "make", [lambda: Bernoulli("cauchit"), lambda: Categorical(1), lambda: StudentT(jnp.ones(1), 2.0)]
)
def test_impossible_options_are_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()
