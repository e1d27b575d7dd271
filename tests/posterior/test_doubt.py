"""What is in doubt about a prediction: variances and entropies in two parts, and distance from the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import optimal_u, regression, shallow

import bsgp.posterior.posterior
from bsgp import DeepGP, Layer, Posterior
from bsgp.models.kernels import RBF
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.models.likelihoods.heteroskedastic import heteroskedastic
from bsgp.models.likelihoods.mixture import gaussian_mixture
from bsgp.models.likelihoods.student_t import student_t

NUM_CHAINS, NUM_DRAWS = 2, 6
ENTROPY = {
    2: lambda p: -(p * np.log(p) + (1 - p) * np.log1p(-p)),
    3: lambda p: -(p * np.log(p)).sum(axis=-1),
}


def stacked(likelihood, rng, depth=1, lengthscales=(1.0, 1.0), num_inducing=5):
    """Draws of u from its prior, with a kernel variance that differs between them."""
    num_latent = likelihood.num_latent(1)

    def one_draw():
        layers = []
        for index in range(depth):
            is_hidden = index < depth - 1
            kernel = RBF(jnp.asarray(rng.uniform(0.3, 0.6)), jnp.asarray(lengthscales))
            V = jnp.asarray(rng.standard_normal((num_inducing, 2 if is_hidden else num_latent)))
            Z = jnp.asarray(rng.standard_normal((num_inducing, 2)))
            layers.append(Layer(kernel, Z, V, jnp.eye(2) if is_hidden else None, 1e-7))
        return DeepGP(tuple(layers), likelihood)

    def stack(models):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    return Posterior(stack([stack([one_draw() for _ in range(NUM_DRAWS)]) for _ in range(NUM_CHAINS)]))


def latent_marginals(posterior, X, key):
    """Mean and variance of f under every draw, one at a time, `[C*S N L]`."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), posterior.model)
    draws = [jax.tree.map(lambda x, s=s: x[s], flat) for s in range(NUM_CHAINS * NUM_DRAWS)]
    f = [draw.propagate(jnp.asarray(X), jax.random.clone(key)) for draw in draws]
    return np.stack([one.mean for one in f]), np.stack([one.variance for one in f])


@pytest.fixture
def X(rng):
    return rng.standard_normal((11, 2))


NOISES = {
    "gaussian": gaussian(1, jnp.float64, 0.3),
    "student": student_t(1, jnp.float64),
    "heteroskedastic": heteroskedastic(1, jnp.float64),
    "mixture": gaussian_mixture(1, jnp.float64),
    "poisson": Poisson(),
}


@pytest.mark.parametrize("name", NOISES)
def test_the_two_parts_add_up_to_the_variance(name, rng, X, getkey):
    posterior, key = stacked(NOISES[name], rng), getkey()
    mean, epistemic, aleatoric = posterior.variance_parts(X, key)
    predicted = posterior.predict(X, jax.random.clone(key))
    assert_allclose(mean, predicted.mean, rtol=1e-12)
    assert_allclose(epistemic + aleatoric, predicted.variance, rtol=1e-12)
    assert (epistemic > 0).all()
    assert (aleatoric > 0).all()


