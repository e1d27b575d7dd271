"""SGHMC on minibatches that are a small part of the rows: `adaptation="fisher"`."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut_off_runs import PLAN, KilledError, assert_same
from cut_off_runs import run as cut_off_run
from numpy.testing import assert_allclose
from problems import assert_moments, optimal_u, regression, shallow, tiny_target

import bsgp.inference.fisher_mass
from bsgp import Plan, Target, sample
from bsgp.data.store.minibatches import Minibatches
from bsgp.inference.sghmc import learn_gradient_noise, renew_axes, sghmc, with_mass_of
from bsgp.runtime.mesh import Layout, mesh_shape

NUM_DATA, BATCH = 1_000, 10
INFORMATION = np.array([[400.0, 90.0, 0.0], [90.0, 25.0, 1.0], [0.0, 1.0, 0.5]])
PRECISION = INFORMATION + np.eye(3)
NOISE_ROOT = jnp.asarray(np.linalg.cholesky((NUM_DATA / BATCH - 1) * INFORMATION))


def gaussian(x, batch, key):
    """A posterior with a unit prior, and gradients that vary as those of minibatches without replacement do."""
    noise = NOISE_ROOT @ jax.random.normal(key, x.shape)
    return -0.5 * x @ PRECISION @ x + jnp.sum(x * noise)


def run(sampler, state, key, num_updates, adapts=False):
    update = sampler.burn_in if adapts else sampler.step

    def body(state, key):
        state, info = update(key, state, None)
        return state, (state.position, info)

    return jax.jit(lambda state, keys: jax.lax.scan(body, state, keys))(state, jax.random.split(key, num_updates))


@cache
def learned(step_size):
    """A sampler, and a chain that has estimated its gradient noise."""
    sampler = sghmc(gaussian, NUM_DATA, step_size=step_size, adaptation="fisher", batch_size=BATCH)
    first, second = jax.random.split(jax.random.key(11))
    state, (_, info) = run(sampler, sampler.init(jnp.zeros(3)), first, 20_000, adapts=True)
    state = renew_axes(learn_gradient_noise(state, info.gradient))
    state, _ = run(sampler, state, second, 5_000, adapts=True)
    return sampler, state


def test_the_covariance_of_gradients_is_the_information():
    _, state = learned(0.005)
    seen = NUM_DATA * BATCH / (1 - BATCH / NUM_DATA) * np.asarray(state.gradient_noise.covariance)
    assert_allclose(seen, INFORMATION, rtol=0.1, atol=1.0)


def test_along_the_axes_noise_is_not_correlated():
    _, state = learned(0.005)
    axes = np.asarray(state.gradient_noise.axes)
    assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
    along = axes.T @ np.asarray(state.gradient_noise.covariance) @ axes
    assert_allclose(along - np.diag(np.diag(along)), 0.0, atol=1e-9 * along.max())
    assert_allclose(np.asarray(state.gradient_noise.leaf_shares).sum(axis=0), 1.0)


def test_draws_are_right_if_the_gradient_adds_as_much_noise_as_is_injected(getkey):
    share = 0.0975 / 0.9025 * BATCH / NUM_DATA
    sampler, state = learned(share**0.5)
    _, (x, info) = run(sampler, state, getkey(), 200_000)
    assert_allclose(np.mean(info.temperature), 1.0, atol=0.02)
    # a kick moves the position before friction sees it, which at this step makes draws 5% too wide
    assert_moments(np.asarray(x)[None, ::50], np.zeros(3), np.linalg.inv(PRECISION), width=1.05)


def test_without_the_fisher_mass_the_same_motion_heats(getkey):
    """A step that moves the first coordinate as far, and friction that does not absorb the noise of the gradient."""
    share = 0.0975 / 0.9025 * BATCH / NUM_DATA
    step_size = (share / PRECISION[0, 0] * np.sqrt(99 * INFORMATION[0, 0])) ** 0.5
    steady = sghmc(gaussian, NUM_DATA, step_size=step_size)
    state, _ = run(steady, steady.init(jnp.zeros(3)), getkey(), 5_000, adapts=True)
    _, (_, info) = run(steady, state, getkey(), 20_000)
    assert np.mean(info.temperature) > 1.3


def test_the_thermostat_absorbs_noise_that_was_not_learned(getkey):
    """Gradients with nine times the estimated variance, as they may have in another part of a posterior."""
    share = 0.3 * 0.108 * BATCH / NUM_DATA
    _, state = learned(share**0.5)

    def noisier(x, batch, key):
        extra = np.sqrt(8.0) * NOISE_ROOT @ jax.random.normal(key, x.shape)
        return gaussian(x, batch, jax.random.fold_in(key, 1)) + jnp.sum(x * extra)

    sampler = sghmc(noisier, NUM_DATA, step_size=share**0.5, adaptation="fisher", batch_size=BATCH)
    state, (_, before) = run(sampler, state, getkey(), 500)
    state, _ = run(sampler, state, getkey(), 30_000)
    _, (_, after) = run(sampler, state, getkey(), 50_000)
    assert np.mean(before.temperature) > 1.2
    assert_allclose(np.mean(after.temperature), 1.0, atol=0.03)


@pytest.fixture
def independent_minibatches(monkeypatch):
    """Minibatches without epochs, so that gradient noise is not correlated from update to update."""
    monkeypatch.setattr(Minibatches, "_next", lambda self: self._rng.choice(self.num_rows, self.batch_size, False))


NUM_ROWS = 2_000
FEW_POINTS = shallow(np.linspace(-1.8, 1.8, 4)[:, None])


def sampled_u(key, power=1.0, **options):
    """Draws of u `[C S M]`, their exact mean and covariance, and the run."""
    X, y = regression(NUM_ROWS)
    target = Target(FEW_POINTS, NUM_ROWS, treatment={"Z": "fix", "theta": "fix", "noise": "fix"}, power=power)
    settings = {"adam_steps": 200, "burn_in": 4_000, "num_draws": 1_000, "thinning": 20, "batch_size": 50, **options}
    run = sample(target, X, y, key, plan=Plan(adaptation="fisher", **settings), num_chains=4)
    layer = FEW_POINTS.layers[0]
    u = np.einsum("mk,csko->csmo", np.linalg.cholesky(layer.kernel(layer.Z, layer.Z)), run.model.layers[0].V)[..., 0]
    mean, covariance = optimal_u(FEW_POINTS, X, jnp.asarray(y), "fitc", power)
    return u, mean[:, 0], covariance, run


@pytest.mark.parametrize("max_axes", [1_500, pytest.param(0, marks=pytest.mark.slow)], ids=["axes", "coordinates"])
def test_sampled_u_has_the_supplements_mean_and_covariance(max_axes, getkey, monkeypatch, independent_minibatches):
    monkeypatch.setattr(bsgp.inference.fisher_mass, "MAX_AXES", max_axes)
    # programs are kept by their settings: the two cases must have settings of their own
    u, mean, covariance, run = sampled_u(getkey(), chunk=200 if max_axes else 100)
    assert_moments(u, mean, covariance)
    axes = run.chains.sampler.gradient_noise.axes
    assert (axes is None) == (max_axes == 0)
    assert axes is None or np.abs(np.asarray(axes[0]) - np.eye(4)).max() > 0.1  # they were renewed


def test_with_a_power_rows_count_for_fewer_than_a_minibatch_has(getkey):
    u, mean, covariance, _ = sampled_u(getkey(), power=0.02, chunk=200)
    assert_moments(u, mean, covariance)


@pytest.mark.slow
def test_short_epochs_make_draws_a_tenth_too_narrow(getkey):
    """Within an epoch of 40 minibatches gradient noise partly cancels, and friction is set for noise that does not."""
    u, mean, covariance, _ = sampled_u(getkey(), num_draws=2_000, thinning=40, burn_in=16_000, chunk=200)
    assert_moments(u, mean, covariance, width=0.9)


SHORT = replace(PLAN, adaptation="fisher")  # 30 rows in minibatches of 10, and axes that are renewed once


@pytest.fixture
def axes_renewed_soon(monkeypatch):
    monkeypatch.setattr(bsgp.inference.fisher_mass, "MIN_WINDOW", 20)


def test_an_update_that_does_not_adapt_keeps_the_mass_and_moves_the_thermostat(getkey):
    sampler, state = learned(0.005)
    adapted, _ = sampler.burn_in(getkey(), state, None)
    kept = with_mass_of(state, adapted)
    assert np.abs(np.asarray(adapted.gradient_square - state.gradient_square)).max() > 0
    assert_allclose(kept.gradient_square, state.gradient_square)
    assert_allclose(kept.position, adapted.position)
    assert np.abs(np.asarray(kept.gradient_noise.thermostat - state.gradient_noise.thermostat)).max() > 0
    assert_allclose(kept.gradient_noise.thermostat, adapted.gradient_noise.thermostat)


def test_axes_through_all_blocks_give_all_blocks_one_step_size(getkey, axes_renewed_soon):
    """The noise of tiny_target may be slower with any other mass."""
    target, X, y = tiny_target()
    run = sample(target, X, y, getkey(), plan=SHORT)
    steps = run.history.step_sizes[-1]
    assert np.unique(steps).size == 1


@pytest.mark.parametrize("moment", [6, 9, 13], ids=["before the new axes", "after them", "draws"])
def test_an_interrupted_run_resumes_as_if_it_had_not_been_interrupted(moment, axes_renewed_soon, tmp_path):
    target, X, y = tiny_target()
    whole = sample(target, X, y, jax.random.key(3), plan=SHORT, num_chains=2)
    axes = np.asarray(whole.chains.sampler.gradient_noise.axes)
    assert np.abs(axes - np.eye(axes.shape[1])).max() > 0.1
    with pytest.raises(KilledError):
        cut_off_run(tmp_path / "run", jax.random.key(3), plan=SHORT, dies_after=moment)
    resumed, _ = cut_off_run(tmp_path / "run", jax.random.key(3), plan=SHORT, resume=True)
    assert_same(resumed, whole)


@pytest.mark.parametrize("mesh", ["2x1", "1x2"])
def test_draws_on_several_devices_are_those_on_one(mesh, axes_renewed_soon):
    target, X, y = tiny_target()
    one, several = (
        sample(target, X, y, jax.random.key(3), plan=SHORT, num_chains=2, layout=layout)
        for layout in (None, Layout(mesh_shape(mesh)))
    )
    for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(several.model), strict=True):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"batch_size": None}, {"batch_size": 501}, {"batch_size": 10, "integrator": "euler"}]
)
def test_settings_without_noise_to_learn_from_are_refused(options):
    with pytest.raises(ValueError, match="adaptation='fisher'"):
        sghmc(gaussian, NUM_DATA, adaptation="fisher", **options)
