import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from numpy.testing import assert_allclose

from bsgp.models.likelihoods.base import expected_log_prob_by_quadrature, log_expected_prob_by_quadrature
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import AbstractCounts, NegativeBinomial, Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.likelihoods.heteroskedastic import RANGE_OF_SCALES, Heteroskedastic, heteroskedastic
from bsgp.models.likelihoods.mixture import GaussianMixture, gaussian_mixture
from bsgp.models.likelihoods.ordinal import Ordinal, ordinal
from bsgp.models.likelihoods.student_t import StudentT
from bsgp.models.linalg.numerics import Marginals, gauss_hermite

MEAN = jnp.asarray([[0.3], [-1.2], [2.0], [0.0]])
VARIANCE = jnp.asarray([[0.5], [0.01], [1.5], [2.0]])
F = Marginals(MEAN, VARIANCE)
REAL = jnp.asarray([[0.5], [-3.0], [1.0], [0.2]])
BINARY = jnp.asarray([[1.0], [0.0], [0.0], [1.0]])
LEVELS = jnp.asarray([[2.0], [1.0], [9.0], [4.0]])
COUNTS = jnp.asarray([[2.0], [0.0], [11.0], [1.0]])
SCALAR = [
    (Gaussian(jnp.asarray([0.3])), REAL),
    (StudentT(jnp.asarray([0.4])), REAL),
    (StudentT(jnp.asarray([0.05]), 3.0), REAL),
    (Bernoulli("probit"), BINARY),
    (Bernoulli("logit"), BINARY),
    (Poisson(), COUNTS),
    (Poisson(jnp.asarray([0.4])), COUNTS),
    (NegativeBinomial(jnp.asarray([2.0]), jnp.asarray([0.4])), COUNTS),
    (Ordinal((1.0, 2.0, 4.0, 9.0), jnp.asarray([-0.5]), jnp.asarray([0.7, 1.2])), LEVELS),
]
IDS = ["gaussian", "student", "narrow student", "probit", "logit", "poisson", "poisson rate", "negative", "ordinal"]


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


class OrderedLevels:
    """The ordinal likelihood of `SCALAR` at given f, by SciPy's normal distribution."""

    levels = np.asarray([1.0, 2.0, 4.0, 9.0])

    def __init__(self, f):
        cuts = np.asarray([-np.inf, -0.5, 0.2, 1.4, np.inf])
        self.probability = np.diff(st.norm.cdf(cuts - np.asarray(f)[..., None]), axis=-1)

    def mean(self):
        return self.probability @ self.levels

    def var(self):
        return self.probability @ self.levels**2 - self.mean() ** 2

    def std(self):
        return self.var() ** 0.5

    def cdf(self, y):
        return np.sum(self.probability * (self.levels <= np.asarray(y)[..., None]), axis=-1)

    def ppf(self, level):
        return self.levels[np.argmax(np.cumsum(self.probability, axis=-1) >= level, axis=-1)]


