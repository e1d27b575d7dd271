"""dkl: a network's features, and the GP over them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp.estimators.baselines import regression_baselines
from bsgp.inference.history import silent
from bsgp.inference.host_loop import Clock
from bsgp.methods.dkl import fit_dkl
from bsgp.models.grid_gp import DeepKernelGP, Network
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian

NOISE = 0.1


def radius_waves(rng, num_rows):
    """A wave along the distance from the origin: a line of the inputs knows nothing of it, one feature all."""
    X = rng.uniform(-1.5, 1.5, (num_rows, 3))
    clean = np.sin(3.0 * np.linalg.norm(X, axis=1, keepdims=True))
    return X, clean


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(2)
    X, clean = radius_waves(rng, 500)
    y = np.concatenate([clean, -0.5 * clean], axis=1) + NOISE * rng.standard_normal((500, 2))
    said = []

    def report(*line):
        said.append(line)

    fit = fit_dkl(
        X, y, Gaussian(jnp.ones(2)), jr.key(0), widths=(64, 32, 2), grid_size=12, num_epochs=100, num_steps=30,
        report=report, clock=Clock(),
    )  # fmt: skip
    return fit, said, X, y


def test_it_learns_what_a_line_cannot(fitted, getkey):
    fit, _, X, y = fitted
    X_new, clean = radius_waves(np.random.default_rng(4), 400)
    mean = fit.posterior.predict(X_new, getkey()).mean
    line = regression_baselines(X, y)["linear"].mean(X_new)
    error, line_error = (np.sqrt(np.mean((m[:, :1] - clean) ** 2)) for m in (mean, line))
    assert line_error > 0.4
    assert error < 0.3 * line_error
    assert_allclose(mean[:, 1], -0.5 * mean[:, 0], atol=0.15)


def test_the_noise_covers_rows_that_were_not_trained_on(fitted, getkey):
    fit, *_ = fitted
    rng = np.random.default_rng(5)
    X_new, clean = radius_waves(rng, 1_000)
    y_new = np.concatenate([clean, -0.5 * clean], axis=1) + NOISE * rng.standard_normal((1_000, 2))
    p = fit.posterior.predict(X_new, getkey())
    within = np.abs(y_new - p.mean) < 1.645 * np.sqrt(p.variance)
    assert 0.87 < within.mean() < 0.96


def test_history_and_names(fitted):
    fit, said, X, _ = fitted
    model = fit.posterior.model
    assert {line[0] for line in said} == {"network", "optimise"}
    assert fit.history.energy["network"].shape[0] == 1
    assert fit.history.energy["network"][0, -50:].mean() < 0.3 * fit.history.energy["network"][0, :50].mean()
    assert fit.history.energy["optimise"].shape == (1, 30)
    assert not fit.history.interrupted
    assert model.support == "a grid of 12 x 12 over 2 learned features"
    assert model.input_kernel is None
    assert (model.depth, model.num_inputs, model.num_latent) == (1, X.shape[1], 2)
    floats = {leaf.dtype.name for leaf in jax.tree.leaves(model)}
    assert floats == {"float64", "int32"}


def test_the_posterior_predicts_through_the_network(fitted, getkey):
    fit, _, X, y = fitted
    one = jax.tree.map(lambda leaf: leaf[0, 0], fit.posterior.model)
    assert isinstance(one, DeepKernelGP)
    f = one.gp.marginals(one.network(jnp.asarray(X)))
    p = fit.posterior.predict(X, getkey())
    assert_allclose(p.mean, f.mean, rtol=1e-8, atol=1e-10)
    assert_allclose(p.variance, f.variance + one.likelihood.noise_variance[0], rtol=1e-8)
    assert np.isfinite(fit.posterior.log_density(X, y, getkey())).all()
    middle = fit.posterior.quantiles(X[:20], [0.5], getkey())[:, :, 0]
    assert_allclose(middle, p.mean[:20], atol=1e-6)
    assert fit.posterior.sample(X[:5], getkey(), num=3).shape == (3, 5, 2)


def test_features_stay_in_the_box(rng, getkey):
    network = Network.init((3, 20, 2), getkey(), np.float64)
    features = network(jnp.asarray(1e4 * rng.standard_normal((50, 3))))
    assert np.abs(features).max() <= 1.0
    assert np.abs(network(jnp.asarray(rng.standard_normal((500, 3))))).mean() < 0.5


def test_ctrl_c_ends_it_with_a_model(rng, getkey):
    X, clean = radius_waves(rng, 60)

    def interrupt(*line):
        raise KeyboardInterrupt

    fit = fit_dkl(
        X, clean, Gaussian(jnp.ones(1)), getkey(), widths=(8, 2), grid_size=8, report=interrupt, clock=Clock()
    )
    assert fit.history.interrupted
    assert fit.history.energy["optimise"].size == 0
    assert np.isfinite(fit.posterior.predict(X, getkey()).mean).all()


def test_refusals(rng, getkey):
    X, y = rng.standard_normal((30, 5)), rng.integers(0, 9, (30, 1)).astype(float)
    with pytest.raises(
        ValueError, match=r"`dkl` is for regression with Gaussian noise, got a Poisson.*Use `bsgp` or `svgp`"
    ):
        fit_dkl(X, y, Poisson(), getkey(), report=silent, clock=Clock())
    with pytest.raises(ValueError, match=r"`widths` must end with at most 4 features, got 5"):
        fit_dkl(X, y, Gaussian(jnp.ones(1)), getkey(), widths=(10, 5), report=silent, clock=Clock())
    with pytest.raises(ValueError, match=r"`num_epochs` must be a whole number of at least 1, got 0"):
        fit_dkl(X, y, Gaussian(jnp.ones(1)), getkey(), num_epochs=0, report=silent, clock=Clock())
