import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from numpy.testing import assert_allclose

from bsgp.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Poisson,
    StudentT,
    expected_log_prob_by_quadrature,
    log_expected_prob_by_quadrature,
)
from bsgp.numerics import Marginals, gauss_hermite

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
    """Integral over f of integrand(f) N(f; mean, variance), by a very fine trapezoidal rule."""
    z = np.linspace(-12.0, 12.0, 200_001)
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
        z = jnp.linspace(-10.0, 10.0, 40_001)
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


@pytest.mark.parametrize(("likelihood", "y"), SCALAR, ids=IDS)
def test_predicted_moments_and_distribution_are_those_of_samples(likelihood, y, getkey):
    f = MEAN + jnp.sqrt(VARIANCE) * jax.random.normal(getkey(), (4, 200_000))
    samples = np.asarray(likelihood.sample(getkey(), f[:, :, None])[:, :, 0])
    predicted = likelihood.predict(F)
    error = samples.std(axis=1, keepdims=True) / 200_000**0.5
    assert (np.abs(samples.mean(axis=1, keepdims=True) - predicted.mean) < 5 * error).all()
    if likelihood.__class__ is not StudentT:  # whose fourth moment is infinite: its sample variance has no error bar
        assert_allclose(samples.var(axis=1, keepdims=True), predicted.variance, rtol=0.1)
    if isinstance(likelihood, Bernoulli):
        with pytest.raises(ValueError, match="ordered"):
            likelihood.cdf(y, F)
    else:
        below = (samples <= np.asarray(y)).mean(axis=1, keepdims=True)
        assert_allclose(likelihood.cdf(y, F), below, atol=5 * 0.5 / 200_000**0.5)


def test_categorical_integrals_are_those_of_monte_carlo(getkey):
    likelihood = Categorical(3)
    f = Marginals(jnp.asarray([[0.5, -0.3, 1.0], [2.0, 0.0, -2.0]]), jnp.asarray([[0.5, 1.0, 0.2], [0.1, 2.0, 0.3]]))
    latent = f.mean[:, None] + jnp.sqrt(f.variance)[:, None] * jax.random.normal(getkey(), (2, 400_000, 3))
    labels = np.asarray(likelihood.sample(getkey(), latent))[:, :, 0]
    frequencies = np.stack([(labels == c).mean(axis=1) for c in range(3)], axis=1)
    probabilities = likelihood.predict(f).mean
    assert_allclose(probabilities, frequencies, atol=4 * 0.5 / 400_000**0.5)
    assert_allclose(np.sum(probabilities, axis=1), 1.0)
    for label in range(3):
        y = jnp.full((2, 1), float(label))
        assert_allclose(likelihood.log_expected_prob(y, f), np.log(probabilities[:, label : label + 1]), rtol=1e-9)
        several = latent[:, :4000].reshape(-1, 3)
        logs = likelihood.log_prob(jnp.full((several.shape[0], 1), float(label)), several).reshape(2, -1)
        error = np.asarray(logs).std(axis=1) / 4000**0.5
        assert (np.abs(likelihood.expected_log_prob(y, f)[:, 0] - logs.mean(axis=1)) < 4 * error + 0.01).all()


def test_two_classes_are_the_probit_with_twice_the_noise():
    f = Marginals(jnp.concatenate([-MEAN, MEAN], axis=1) / 2**0.5, jnp.concatenate([VARIANCE, VARIANCE], axis=1))
    got = Categorical(2).log_expected_prob(jnp.ones_like(MEAN), f)
    assert_allclose(got, Bernoulli().log_expected_prob(jnp.ones_like(MEAN), F), rtol=1e-6)


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
