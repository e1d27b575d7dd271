import json
import os

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import regression, shallow, tiny_target

import bsgp.posterior.posterior
from bsgp import DeepGP, Layer, Plan, Posterior, sample
from bsgp.models.kernels import RBF, ActiveDimensions, Linear, Matern52, Periodic
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.likelihoods.student_t import StudentT
from bsgp.posterior.metrics import gaussian_crps

NUM_CHAINS, NUM_DRAWS = 2, 6


def stacked(make_likelihood, rng, num_latent=1, depth=1, num_dims=2, kernel=None):
    """A posterior of random parameters, so that its mixtures are broad."""

    def one_draw():
        layers = []
        for index in range(depth):
            hidden = index < depth - 1
            rbf = RBF(jnp.asarray(rng.uniform(0.5, 1.5)), jnp.asarray(rng.uniform(0.5, 2.0, num_dims)))
            Z = jnp.asarray(rng.standard_normal((5, num_dims)))
            V = jnp.asarray(rng.standard_normal((5, num_dims if hidden else num_latent)))
            layers.append(Layer(kernel or rbf, Z, V, jnp.eye(num_dims) if hidden else None, 1e-7))
        return DeepGP(tuple(layers), make_likelihood())

    def stack(models):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    return Posterior(stack([stack([one_draw() for _ in range(NUM_DRAWS)]) for _ in range(NUM_CHAINS)]))


def gaussian_posterior(rng, **options):
    return stacked(lambda: Gaussian(jnp.asarray(rng.uniform(0.05, 0.5, 1))), rng, **options)