def test_the_epistemic_part_is_the_variance_of_the_mean_of_y_over_draws_and_functions(rng, X, getkey):
    posterior = stacked(Poisson(), rng)
    mean, variance = latent_marginals(posterior, X, getkey())
    rate = np.exp(mean + np.sqrt(variance) * rng.standard_normal((10_000, *mean.shape)))
    parts = posterior.variance_parts(X, getkey())
    assert_allclose(parts.epistemic, rate.var(axis=(0, 1)), rtol=0.08)
    assert_allclose(parts.aleatoric, rate.mean(axis=(0, 1)), rtol=0.02)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_entropies_are_those_of_random_functions(num_classes, rng, X, getkey):
    likelihood = Bernoulli() if num_classes == 2 else Categorical(3)
    posterior, key = stacked(likelihood, rng), getkey()
    total, epistemic, aleatoric = posterior.entropy_parts(X, key)
    probability = np.asarray(posterior.predict(X, getkey()).mean)
    probability = probability[:, 0] if num_classes == 2 else probability / probability.sum(axis=1, keepdims=True)
    assert_allclose(total, ENTROPY[num_classes](probability), rtol=1e-9)
    assert_allclose(epistemic + aleatoric, total, rtol=1e-12)
    assert (epistemic >= 0).all()
    assert (aleatoric >= 0).all()

    mean, variance = latent_marginals(posterior, X, getkey())
    f = mean + np.sqrt(variance) * rng.standard_normal((25, *mean.shape))
    rows = jnp.asarray(f.reshape(-1, f.shape[-1]))
    given = np.asarray(likelihood.predict(type(posterior.predict(X, getkey()))(rows, jnp.zeros_like(rows))).mean)
    given = given[:, 0] if num_classes == 2 else given / given.sum(axis=1, keepdims=True)
    each = ENTROPY[num_classes](np.clip(given, 1e-300, 1 - 1e-16)).reshape(-1, *mean.shape[:2])
    assert_allclose(aleatoric, each.mean(axis=(0, 1)), atol=0.05)


def test_functions_that_agree_leave_no_mutual_information(rng, X, getkey):
    one = stacked(Bernoulli(), rng, num_inducing=60, lengthscales=(3.0, 3.0))
    same = Posterior(jax.tree.map(lambda x: jnp.broadcast_to(x[:1, :1], x.shape), one.model))
    _, differing, _ = one.entropy_parts(X, getkey())
    _, agreeing, _ = same.entropy_parts(X, getkey())
    assert (agreeing < 1e-3).all()  # 60 inducing points determine so smooth a function
    assert (differing > 10 * agreeing).all()


def test_mutual_information_falls_with_more_rows_and_the_other_part_stays(getkey):
    """u given 10 and 200 rows, drawn by importance; the true probability lies between 0.16 and 0.84."""
    rng = np.random.default_rng(4)
    model = shallow(np.linspace(-2.0, 2.0, 4)[:, None], lengthscale=1.5)
    rows = rng.uniform(-2, 2, (200, 1))
    label = 2.0 * (rng.standard_normal((200, 1)) < np.sin(2 * rows)) - 1.0
    A, left = model.layers[0].whitened(jnp.asarray(rows))
    V = rng.standard_normal((5_000, 4))
    signed = label[:, 0] * (V @ np.concatenate(A)) / np.sqrt(1.0 + np.asarray(left))
    log_likelihood = np.asarray(jax.scipy.stats.norm.logcdf(signed))

    def information(num_rows):
        weight = np.exp(log_likelihood[:, :num_rows].sum(axis=1) - log_likelihood[:, :num_rows].sum(axis=1).max())
        picked = V[rng.choice(len(V), 256, p=weight / weight.sum())]
        draws = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (1, 256, *leaf.shape)), DeepGP(model.layers, Bernoulli())
        )
        draws = eqx.tree_at(lambda tree: tree.layers[0].V, draws, jnp.asarray(picked)[None, :, :, None])
        return Posterior(draws).entropy_parts(np.linspace(-2, 2, 20)[:, None], getkey())

    few, many = information(10), information(200)
    assert many.epistemic.mean() < 0.3 * few.epistemic.mean()
    assert many.aleatoric.mean() > 0.8 * few.aleatoric.mean()


def test_entropies_are_for_classes(rng, X, getkey):
    with pytest.raises(ValueError, match="Gaussian likelihood"):
        stacked(NOISES["gaussian"], rng).entropy_parts(X, getkey())


# -- distance from the data ------------------------------------------------------------------------------------


def draws_given_data(lengthscale=0.7, noise=0.2, num_draws=4_000):
    """A posterior whose draws of u are exact, given 30 rows of one input, with all else known."""
    X, y = regression(30)
    model = shallow(np.linspace(-4.0, 4.0, 12)[:, None], lengthscale=lengthscale, noise=noise)
    mean, covariance = optimal_u(model, X, jnp.asarray(y), "fitc")
    layer, rng = model.layers[0], np.random.default_rng(3)
    u = np.asarray(mean)[:, 0] + rng.standard_normal((num_draws, 12)) @ np.linalg.cholesky(covariance).T
    V = np.linalg.solve(np.linalg.cholesky(layer.kernel(layer.Z, layer.Z)), u.T).T[None, :, :, None]

    def repeated(leaf):
        return jnp.broadcast_to(leaf, (1, num_draws, *leaf.shape))

    draws = jax.tree.map(repeated, model)
    draws = eqx.tree_at(lambda tree: tree.layers[0].V, draws, jnp.asarray(V))
    return Posterior(draws), model, covariance, X


