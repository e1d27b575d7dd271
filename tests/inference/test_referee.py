"""SGHMC against NUTS with everything sampled; takes minutes (`make test-slow`)."""

import jax.random as jr
import pytest

from referee import errors, nuts_draws, problem, run_anchored, run_sghmc, summarise


@pytest.fixture(scope="module")
def reference():
    """The problem, and a summary of the draws of NUTS."""
    target, X, y, grid = problem()
    model, divergent = nuts_draws(target, X, y, jr.key(1), num_chains=2, warmup=1_000, num_draws=2_000)
    assert divergent < 40
    return target, X, y, grid, summarise(model, grid)


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [False, True])
def test_sghmc_agrees_with_nuts(anchored, reference):
    target, X, y, grid, nuts = reference
    if anchored:
        ours, run = run_anchored(target, X, y, grid, seed=2)
    else:
        ours, run = run_sghmc(target, X, y, grid, seed=2, integrator="baoab", step_size=None)
    found = errors(ours, nuts)
    assert found["mean"] < 0.1, found
    assert found["sd"] < 0.1, found
    assert found["predictive sd"] < 0.1, found
    assert not run.history.warnings, run.history.warnings
