"""ipvi-dgp: the pair finds posteriors that are known, and the discriminator densities that are."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from bsgp.history import silent
from bsgp.implicit import (
    Critic,
    Implicit,
    ImplicitPlan,
    Pair,
    Warp,
    as_gaussian,
    fit_implicit,
    init_pair,
    mirrored_noise,
    moment_matched,
)
from bsgp.likelihoods import Bernoulli, Gaussian
from bsgp.model import DeepGP, init_deep_gp
from bsgp.optimise import Clock, begin, descend, run_steps
from bsgp.target import Batch, Target, flat_priors
from bsgp.variational import gaussian_model, start
from problems import optimal_u, regression, shallow

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
    target, X, y = vfe_problem()
    plan = ImplicitPlan(num_steps=3_000, num_noise=64, num_contrast=512, width=16)
    fitted = fit_implicit(target, X, y, jr.key(0), plan=plan)
    layer = jax.tree.map(lambda x: x[0, 0], fitted.posterior.model).layers[0]
    mean, covariance = whitened_optimum(target.model, X, y)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((layer.V - mean) / sd[:, None], 0.0, atol=0.25)
    found = layer.root[0] @ layer.root[0].T
    np.testing.assert_allclose(found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.25)


@pytest.mark.slow
def test_without_its_gaussian_part_the_warp_itself_finds_a_posterior():
    """m and L are held at the prior, the posterior is within the warp's reach, and only the critic tells of the KL."""
    y = np.asarray([[0.4], [-0.3]])
    model = shallow(np.asarray([[-3.0], [3.0]]), variance=1.0, lengthscale=0.5, noise=2.0)
    layer = model.layers[0]
    A = jnp.concatenate(layer.whitened(layer.Z)[0])  # rows at Z: close to the identity
    covariance = jnp.linalg.inv(jnp.eye(2) + A @ A.T / 2.0)
    mean = covariance @ A @ y / 2.0
    model = eqx.tree_at(lambda m: m.layers[0].root, model, jnp.eye(2)[None], is_leaf=lambda leaf: leaf is None)
    layer = model.layers[0]
    pair = init_pair(model, ImplicitPlan(width=32), jr.key(0))
    rate = optax.adam(optax.cosine_decay_schedule(3e-3, 8_000))
    quick = optax.adam(optax.cosine_decay_schedule(1e-2, 8_000, 0.1))

    def step(state, batch, key):
        generator, critic, generator_state, critic_state = state
        draw_key, reference_key, fresh_key = jr.split(key, 3)

        def critic_loss(critic):
            V, w = jax.lax.stop_gradient(generator.draw(layer, draw_key, 512))
            return generator.told_apart(critic, V, w, reference_key)

        critic, critic_state, _ = descend(quick, critic_loss, critic, critic_state)

        def loss(generator):
            V, w = generator.draw(layer, fresh_key, 256)
            f = jnp.einsum("mn,smp->snp", A, V)
            log_likelihood = -0.5 * jnp.sum((batch.y[None] - f) ** 2, axis=(1, 2)) / 2.0
            return generator.kl(critic, layer, V, w) - jnp.mean(log_likelihood)

        generator, generator_state, value = descend(rate, loss, generator, generator_state)
        return (generator, critic, generator_state, critic_state), value

    generator, critic = pair.generators[0], pair.critics[0]
    state = generator, critic, begin(rate, generator), begin(quick, critic)
    batch = Batch(layer.Z, jnp.asarray(y))
    done = run_steps(
        step, state, batch, jr.key(1),
        num_steps=8_000, batch_size=2, phase="optimise", report=silent, clock=Clock(),
    )  # fmt: skip
    V, _ = done.state[0].draw(layer, jr.key(2), 20_000)
    np.testing.assert_allclose(np.mean(V, axis=0), mean, atol=0.08)
    np.testing.assert_allclose(np.cov(np.asarray(V)[:, :, 0].T), covariance, atol=0.08)


def test_the_critic_finds_the_log_ratio_of_two_densities():
    """`w = e + tanh(2 e) / 2` in one dimension, whose density is known by a change of variables."""

    def warped(noise):
        return noise + 0.5 * jnp.tanh(2.0 * noise)

    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, 3_000, 0.01))

    def step(state, batch, key):
        critic, optimiser_state = state
        draw_key, reference_key = jr.split(key)

        def loss(critic):
            w = warped(jr.normal(draw_key, (1_000, 1, 1)))
            return Implicit.told_apart(None, critic, None, w, reference_key)

        critic, optimiser_state, value = descend(optimiser, loss, critic, optimiser_state)
        return (critic, optimiser_state), value

    critic = Critic.init(1, 32, jr.key(0), jnp.float64)
    nothing = Batch(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    done = run_steps(
        step, (critic, begin(optimiser, critic)), nothing, jr.key(1),
        num_steps=3_000, batch_size=1, phase="optimise", report=silent, clock=Clock(),
    )  # fmt: skip
    e = jnp.linspace(-2.0, 2.0, 41)
    slope = 1.0 + (1.0 - jnp.tanh(2.0 * e) ** 2)
    w = warped(e)
    exact = -0.5 * e**2 - jnp.log(slope) + 0.5 * w**2
    found = done.state[0](w[:, None, None])[:, 0]
    np.testing.assert_allclose(found, exact, atol=0.12)


def test_moments_of_many_draws_are_those_of_the_gaussian():
    target, X, _ = vfe_problem()
    model = gaussian_model(target, start(target))
    warp = Warp.init(4, 8, jr.key(0), jnp.float64)  # the identity, to begin with
    pair = Pair((Implicit(warp),), (Critic.init(4, 8, jr.key(1), jnp.float64),))
    V, _ = pair.generators[0].draw(model.layers[0], jr.key(2), 20_000)
    by_draws = moment_matched(model.layers[0], jnp.asarray(X), V)
    exact = model.layers[0].conditional(jnp.asarray(X))
    np.testing.assert_allclose(by_draws.mean, exact.mean, atol=1e-9)  # mirrored noise has no error in the mean
    np.testing.assert_allclose(by_draws.variance, exact.variance, rtol=0.04)
    again = as_gaussian(model, pair, jr.key(3), 20_000).layers[0].conditional(jnp.asarray(X))
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
    target = Target(model, 80, treatment={block: "optimise" for block in U_ONLY})
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
    target = Target(model, 80, treatment={block: "optimise" for block in U_ONLY})
    plan = ImplicitPlan(num_steps=1_000, form="linear")
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
    assert energy[-100:].mean() < energy[:100].mean() - 0.1


def test_a_classifier_learns():
    X, y = regression(80)
    labels = (y > 0).astype(float)
    model = init_deep_gp(X, Bernoulli(), jr.key(0), num_inducing=8)
    target = Target(model, 80, treatment={block: "optimise" for block in U_ONLY})
    fitted = fit_implicit(target, X, labels, jr.key(1), plan=ImplicitPlan(num_steps=600, width=16))
    probability = np.asarray(fitted.posterior.predict(X, jr.key(2)).mean)
    assert np.mean((probability > 0.5) == labels) > 0.85
