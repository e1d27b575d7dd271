"""The mass that is learned from positions."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from cut_off_runs import KilledError, assert_same
from cut_off_runs import run as cut_off_run
from numpy.testing import assert_allclose
from problems import tiny_target

from bsgp import Plan, sample
from bsgp.inference.position_mass import (
    KEPT_SHARE,
    START_WEIGHT,
    add_positions,
    learned_variance,
    no_moments,
    with_variance,
)
from bsgp.inference.sghmc import sghmc
from bsgp.inference.step_size import EXACT_SAFETY, settled_factor

PLAN = Plan(adam_steps=40, burn_in=80, num_draws=8, thinning=5, chunk=10, adaptation="position", persistence=1.6)


def test_moments_are_those_of_weighted_positions(rng):
    first, second = rng.standard_normal((2, 30, 3)), 5.0 + rng.standard_normal((2, 20, 3))
    moments = add_positions(add_positions(no_moments(2, 3), [first]), [second])
    both, weights = np.concatenate([first, second], axis=1), np.r_[np.full(30, KEPT_SHARE), np.ones(20)]
    mean = np.average(both, axis=1, weights=weights)
    assert_allclose(moments.mean, mean)
    assert_allclose(moments.square, np.einsum("s,csd->cd", weights, (both - mean[:, None]) ** 2))
    assert_allclose(moments.weight, weights.sum())


def test_the_variance_is_that_within_chains_and_pooled_over_the_rows_of_a_large_leaf(rng):
    position = tiny_target(num_rows=50, num_inducing=40)[0].start()
    sizes = [leaf.size for leaf in jax.tree.leaves(position)]
    scales = np.concatenate(
        [
            (0.5 + at + np.arange(leaf.size) % leaf.shape[-1] if leaf.ndim else np.asarray([0.5 + at]))
            for at, leaf in enumerate(jax.tree.leaves(position))
        ]
    )
    apart = np.asarray([-100.0, 100.0])[:, None, None]
    draws = apart + scales * rng.standard_normal((2, 20_000, sum(sizes)))
    splits = np.cumsum(sizes)[:-1]
    leaves = [part for part in np.split(draws, splits, axis=2)]
    found = learned_variance(add_positions(no_moments(2, sum(sizes)), leaves), position)
    assert_allclose(found, scales**2, rtol=0.05 + START_WEIGHT / 20_000)
    assert any(size > 64 for size in sizes)
    for part, leaf in zip(np.split(found, splits), jax.tree.leaves(position), strict=True):
        assert leaf.size <= 64 or not np.ptp(part.reshape(leaf.shape), axis=0).any()


def test_a_gaussian_with_any_scales_is_sampled_as_it_is(getkey):
    """Under the mass of its own variances, positions have them, and every coordinate is as quick as the others."""
    scales = jnp.repeat(jnp.asarray([0.01, 1.0, 50.0]), 200)

    def log_density(x, batch, key):
        return -0.5 * jnp.sum((x / scales) ** 2)

    sampler = sghmc(log_density, 10.0, step_size=0.3, friction=0.2, adaptation="position")
    chains = jax.tree.map(lambda leaf: leaf[None], sampler.init(jnp.zeros(600)))
    start = jax.tree.map(lambda leaf: leaf[0], with_variance(chains, np.asarray(scales) ** 2, 10.0))

    def body(state, key):
        state, info = sampler.burn_in(key, state, None)
        return state, (state.position / scales, info.temperature)

    _, (positions, temperature) = jax.jit(lambda keys: jax.lax.scan(body, start, keys))(jr.split(getkey(), 400))
    positions = np.asarray(positions[100:]).reshape(300, 3, 200)
    assert_allclose(positions.std(axis=(0, 2)), 1.0, atol=0.05)
    assert_allclose(np.asarray(temperature[100:]).mean(), 1.0, atol=0.05)
    correlation = (positions[10:] * positions[:-10]).mean(axis=(0, 2))
    assert np.ptp(correlation) < 0.05


@pytest.mark.parametrize("moment", [7, 14])
def test_an_interrupted_run_resumes_as_if_it_had_not_been_interrupted(moment, tmp_path):
    target, X, y = tiny_target()
    whole = sample(target, X, y, jr.key(3), plan=PLAN, num_chains=2)
    with pytest.raises(KilledError):
        cut_off_run(tmp_path / "run", jr.key(3), plan=PLAN, dies_after=moment)
    resumed, _ = cut_off_run(tmp_path / "run", jr.key(3), plan=PLAN, resume=True)
    assert_same(resumed, whole)


def test_the_mass_is_kept_during_the_draws(getkey):
    target, X, y = tiny_target()
    short = sample(target, X, y, jr.key(3), plan=PLAN, num_chains=2)
    longer = sample(target, X, y, jr.key(3), plan=replace(PLAN, num_draws=16), num_chains=2)
    assert_allclose(longer.chains.sampler.gradient_square, short.chains.sampler.gradient_square, rtol=1e-12)
    learned = np.asarray(short.chains.sampler.gradient_square)
    assert (learned[0] == learned[1]).all()
    assert np.unique(learned).size > 3


def test_chains_settle_at_the_step_of_the_median_chain():
    tried = np.asarray([[0.1, 0.1], [0.2, 0.2], [0.001, 0.001]])
    sampler = sghmc(lambda x, b, k: -0.5 * jnp.sum(x**2), 10, adaptation="position")
    chains = jax.vmap(sampler.init)(jnp.ones((3, 4)))._replace(step_size=jnp.asarray(tried))
    factor = settled_factor(chains, [tried, tried], PLAN)
    assert_allclose(factor * tried, EXACT_SAFETY * 0.1)
