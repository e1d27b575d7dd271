"""Default settings against NUTS and against the prior, with everything sampled; takes minutes (`make test-slow`)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bsgp import Target, sample
from bsgp.inference.anchor import Anchor
from bsgp.methods.bsgp import default_recipe
from bsgp.methods.recipe import ProblemSize
from referee import deep_problem, errors, nuts_draws, problem, run_anchored, run_sghmc, summarise
from sbc import CASES, calibrate, p_values


def default_plan(num_rows: int, depth: int = 1, is_streamed: bool = False):
    return default_recipe(ProblemSize(num_rows, 4, 1, depth, is_gaussian=True, is_streamed=is_streamed)).plan


def assert_agrees(found: dict[str, float]) -> None:
    assert found["mean"] < 0.1, found
    assert found["sd"] < 0.1, found
    assert found["predictive sd"] < 0.1, found


@pytest.fixture(scope="module")
def reference():
    """The problem, and a summary of the draws of NUTS."""
    target, X, y, grid = problem()
    model, divergent = nuts_draws(target, X, y, jr.key(1), num_chains=2, warmup=1_000, num_draws=2_000)
    assert divergent < 40
    return target, X, y, grid, summarise(model, grid)


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["plain", "anchored", "default"])
def test_sghmc_agrees_with_nuts(coordinates, reference):
    """In plain coordinates, in anchored ones, and as the default recipe for few rows has it."""
    target, X, y, grid, nuts = reference
    if coordinates == "plain":
        ours, run = run_sghmc(target, X, y, grid, seed=2, integrator="baoab", step_size=None)
    elif coordinates == "anchored":
        ours, run = run_anchored(target, X, y, grid, seed=2)
    else:
        anchored = Target(target.model, len(X), anchor=Anchor(jnp.asarray(X), jnp.asarray(y)))
        run = sample(anchored, X, y, jr.key(2), plan=default_plan(len(X)), num_chains=4)
        ours = summarise(run.model, grid)
    assert_agrees(errors(ours, nuts))
    assert not run.history.warnings


@pytest.mark.slow
def test_minibatches_with_some_anchor_rows_agree_with_nuts():
    """Everything sampled, a tenth of the rows in a minibatch, a quarter of them anchors, adapted settings."""
    target, X, y, grid = problem(num_rows=200)
    model, divergent = nuts_draws(target, X, y, jr.key(1), num_chains=2, warmup=500, num_draws=800)
    assert divergent < 40
    anchor = Anchor(jnp.asarray(X[:50]), jnp.asarray(y[:50]))
    plan = replace(default_plan(2_000, is_streamed=True), batch_size=20, num_draws=512)
    run = sample(Target(target.model, len(X), anchor=anchor), X, y, jr.key(2), plan=plan, num_chains=4)
    assert_agrees(errors(summarise(run.model, grid), summarise(model, grid)))


@pytest.mark.slow
def test_two_layers_agree_with_nuts():
    """u, kernels and noise of both layers, with the default settings for few rows."""
    target, X, y, grid = deep_problem()
    model, divergent = nuts_draws(target, X, y, jr.key(1), num_chains=2, warmup=400, num_draws=600)
    assert divergent < 12
    anchor = Anchor(jnp.asarray(X), jnp.asarray(y))
    anchored = Target(target.model, len(X), treatment={"Z": "fix"}, anchor=anchor)
    run = sample(anchored, X, y, jr.key(2), plan=default_plan(len(X), depth=2), num_chains=4)
    assert_agrees(errors(summarise(run.model, grid), summarise(model, grid)))
    assert not run.history.warnings


@pytest.mark.slow
def test_ranks_of_true_values_are_uniform():
    with jax.debug_key_reuse(False):
        found = p_values(calibrate(CASES["one layer, all rows"], 40))
    assert min(found.values()) > 1e-3, found
    assert np.median(list(found.values())) > 0.05, found
