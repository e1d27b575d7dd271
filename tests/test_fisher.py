"""SGHMC on minibatches that are a small part of the rows: `adaptation="fisher"`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import bsgp.fisher
from bsgp import Plan, Target, sample
from bsgp.diagnostics import ess
from bsgp.mesh import Layout, mesh_shape
from bsgp.sghmc import moved, sghmc, turned, with_gradients
from cut_off_runs import PLAN, KilledError, assert_same
from cut_off_runs import run as cut_off_run
from problems import optimal_u, regression, shallow, tiny_target

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


def learned(key, step_size):
    """A sampler, and a chain that knows the noise of its gradients."""
    sampler = sghmc(gaussian, NUM_DATA, step_size=step_size, adaptation="fisher", batch_size=BATCH)
    first, second = jax.random.split(key)
    state, (_, info) = run(sampler, sampler.init(jnp.zeros(3)), first, 20_000, adapts=True)
    state = turned(with_gradients(state, info.gradient))
    state, _ = run(sampler, state, second, 5_000, adapts=True)
    return sampler, state


def test_the_covariance_of_gradients_is_the_information(getkey):
    _, state = learned(getkey(), 0.005)
    seen = NUM_DATA * BATCH / (1 - BATCH / NUM_DATA) * np.asarray(state.noise.covariance)
    assert_allclose(seen, INFORMATION, rtol=0.1, atol=1.0)


def test_along_the_axes_noise_is_not_correlated(getkey):
    _, state = learned(getkey(), 0.005)
    axes = np.asarray(state.noise.axes)
    assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
    along = axes.T @ np.asarray(state.noise.covariance) @ axes
    assert_allclose(along - np.diag(np.diag(along)), 0.0, atol=1e-9 * along.max())
    assert_allclose(np.asarray(state.noise.weights).sum(axis=0), 1.0)


def test_draws_are_right_where_gradient_noise_is_as_large_as_all_other(getkey):
    """At this step it would add its own heat once more: the steady mass shows it."""
    share = 0.0975 / 0.9025 * BATCH / NUM_DATA
    sampler, state = learned(getkey(), share**0.5)
    _, (x, info) = run(sampler, state, getkey(), 400_000)
    assert_allclose(np.mean(info.temperature), 1.0, atol=0.02)
    x = np.asarray(x)[::50]
    error = np.sqrt(np.diag(np.linalg.inv(PRECISION)) / ess(x[None]))
    assert (np.abs(x.mean(axis=0)) < 4 * error).all()
    root = np.linalg.cholesky(PRECISION)
    # a kick moves the position before friction sees it, which at this step makes draws 5% too wide
    assert_allclose(root.T @ np.cov(x.T) @ root, 1.05 * np.eye(3), atol=0.08)

    # the same motion of the first coordinate without the friction that is due
    slow = (share / PRECISION[0, 0] * NUM_DATA * np.sqrt(99 * 400.0) / NUM_DATA) ** 0.5
    steady = sghmc(gaussian, NUM_DATA, step_size=slow)
    state, _ = run(steady, steady.init(jnp.zeros(3)), getkey(), 5_000, adapts=True)
    _, (_, info) = run(steady, state, getkey(), 50_000)
    assert np.mean(info.temperature) > 1.3


def test_the_thermostat_takes_up_noise_that_was_not_learned(getkey):
    """Gradients of nine times the variance that was learned, as they may have elsewhere in a posterior."""
    share = 0.3 * 0.108 * BATCH / NUM_DATA
    _, state = learned(getkey(), share**0.5)

    def noisier(x, batch, key):
        extra = np.sqrt(8.0) * NOISE_ROOT @ jax.random.normal(key, x.shape)
        return gaussian(x, batch, jax.random.fold_in(key, 1)) + jnp.sum(x * extra)

    sampler = sghmc(noisier, NUM_DATA, step_size=share**0.5, adaptation="fisher", batch_size=BATCH)
    state, (_, before) = run(sampler, state, getkey(), 500)
    state, _ = run(sampler, state, getkey(), 30_000)
    _, (_, after) = run(sampler, state, getkey(), 100_000)
    assert np.mean(before.temperature) > 1.2
    assert_allclose(np.mean(after.temperature), 1.0, atol=0.03)


@pytest.mark.parametrize(
    ("max_axes", "power"),
    [(1_500, 1.0), (0, 1.0), (1_500, 0.02)],
    ids=["axes of their own", "coordinates", "rows that count for fewer than a minibatch has"],
)
def test_sampled_u_has_the_supplements_mean_and_covariance(max_axes, power, getkey, monkeypatch):
    monkeypatch.setattr(bsgp.fisher, "MAX_AXES", max_axes)
    num_rows = 2_000
    X, y = regression(num_rows)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None])
    target = Target(model, num_rows, treatment={"Z": "fix", "theta": "fix", "noise": "fix"}, power=power)
    # programs are kept by their settings: the cases must have settings of their own
    plan = Plan(
        warm_start=200, burn_in=16_000, num_draws=2_000, thinning=40, batch_size=50, adaptation="fisher",
        chunk=200 if max_axes else 100,
    )  # fmt: skip
    run = sample(target, X, y, getkey(), plan=plan, num_chains=4)
    layer = model.layers[0]
    Lz = np.linalg.cholesky(layer.kernel(layer.Z, layer.Z))
    u = np.einsum("mk,csko->csmo", Lz, run.model.layers[0].V)[..., 0]
    mean, covariance = optimal_u(model, X, jnp.asarray(y), "fitc", power)
    error = u.std(axis=(0, 1)) / np.sqrt(ess(u))
    assert (np.abs(u.mean(axis=(0, 1)) - np.asarray(mean)[:, 0]) < 4 * error).all()
    centred = u - u.mean(axis=(0, 1))
    assert_allclose(
        np.einsum("csi,csj->ij", centred, centred) / centred[..., 0].size,
        covariance, rtol=0.15, atol=0.05 * np.abs(covariance).max(),
    )  # fmt: skip
    axes = run.chains.sampler.noise.axes
    assert (axes is None) == (max_axes == 0)
    assert axes is None or np.abs(np.asarray(axes[0]) - np.eye(4)).max() > 0.1  # they were turned


SHORT = replace(PLAN, adaptation="fisher")  # 30 rows in minibatches of 10, and axes that turn once


@pytest.fixture
def turns_soon(monkeypatch):
    monkeypatch.setattr(bsgp.fisher, "LEAST_WINDOW", 20)


def test_an_update_that_does_not_adapt_keeps_the_mass_and_moves_the_thermostat(getkey):
    sampler, state = learned(getkey(), 0.005)
    adapted, _ = sampler.burn_in(getkey(), state, None)
    kept = moved(state, adapted)
    assert np.abs(np.asarray(adapted.gradient_square - state.gradient_square)).max() > 0
    assert_allclose(kept.gradient_square, state.gradient_square)
    assert_allclose(kept.position, adapted.position)
    assert np.abs(np.asarray(kept.noise.thermostat - state.noise.thermostat)).max() > 0
    assert_allclose(kept.noise.thermostat, adapted.noise.thermostat)


def test_a_block_that_may_be_slower_is_not_where_axes_go_through_all_blocks(getkey, turns_soon):
    """tiny_target has a noise, which with any other mass sets a pace of its own."""
    target, X, y = tiny_target()
    run = sample(target, X, y, getkey(), plan=SHORT)
    steps = run.trace.step_size[-1]
    assert np.unique(steps).size == 1


@pytest.mark.parametrize("moment", [6, 9, 13], ids=["before the turn", "after the turn", "draws"])
def test_a_run_that_is_cut_off_goes_on_as_if_it_had_not_been(moment, turns_soon, tmp_path):
    target, X, y = tiny_target()
    whole = sample(target, X, y, jax.random.key(3), plan=SHORT, num_chains=2)
    axes = np.asarray(whole.chains.sampler.noise.axes)
    assert np.abs(axes - np.eye(axes.shape[1])).max() > 0.1
    with pytest.raises(KilledError):
        cut_off_run(tmp_path / "run", jax.random.key(3), plan=SHORT, dies_after=moment)
    resumed, _ = cut_off_run(tmp_path / "run", jax.random.key(3), plan=SHORT, resume=True)
    assert_same(resumed, whole)


@pytest.mark.parametrize("mesh", ["2x1", "1x2"])
def test_draws_on_several_devices_are_those_on_one(mesh, turns_soon):
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
def test_where_there_is_no_noise_to_learn_from_it_is_refused(options):
    with pytest.raises(ValueError, match="adaptation='fisher'"):
        sghmc(gaussian, NUM_DATA, adaptation="fisher", **options)