def per_draw(posterior, X, key):
    """Mean and sd of y under each draw, one at a time, [C*S N P]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), posterior.model)
    draws = [jax.tree.map(lambda x, s=s: x[s], flat) for s in range(NUM_CHAINS * NUM_DRAWS)]
    predictions = [d.likelihood.predict(d.propagate(jnp.asarray(X), jax.random.clone(key))) for d in draws]
    return np.stack([p.mean for p in predictions]), np.sqrt(np.stack([p.variance for p in predictions]))


@pytest.fixture
def X(rng):
    return rng.standard_normal((11, 2))


def test_the_predictive_is_the_mixture_of_draws(rng, X, getkey):
    posterior, key = gaussian_posterior(rng), getkey()
    y = rng.standard_normal((11, 1))
    mean, sd = per_draw(posterior, X, key)
    predicted = posterior.predict(X, getkey())
    assert_allclose(predicted.mean, mean.mean(axis=0), rtol=1e-10)
    assert_allclose(predicted.variance, (sd**2).mean(axis=0) + mean.var(axis=0), rtol=1e-9)
    density = np.log(st.norm.pdf(y, mean, sd).mean(axis=0))
    assert_allclose(posterior.log_density(X, y, getkey()), density, rtol=1e-9)
    assert_allclose(posterior.cdf(X, y, getkey()), st.norm.cdf(y, mean, sd).mean(axis=0), rtol=1e-9)


def test_quantiles_invert_the_mixtures_distribution(rng, X, getkey):
    posterior = gaussian_posterior(rng)
    levels = [0.05, 0.5, 0.95]
    quantiles = posterior.quantiles(X, levels, getkey())
    assert quantiles.shape == (11, 1, 3)
    for index, level in enumerate(levels):
        assert_allclose(posterior.cdf(X, quantiles[:, :, index], getkey()), level, atol=1e-9)


@pytest.mark.parametrize("likelihood", [StudentT, Poisson], ids=lambda c: c.__name__)
def test_quantiles_of_other_likelihoods(likelihood, rng, X, getkey):
    posterior = stacked(lambda: StudentT(jnp.asarray([0.3])) if likelihood is StudentT else Poisson(), rng)
    low, high = np.moveaxis(posterior.quantiles(X, [0.1, 0.9], getkey()), -1, 0)
    if likelihood is Poisson:
        assert_array_equal(low, np.round(low))
        # they are quantiles of samples
        assert (posterior.cdf(X, high, getkey()) >= 0.9 - 0.03).all()
        assert (posterior.cdf(X, high - 1, getkey()) < 0.9 + 0.03).all()
    else:
        assert_allclose(posterior.cdf(X, low, getkey()), 0.1, atol=1e-9)
        assert_allclose(posterior.cdf(X, high, getkey()), 0.9, atol=1e-9)


def test_chunks_do_not_change_predictions(rng, X, getkey, monkeypatch):
    posterior = gaussian_posterior(rng)
    y = rng.standard_normal((11, 1))
    whole = (
        posterior.predict(X, getkey()).mean,
        posterior.log_density(X, y, getkey()),
        posterior.predictive_draws(X, getkey()).mean,
    )
    monkeypatch.setattr(bsgp.posterior.posterior, "ROWS_PER_TILE", 2)
    monkeypatch.setattr(bsgp.posterior.posterior, "TILES_PER_CHUNK", 2)
    parts = (
        posterior.predict(X, getkey()).mean,
        posterior.log_density(X, y, getkey()),
        posterior.predictive_draws(X, getkey()).mean,
    )
    for a, b in zip(whole, parts, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert whole[2].shape == (NUM_CHAINS, NUM_DRAWS, 11, 1)


def test_classes(rng, X, getkey):
    binary = stacked(Bernoulli, rng)
    probability = binary.predict(X, getkey()).mean
    assert_allclose(np.exp(binary.log_density(X, np.ones((11, 1)), getkey())), probability, rtol=1e-9)
    several = stacked(lambda: Categorical(3), rng, num_latent=3)
    probabilities = several.predict(X, getkey()).mean
    assert_allclose(probabilities.sum(axis=1), 1.0)
    assert_allclose(
        np.exp(several.log_density(X, np.full((11, 1), 2.0), getkey())[:, 0]), probabilities[:, 2], rtol=2e-5
    )
    with pytest.raises(ValueError, match="ordered"):
        binary.quantiles(X, [0.5], getkey())


def test_many_classes_take_fewer_rows_at_a_time_and_predict_the_same(rng, X, getkey, monkeypatch):
    posterior = stacked(lambda: Categorical(20), rng, num_latent=20)
    whole, key = posterior.predict(X, getkey()).mean, getkey()
    most, seen = 4 * NUM_CHAINS * NUM_DRAWS * 20, []
    moments = bsgp.posterior.mixture.moments

    def watched(model, tiling, key, rows):
        seen.append(rows.shape[0])
        return moments(model, tiling, key, rows)

    monkeypatch.setattr(bsgp.posterior.posterior, "MAX_VALUES", most)
    monkeypatch.setattr(bsgp.posterior.mixture, "moments", watched)
    assert_allclose(posterior.predict(X, key).mean, whole, rtol=1e-9)
    assert max(seen) == 4
    assert len(seen) == 3


def test_sampled_functions_have_the_predictive_moments(rng, getkey):
    posterior, X = gaussian_posterior(rng), np.linspace(-1, 1, 5)[:, None] * np.ones((1, 2))
    functions = posterior.sample_functions(X, getkey(), num=6000)
    mean, sd = per_draw(posterior, X, getkey())
    noise = np.asarray(posterior.model.likelihood.noise_variance).reshape(-1, 1, 1)
    assert functions.shape == (6000, 5, 1)
    spread = np.sqrt((sd**2 - noise).mean(axis=0) + mean.var(axis=0))
    assert_allclose(functions.mean(axis=0), mean.mean(axis=0), atol=5 * spread.max() / 6000**0.5)
    assert_allclose(functions.std(axis=0), spread, rtol=0.06)
    smooth = np.linspace(0, 1e-3, 3)[:, None] * np.ones((1, 2))
    steps = np.diff(posterior.sample_functions(smooth, getkey(), num=50), axis=1)
    assert np.abs(steps).max() < 0.05  # one function over all rows, not independent draws per row


@pytest.mark.parametrize("depth", [1, 2])
def test_save_and_load(depth, rng, X, getkey, tmp_path):
    posterior, key = gaussian_posterior(rng, depth=depth), getkey()
    posterior.save(tmp_path / "model")
    loaded = Posterior.load(tmp_path / "model")
    assert_array_equal(loaded.predict(X, key).mean, posterior.predict(X, jax.random.clone(key)).mean)
    posterior.save(tmp_path / "model")  # over the old one
    assert sorted(os.listdir(tmp_path)) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == ["arrays.safetensors", "posterior.json"]


def test_every_kind_of_kernel_and_likelihood_can_be_stored(rng, tmp_path):
    one, two = jnp.asarray(1.0), jnp.ones(2)
    kernel = RBF(one, two) * Matern52(one, two) + Linear(two, one)
    kernel = kernel + ActiveDimensions(Periodic(one, two, two), (1, 0))
    for make in (lambda: StudentT(jnp.ones(1), 5.0), lambda: Bernoulli("logit"), lambda: Categorical(3), Poisson):
        stored = stacked(make, rng, kernel=kernel)
        stored.save(tmp_path / "model")
        loaded = Posterior.load(tmp_path / "model")
        assert jax.tree.structure(loaded) == jax.tree.structure(stored)
        for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(stored), strict=True):
            assert_array_equal(a, b)


def test_damaged_foreign_and_missing_files_are_refused(rng, tmp_path):
    folder = tmp_path / "model"
    with pytest.raises(ValueError, match="written by `save`"):
        Posterior.load(folder)
    gaussian_posterior(rng).save(folder)
    document = json.loads((folder / "posterior.json").read_text())

    def refused(message, **changes):
        (folder / "posterior.json").write_text(json.dumps({**document, **changes}))
        with pytest.raises(ValueError, match=message):
            Posterior.load(folder)

    refused("version", version=99)
    refused("another kind", format="something-else")
    refused("damaged", structure={"class": "Popen", "fields": {}})
    refused("damaged", arrays_sha256="0" * 64)
    (folder / "posterior.json").write_text("{")
    with pytest.raises(ValueError, match="written by `save`"):
        Posterior.load(folder)
    (folder / "posterior.json").write_text(json.dumps(document))
    arrays = (folder / "arrays.safetensors").read_bytes()
    (folder / "arrays.safetensors").write_bytes(arrays[: len(arrays) // 2])
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(folder)


def test_a_failed_save_leaves_the_old_model(rng, tmp_path, monkeypatch):
    import bsgp.posterior.storage

    gaussian_posterior(rng).save(tmp_path / "model")
    before = (tmp_path / "model" / "arrays.safetensors").read_bytes()

    def full_disk(*_):
        raise OSError("no space left")

    monkeypatch.setattr(bsgp.posterior.storage, "flush_to_disk", full_disk)
    with pytest.raises(OSError, match="no space"):
        gaussian_posterior(rng).save(tmp_path / "model")
    assert (tmp_path / "model" / "arrays.safetensors").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_diagnostics_of_a_posterior_and_arviz(getkey):
    target, X, y = tiny_target()
    plan = Plan(adam_steps=20, burn_in=50, num_draws=10, thinning=2, chunk=20)
    run = sample(target, X, y, getkey(), plan=plan, num_chains=2)
    posterior = Posterior.from_run(run)
    tree = posterior.to_arviz(energy=run.history.energy["draws"][:, 1::2])
    assert tree.posterior.sizes["chain"] == 2
    assert tree.posterior.sizes["draw"] == 10
    assert_array_equal(tree.posterior["layers.0.Z"], run.model.layers[0].Z)
    assert tree.sample_stats["energy"].shape == (2, 10)
    assert posterior.rhat().keys() == posterior.ess().keys() == set(tree.posterior.data_vars)
    assert posterior.predictive_rhat(X, getkey()).shape == (30, 1)
    assert (posterior.predictive_ess(X, getkey()) > 0).all()


def test_a_subset_takes_the_same_evenly_spaced_draws_of_every_chain(rng):
    posterior = gaussian_posterior(rng)
    few = posterior.subset(7)
    assert (few.num_chains, few.num_draws) == (2, 3)
    kept = np.asarray(few.model.layers[0].Z)
    assert_array_equal(kept, np.asarray(posterior.model.layers[0].Z)[:, [0, 2, 5]])
    assert kept.dtype == np.float64
    assert posterior.subset(1).num_draws == 1
    assert posterior.subset(1_000).num_draws == posterior.num_draws


def test_thinning_keeps_draws_of_every_chain_and_says_what_it_costs(rng, X, getkey):
    posterior, y, key = gaussian_posterior(rng), rng.standard_normal((11, 1)), getkey()
    thinned = posterior.thin(4, X, y, key)
    assert thinned.posterior.num_draws * thinned.posterior.num_chains == 4
    all_Z = np.asarray(posterior.model.layers[0].Z)
    kept = np.asarray(thinned.posterior.model.layers[0].Z)[0]
    chains = [int(np.argmax([(all_Z[c] == z).all(axis=(1, 2)).any() for c in range(NUM_CHAINS)])) for z in kept]
    assert sorted(set(chains)) == [0, 1]
    density = thinned.posterior.log_density(X, y, jax.random.clone(key))
    assert_allclose(thinned.mnll, -density.mean())
    assert_allclose(thinned.cost, thinned.mnll + posterior.log_density(X, y, getkey()).mean())
    everything = posterior.thin(12, X, y, getkey())
    assert_allclose(everything.cost, 0.0, atol=1e-12)
    with pytest.raises(ValueError, match="at most the number of draws, 12"):
        posterior.thin(13, X, y, getkey())


def test_crps_of_a_single_draw_is_that_of_its_gaussian():
    """A point estimate has one draw; one sample of y from it would carry no information about its spread."""
    X, y = regression(30)
    model = shallow(X[:5])
    posterior = Posterior.from_single(model)
    mean, variance = posterior.predict(X, jr.key(0))
    exact = gaussian_crps(y, np.asarray(mean), np.sqrt(np.asarray(variance)))
    np.testing.assert_allclose(posterior.crps(X, y, jr.key(1)).mean(), exact.mean(), rtol=0.05)
