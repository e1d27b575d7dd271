"""ipvi-dgp: a pair finds a posterior that is known, a discriminator a known density, and the bound adds them up."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from problems import optimal_u, regression, shallow

from bsgp.inference.history import silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.optimise import gradient_step, init_optimiser, run_steps
from bsgp.inference.target import ALL_OPTIMISED, Target
from bsgp.methods.ipvi_dgp import (
    Discriminator,
    ImplicitPlan,
    WarpedGenerator,
    bound,
    fit_implicit,
    init_pairs,
    mirrored_noise,
    moment_matched_marginals,
    moment_matched_model,
)
from bsgp.methods.svgp import gaussian_model, kl_to_prior, start
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.parameters import flat_priors

U_ONLY = {"u": "optimise", "Z": "fix", "theta": "fix", "noise": "fix"}


class ExpectedLog(Gaussian):
    """Gaussian noise whose log of the expectation is the expectation of the log: with it the bound is the ELBO, and
    the best q the closed form of VFE."""

    def log_expected_prob(self, y, f):
        return self.expected_log_prob(y, f)


def vfe_problem(num_inducing=4):
    X, y = regression(40)
    model = shallow(np.linspace(-1.6, 1.6, num_inducing)[:, None])
    model = DeepGP(model.layers, ExpectedLog(model.likelihood.noise_variance))
    return Target(model, 40, priors=flat_priors(model), treatment=U_ONLY), X, y


def whitened_optimum(model, X, y):
    mean, covariance = optimal_u(model, X, y, "vfe")
    layer = model.layers[0]
    inverse = jnp.linalg.inv(jnp.linalg.cholesky(layer.kernel(layer.Z, layer.Z)))
    return inverse @ mean, inverse @ covariance @ inverse.T


def test_the_pair_finds_a_known_gaussian_posterior():
    """From minibatches of half of the rows: a wrong weight of rows or KL would change the covariance."""
    target, X, y = vfe_problem()
    plan = ImplicitPlan(num_steps=1_000, batch_size=20, num_noise=128, width=8, learning_rate=0.05)
    fitted = fit_implicit(target, X, y, jr.key(0), plan=plan)
    layer = jax.tree.map(lambda x: x[0, 0], fitted.posterior.model).layers[0]
    mean, covariance = whitened_optimum(target.model, X, y)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((layer.V - mean) / sd[:, None], 0.0, atol=0.01)
    found = layer.root[0] @ layer.root[0].T
    np.testing.assert_allclose(found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.08)


def with_gaussian_part(model: DeepGP) -> DeepGP:
    """The model with m and L that are not those of the prior."""
    rng = np.random.default_rng(0)
    (layer,) = model.layers
    num_inducing, num_outputs = layer.V.shape
    V = jnp.asarray(rng.standard_normal(layer.V.shape))
    lower = np.tril(0.3 * rng.standard_normal((num_outputs, num_inducing, num_inducing)), -1)
    root = jnp.asarray(lower + 0.6 * np.eye(num_inducing))
    return DeepGP((type(layer)(layer.kernel, layer.Z, V, layer.W, layer.jitter, root),), model.likelihood)


def test_with_the_true_log_ratio_the_kl_is_that_of_the_warped_posterior():
    """One inducing point, whose density is known by a change of variables, at the quantiles of the noise."""
    (layer,) = with_gaussian_part(shallow(np.zeros((1, 1)))).layers
    generator = WarpedGenerator(jnp.asarray([[2.0]]), jnp.asarray([0.3]), jnp.asarray([[0.8]]))
    e = jax.scipy.stats.norm.ppf((jnp.arange(400.0) + 0.5) / 400.0)
    w, slope = jax.vmap(jax.value_and_grad(lambda e: generator.warp(e[None, None, None])[0, 0, 0]))(e)
    mean, scale = layer.V[0, 0], layer.root[0, 0, 0]
    V = mean + scale * w
    log_normal = jax.scipy.stats.norm.logpdf
    log_q = log_normal(e) - jnp.log(slope)  # of w
    exact = jnp.mean(log_q - jnp.log(scale) - log_normal(V))
    found = generator.kl(lambda _: (log_q - log_normal(w))[:, None], layer, V[:, None, None], w[:, None, None])
    assert float(found) == pytest.approx(float(exact), rel=1e-10)
    assert float(jnp.mean(log_q - log_normal(w))) > 0.1  # what a KL without the ratio would lack


def test_without_a_warp_the_kl_is_that_of_a_gaussian():
    """At nodes whose mean and second moments are exactly those of standard normal noise."""
    (layer,) = with_gaussian_part(shallow(np.linspace(-1.0, 1.0, 3)[:, None], num_outputs=2)).layers
    nodes = 3**0.5 * jnp.concatenate([jnp.eye(3), -jnp.eye(3)])
    w = jnp.stack([nodes, nodes[::-1]], axis=1)  # [S P M]
    V = layer.V[None] + jnp.einsum("pij,spj->sip", layer.root, w)
    generator = WarpedGenerator.init(3, 4, jr.key(0), jnp.float64)
    np.testing.assert_allclose(generator.warp(w), w)
    found = generator.kl(lambda w: jnp.zeros(w.shape[:2]), layer, V, w)
    assert float(found) == pytest.approx(float(kl_to_prior(layer.V, layer.root)), rel=1e-10)


@pytest.mark.parametrize("form", ["mlp", "linear"])
def test_the_bound_of_minibatches_averages_to_that_of_all_rows(form):
    target, X, y = vfe_problem()
    model = with_gaussian_part(target.model)
    pairs = init_pairs(model, ImplicitPlan(form=form, width=8), jr.key(1))

    @jax.jit
    def bound_of(X, y):
        return bound(model, pairs, Batch(X, y), jr.key(2), 40, 16)

    parts = [bound_of(X[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    np.testing.assert_allclose(np.mean(parts), bound_of(X, y), rtol=1e-10)


@pytest.mark.parametrize(("form", "times"), [("mlp", [2, 1]), ("linear", [1, 1])])
def test_the_bound_is_lower_by_what_the_discriminators_estimate(form, times):
    """Once for each output of each layer; in the linear form, a mean, once for each layer."""
    X, y = regression(20, 2)
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.1)), jr.key(0), num_inducing=5, depth=2)
    target = Target(model, 20, treatment=ALL_OPTIMISED)
    model = gaussian_model(target, start(target))
    pairs = init_pairs(model, ImplicitPlan(form=form, width=8), jr.key(1))

    def constants(pairs):
        return [one.constant if form == "mlp" else one.bias for one in pairs.discriminators]

    @jax.jit
    def bound_of(pairs):
        return bound(model, pairs, Batch(jnp.asarray(X), jnp.asarray(y)), jr.key(2), 20, 16)

    for layer, shift in enumerate((0.7, 0.4)):
        shifted = eqx.tree_at(lambda p, at=layer: constants(p)[at], pairs, constants(pairs)[layer] + shift)
        np.testing.assert_allclose(bound_of(pairs) - bound_of(shifted), times[layer] * shift, rtol=1e-8)


@pytest.mark.slow
def test_without_its_gaussian_part_the_warp_itself_finds_a_posterior():
    """m and L are those of the prior, the warp can reach the posterior, and only the discriminator knows the KL."""
    y = np.asarray([[0.4], [-0.3]])
    model = shallow(np.asarray([[-3.0], [3.0]]), variance=1.0, lengthscale=0.5, noise=2.0)
    layer = model.layers[0]
    A = jnp.concatenate(layer.whitened(layer.Z)[0])  # rows at Z: close to the identity
    covariance = jnp.linalg.inv(jnp.eye(2) + A @ A.T / 2.0)
    mean = covariance @ A @ y / 2.0
    model = eqx.tree_at(lambda m: m.layers[0].root, model, jnp.eye(2)[None], is_leaf=lambda leaf: leaf is None)
    layer = model.layers[0]
    pairs = init_pairs(model, ImplicitPlan(width=32), jr.key(0))
    rate = optax.adam(optax.cosine_decay_schedule(3e-3, 8_000))
    quick = optax.adam(optax.cosine_decay_schedule(1e-2, 8_000, 0.1))

    def step(state, batch, key):
        generator, discriminator, generator_state, discriminator_state = state
        draw_key, reference_key, fresh_key = jr.split(key, 3)

        def discriminator_loss(discriminator):
            V, w = jax.lax.stop_gradient(generator.draw(layer, draw_key, 512))
            return generator.discriminator_loss(discriminator, V, w, reference_key)

        discriminator, discriminator_state, _ = gradient_step(
            quick, discriminator_loss, discriminator, discriminator_state
        )

        def loss(generator):
            V, w = generator.draw(layer, fresh_key, 256)
            f = jnp.einsum("mn,smp->snp", A, V)
            log_likelihood = -0.5 * jnp.sum((batch.y[None] - f) ** 2, axis=(1, 2)) / 2.0
            return generator.kl(discriminator, layer, V, w) - jnp.mean(log_likelihood)

        generator, generator_state, value = gradient_step(rate, loss, generator, generator_state)
        return (generator, discriminator, generator_state, discriminator_state), value

    generator, discriminator = pairs.generators[0], pairs.discriminators[0]
    state = generator, discriminator, init_optimiser(rate, generator), init_optimiser(quick, discriminator)
    batch = Batch(layer.Z, jnp.asarray(y))
    done = run_steps(
        step, state, batch, jr.key(1),
        num_steps=8_000, batch_size=2, phase="optimise", report=silent, clock=Clock(),
    )  # fmt: skip
    V, _ = done.state[0].draw(layer, jr.key(2), 20_000)
    np.testing.assert_allclose(np.mean(V, axis=0), mean, atol=0.08)
    np.testing.assert_allclose(np.cov(np.asarray(V)[:, :, 0].T), covariance, atol=0.08)


def test_the_discriminator_finds_the_log_ratio_of_two_densities():
    """`w = e + tanh(2 e) / 2` in one dimension, whose density is known by a change of variables."""

    def warped(noise):
        return noise + 0.5 * jnp.tanh(2.0 * noise)

    num_steps = 1_000
    optimiser = optax.adam(optax.cosine_decay_schedule(2e-2, num_steps, 0.01))
    generator = WarpedGenerator.init(1, 4, jr.key(0), jnp.float64)

    def step(state, batch, key):
        discriminator, optimiser_state = state
        draw_key, reference_key = jr.split(key)

        def loss(discriminator):
            w = warped(jr.normal(draw_key, (1_000, 1, 1)))
            return generator.discriminator_loss(discriminator, None, w, reference_key)

        discriminator, optimiser_state, value = gradient_step(optimiser, loss, discriminator, optimiser_state)
        return (discriminator, optimiser_state), value

    discriminator = Discriminator.init(1, 16, jr.key(0), jnp.float64)
    no_rows = Batch(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    done = run_steps(
        step, (discriminator, init_optimiser(optimiser, discriminator)), no_rows, jr.key(1),
        num_steps=num_steps, batch_size=1, phase="optimise", report=silent, clock=Clock(),
    )  # fmt: skip
    e = jnp.linspace(-2.0, 2.0, 41)
    slope = 1.0 + (1.0 - jnp.tanh(2.0 * e) ** 2)
    w = warped(e)
    exact = -0.5 * e**2 - jnp.log(slope) + 0.5 * w**2
    found = done.state[0](w[:, None, None])[:, 0]
    np.testing.assert_allclose(found, exact, atol=0.07)  # over the range of 1.8 that it has


def test_moments_of_many_draws_are_those_of_the_gaussian():
    target, X, _ = vfe_problem()
    model = gaussian_model(target, start(target))
    pairs = init_pairs(model, ImplicitPlan(width=8), jr.key(0))  # the warp is the identity before training
    V, _ = pairs.generators[0].draw(model.layers[0], jr.key(2), 20_000)
    by_draws = moment_matched_marginals(model.layers[0], jnp.asarray(X), V)
    exact = model.layers[0].conditional(jnp.asarray(X))
    np.testing.assert_allclose(by_draws.mean, exact.mean, atol=1e-9)  # mirrored noise has no error in the mean
    np.testing.assert_allclose(by_draws.variance, exact.variance, rtol=0.04)
    again = moment_matched_model(model, pairs, jr.key(3), 20_000).layers[0].conditional(jnp.asarray(X))
    np.testing.assert_allclose(again.variance, exact.variance, rtol=0.04)


def test_mirrored_noise_is_normal_and_sums_to_nothing():
    noise = np.asarray(mirrored_noise(jr.key(0), (4_001, 3), jnp.float64))
    assert noise.shape == (4_001, 3)
    np.testing.assert_array_equal(noise[2_001:], -noise[:2_000])
    assert noise.std() == pytest.approx(1.0, abs=0.03)
    np.testing.assert_allclose(mirrored_noise(jr.key(0), (10, 3), jnp.float64).sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.slow
def test_two_layers_learn():
    X, y = regression(80, 2, noise=0.1)
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.1)), jr.key(0), num_inducing=10, depth=2)
    target = Target(model, 80, treatment=ALL_OPTIMISED)
    said = []
    plan = ImplicitPlan(num_steps=400, width=8, num_noise=16, num_contrast=32, num_moments=2_000)
    fitted = fit_implicit(target, X, y, jr.key(1), plan=plan, report=lambda *at: said.append(at))
    mean = np.asarray(fitted.posterior.predict(X, jr.key(2)).mean)
    assert np.corrcoef(mean[:, 0], y[:, 0])[0, 1] > 0.9
    assert said[-1][:3] == ("optimise", 400, 400)
    assert fitted.history.evaluations == 800


def test_the_linear_form_is_what_it_says():
    """Means that are linear in z, one variance for all, no correlation between inducing points; and it learns."""
    X, y = regression(80, 1, noise=0.1)
    y = y + X
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.1)), jr.key(0), num_inducing=8)
    target = Target(model, 80, treatment=ALL_OPTIMISED)
    plan = ImplicitPlan(num_steps=400, form="linear", learning_rate=0.05, generator_rate=1e-3)
    fitted = fit_implicit(target, X, y, jr.key(1), plan=plan)
    layer = jax.tree.map(lambda x: np.asarray(x)[0, 0], fitted.posterior.model).layers[0]
    design = np.concatenate([layer.Z, np.ones((8, 1))], axis=1)
    weights, *_ = np.linalg.lstsq(design, layer.V, rcond=None)
    covariance = layer.root[0] @ layer.root[0].T
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(design @ weights, layer.V, atol=5 * sd.max() / 20_000**0.5)
    np.testing.assert_allclose(sd, sd.mean(), rtol=0.05)
    np.testing.assert_allclose(covariance / np.outer(sd, sd), np.eye(8), atol=0.05)
    energy = fitted.history.energy["optimise"][0]
    assert energy[-50:].mean() < energy[:50].mean() - 0.1


@pytest.mark.slow
def test_a_classifier_learns():
    X, y = regression(80)
    labels = (y > 0).astype(float)
    model = init_deep_gp(X, Bernoulli(), jr.key(0), num_inducing=8)
    target = Target(model, 80, treatment=ALL_OPTIMISED)
    fitted = fit_implicit(target, X, labels, jr.key(1), plan=ImplicitPlan(num_steps=600, width=8))
    probability = np.asarray(fitted.posterior.predict(X, jr.key(2)).mean)
    assert np.mean((probability > 0.5) == labels) > 0.85