def test_extrapolation_is_the_posterior_variance_of_f_over_its_prior_variance(getkey):
    posterior, model, covariance, _ = draws_given_data()
    rows = jnp.linspace(-6.0, 6.0, 25)[:, None]
    layer = model.layers[0]
    weights = jnp.linalg.solve(layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, rows))
    exact = layer.conditional(rows).variance[:, 0] + jnp.sum(weights * (covariance @ weights), axis=0)
    score = posterior.extrapolation(rows, getkey())
    assert score.shape == (25,)
    assert_allclose(score, exact / layer.kernel.diag(rows), rtol=0.1, atol=1e-3)


def test_extrapolation_is_low_in_the_data_and_one_far_away_also_where_inducing_points_are(getkey):
    posterior, _, _, X = draws_given_data()
    assert posterior.extrapolation(X, getkey()).max() < 0.2
    # inducing points reach to 4 and data to 2: an inducing point without data nearby knows nothing
    assert posterior.extrapolation(np.array([[4.0], [50.0]]), getkey()).min() > 0.9


@pytest.mark.parametrize("depth", [1, 2])
def test_a_column_that_does_not_matter_does_not_make_a_row_far_out(depth, rng, getkey):
    posterior = stacked(NOISES["gaussian"], rng, depth=depth, lengthscales=(1.0, 1e4), num_inducing=40)
    same = Posterior(jax.tree.map(lambda x: jnp.broadcast_to(x[:1, :1], x.shape), posterior.model))
    inside, relevant, irrelevant = same.extrapolation(np.array([[0.1, 0.0], [30.0, 0.0], [0.1, 30.0]]), getkey())
    assert relevant > 0.95
    assert irrelevant < 0.35
    assert abs(irrelevant - inside) < 0.1


@pytest.mark.parametrize(
    "likelihood", [*NOISES.values(), Bernoulli(), Categorical(3)], ids=lambda one: type(one).__name__
)
def test_extrapolation_of_every_likelihood(likelihood, rng, getkey):
    posterior = stacked(likelihood, rng, num_inducing=40)
    same = Posterior(jax.tree.map(lambda x: jnp.broadcast_to(x[:1, :1], x.shape), posterior.model))
    inside, outside = same.extrapolation(np.array([[0.1, 0.0], [30.0, 0.0]]), getkey())
    assert inside < 0.3
    assert_allclose(outside, 1.0, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2])
def test_one_pass_gives_both_predictions_and_extrapolation(depth, rng, X, getkey):
    posterior, key = stacked(NOISES["student"], rng, depth=depth), getkey()
    predicted, score = posterior.predict_and_extrapolation(X, key)
    alone = posterior.predict(X, jax.random.clone(key))
    assert_allclose(predicted.mean, alone.mean, rtol=1e-12)
    assert_allclose(predicted.variance, alone.variance, rtol=1e-12)
    assert_allclose(score, posterior.extrapolation(X, jax.random.clone(key)), rtol=1e-12)


def test_chunks_do_not_change_them(rng, X, getkey, monkeypatch):
    posterior, classes = stacked(NOISES["mixture"], rng), stacked(Bernoulli(), rng)

    def found():
        return [
            *posterior.variance_parts(X, getkey()),
            posterior.extrapolation(X, getkey()),
            *classes.entropy_parts(X, getkey()),
        ]

    whole = found()
    monkeypatch.setattr(bsgp.posterior.posterior, "ROWS_PER_TILE", 2)
    monkeypatch.setattr(bsgp.posterior.posterior, "TILES_PER_CHUNK", 2)
    for one, other in zip(whole, found(), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-12)