CONDITIONALS = [
    lambda f: st.norm(f, 0.3**0.5),
    lambda f: st.t(4.0, f, 0.4),
    lambda f: st.t(3.0, f, 0.05),
    lambda f: st.bernoulli(st.norm.cdf(f)),
    lambda f: st.bernoulli(1.0 / (1.0 + np.exp(-f))),
    lambda f: st.poisson(np.exp(f)),
    lambda f: st.poisson(np.exp(f + 0.4)),
    lambda f: st.nbinom(2.0, 2.0 / (2.0 + np.exp(f + 0.4))),
    lambda f: OrderedLevels(f),
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
        assert_allclose(likelihood.cdf(y, F), below, atol=1e-2 if isinstance(likelihood, AbstractCounts) else 1e-7)


@pytest.mark.parametrize(("likelihood", "y", "conditional"), WITH_SCIPY, ids=IDS)
def test_the_parts_of_the_variance_are_integrals_of_scipys_moments(likelihood, y, conditional):
    mean = on_a_grid(lambda f: conditional(np.asarray(f)).mean())
    epistemic = on_a_grid(lambda f: (conditional(np.asarray(f)).mean() - mean) ** 2)
    aleatoric = on_a_grid(lambda f: conditional(np.asarray(f)).var())
    parts = likelihood.variance_parts(F)
    assert_allclose(parts.epistemic, epistemic, rtol=1e-4)
    assert_allclose(parts.aleatoric, aleatoric, rtol=1e-4)
    assert_allclose(parts.epistemic + parts.aleatoric, likelihood.predict(F).variance, rtol=1e-6)


SEVERAL_LATENT = [heteroskedastic(2, jnp.float64), gaussian_mixture(2, jnp.float64), Categorical(3, 512)]


@pytest.mark.parametrize("likelihood", SEVERAL_LATENT, ids=lambda one: type(one).__name__)
def test_the_parts_of_the_variance_with_several_latent_functions(likelihood, rng):
    """Against random latent values, at each of which `predict` without variance gives the moments of y."""
    num, num_latent = 5_000, likelihood.num_latent(2)
    mean, variance = rng.standard_normal((2, num_latent)), rng.uniform(0.1, 0.6, (2, num_latent))
    if isinstance(likelihood, GaussianMixture):  # widths and weights are functions of the conditional means
        variance.reshape(2, 2, -1)[:, :, 1 + likelihood.num_components :] = 0.0
    f = Marginals(jnp.asarray(mean), jnp.asarray(variance))
    at = mean + np.sqrt(variance) * rng.standard_normal((num, 2, num_latent))
    rows = jnp.asarray(at.reshape(2 * num, num_latent))
    given = [np.asarray(one).reshape(num, 2, -1) for one in likelihood.predict(Marginals(rows, jnp.zeros_like(rows)))]
    parts = likelihood.variance_parts(f)
    assert_allclose(parts.epistemic, given[0].var(axis=0), rtol=0.1, atol=1e-3)
    assert_allclose(parts.aleatoric, given[1].mean(axis=0), rtol=0.06)
    assert_allclose(parts.epistemic + parts.aleatoric, likelihood.predict(f).variance, rtol=5e-3)


def test_predictors_are_what_the_mean_of_y_follows(rng):
    f = Marginals(jnp.asarray(rng.standard_normal((4, 3))), jnp.asarray(rng.uniform(0.1, 3.0, (4, 3))))
    classes = Categorical(3).predictors(f)
    exact = Categorical(3, num_lattice_points=512)
    assert_allclose(classes.mean, exact.predict(f).mean, atol=0.03)
    assert_allclose(classes.variance, exact.variance_parts(f).epistemic, atol=0.02)
    two = heteroskedastic(1, jnp.float64)
    f = Marginals(MEAN * jnp.ones((1, 2)), VARIANCE * jnp.ones((1, 2)))
    assert_allclose(two.predictors(f).variance, VARIANCE)  # the width of the noise does not move the mean
    assert_allclose(Poisson().predictors(F).mean, MEAN)


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
        (NegativeBinomial(jnp.ones(1)), np.array([[1.0], [0.5]]), "counts"),
        (Ordinal((1.0, 2.0, 3.0), jnp.zeros(1), jnp.ones(1)), np.array([[1.0], [2.5]]), "levels"),
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


# -- more latent functions than outputs, and cut points -----------------------------------------------------------


def heteroskedastic_example():
    return Heteroskedastic(jnp.asarray([0.3]), jnp.asarray([0.8]))


def mixture_example():
    start = gaussian_mixture(1, jnp.float64)
    return eqx.tree_at(
        lambda one: (one.log_widths, one.weights, one.width_amplitude),
        start,
        (jnp.asarray([[-1.0, 0.0, 0.5, -0.5, 0.2]]), jnp.asarray([[0.5, 2.0, 0.1, 1.0, 0.7]]), jnp.asarray([0.6])),
    )


LATENT = {"heteroskedastic": heteroskedastic_example, "mixture": mixture_example}


def random_marginals(likelihood, rng, num_rows=6):
    num_latent = likelihood.num_latent(1)
    mean, variance = rng.normal(0.0, 0.7, (num_rows, num_latent)), rng.uniform(0.05, 0.6, (num_rows, num_latent))
    return Marginals(jnp.asarray(mean), jnp.asarray(variance))


def integrated_over(likelihood, f, rng, num=60_000):
    """Draws of the latent functions `[num N L]` that the likelihood integrates over."""
    draws = np.asarray(f.mean) + np.sqrt(f.variance) * rng.standard_normal((num, *f.mean.shape))
    if isinstance(likelihood, GaussianMixture):  # widths and weights follow the conditional means
        K = likelihood.num_components
        draws[..., 1 + K :] = np.asarray(f.mean)[:, 1 + K :]
    return jnp.asarray(draws)


@pytest.mark.parametrize("kind", LATENT)
def test_integrals_over_several_latent_functions_are_those_of_monte_carlo(kind, rng):
    likelihood = LATENT[kind]()
    f, y = random_marginals(likelihood, rng), jnp.asarray(rng.normal(0.0, 1.0, (6, 1)))
    draws = integrated_over(likelihood, f, rng)
    density = np.exp(jax.lax.map(lambda one: likelihood.log_prob(y, one), draws, batch_size=10_000))
    error = 5 * density.std(axis=0) / len(density) ** 0.5
    assert (np.abs(np.exp(likelihood.log_expected_prob(y, f)) - density.mean(axis=0)) < error).all()
    at = jax.lax.map(lambda one: likelihood.predict(Marginals(one, 0.0 * one)), draws, batch_size=10_000)
    mean, variance = likelihood.predict(f)
    assert_allclose(mean, at.mean.mean(axis=0), atol=0.01)
    assert_allclose(variance, at.variance.mean(axis=0) + at.mean.var(axis=0), rtol=0.02)
    below = jax.lax.map(lambda one: likelihood.cdf(y, Marginals(one, 0.0 * one)), draws, batch_size=10_000)
    assert_allclose(likelihood.cdf(y, f), below.mean(axis=0), atol=0.006)


@pytest.mark.parametrize("kind", LATENT)
def test_the_vfe_integral_over_several_latent_functions_is_that_of_monte_carlo(kind, rng):
    likelihood = LATENT[kind]()
    f, y = random_marginals(likelihood, rng), jnp.asarray(rng.normal(0.0, 1.0, (6, 1)))
    draws = integrated_over(likelihood, f, rng)
    logs = jax.lax.map(lambda one: likelihood.log_prob(y, one), draws, batch_size=10_000)
    rough = 0.06 if kind == "mixture" else 0.0  # 64 points in 6 dimensions
    error = 5 * logs.std(axis=0) / len(logs) ** 0.5 + rough
    assert (np.abs(likelihood.expected_log_prob(y, f) - logs.mean(axis=0)) < error).all()
    assert (likelihood.log_expected_prob(y, f) > likelihood.expected_log_prob(y, f)).all()


@pytest.mark.parametrize("kind", LATENT)
def test_density_distribution_and_draws_of_varying_noise_belong_together(kind, rng, getkey):
    likelihood = LATENT[kind]()
    f = random_marginals(likelihood, rng, num_rows=1)
    grid = jnp.linspace(-12.0, 12.0, 4_001)[:, None]
    wide = Marginals(*(jnp.broadcast_to(one, (4_001, one.shape[1])) for one in f))
    density = np.exp(likelihood.log_expected_prob(grid, wide))[:, 0]
    spacing = float(grid[1, 0] - grid[0, 0])
    assert_allclose(np.sum(density) * spacing, 1.0, rtol=1e-6)
    assert_allclose(np.cumsum(density) * spacing, likelihood.cdf(grid + 0.5 * spacing, wide)[:, 0], atol=1e-3)
    assert_allclose(np.sum(density * grid[:, 0]) * spacing, likelihood.predict(f).mean[0, 0], atol=1e-6)
    at = jnp.broadcast_to(f.mean, (20_000, f.mean.shape[1]))
    drawn = np.sort(np.asarray(likelihood.sample(getkey(), at))[:, 0])
    exact = likelihood.cdf(jnp.asarray(drawn[:, None]), Marginals(at, jnp.zeros_like(at)))[:, 0]
    assert np.max(np.abs(exact - (np.arange(20_000) + 0.5) / 20_000)) < 2.0 / 20_000**0.5


def test_scales_of_noise_stay_within_their_range():
    """However far a latent function goes, no scale is more than `RANGE_OF_SCALES` times another."""
    likelihood = heteroskedastic_example()
    far = jnp.asarray([[0.0, -1e6], [0.0, 1e6]])
    scale = jnp.sqrt(likelihood.predict(Marginals(far, jnp.zeros_like(far))).variance[:, 0])
    assert_allclose(scale[1] / scale[0], RANGE_OF_SCALES, rtol=1e-6)


def test_a_constant_mixture_is_the_gaussian():
    start = gaussian_mixture(1, jnp.float64)
    flat = eqx.tree_at(lambda one: one.locations, start, jnp.zeros_like(start.locations))
    f = Marginals(jnp.zeros((4, 16)).at[:, 0].set(MEAN[:, 0]), jnp.zeros((4, 16)).at[:, 0].set(VARIANCE[:, 0]))
    same = Gaussian(jnp.square(start.scale))
    assert_allclose(flat.log_expected_prob(REAL, f), same.log_expected_prob(REAL, F), rtol=1e-10)


def test_cuts_start_at_the_shares_of_the_levels():
    y = np.repeat([1.0, 2.0, 5.0], [20, 50, 30])[:, None]
    start = ordinal(y, jnp.float64)
    probabilities = np.exp(start.log_probabilities(Marginals(jnp.zeros((1, 1)), jnp.zeros((1, 1)))))[0, 0]
    assert_allclose(probabilities, [0.2, 0.5, 0.3], rtol=1e-6)
    assert start.levels == (1.0, 2.0, 5.0)


@pytest.mark.parametrize("far", [-40.0, 40.0])
def test_levels_far_from_f_keep_a_finite_slope(far):
    likelihood = SCALAR[-1][0]
    f = jnp.full((4, 1), far)
    slope = jax.grad(lambda f: jnp.sum(likelihood.log_prob(LEVELS, f)))(f)
    assert np.isfinite(slope).all()
    assert np.isfinite(likelihood.log_prob(LEVELS, f)).all()


@pytest.mark.parametrize(
    ("y", "message"), [(np.arange(60.0), "at most 50 levels"), (np.tile([0.0, 1.0], 5), "3 levels")]
)
def test_too_many_or_too_few_levels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        ordinal(y[:, None], jnp.float64)
