"""SGHMC against NUTS with everything sampled. Minutes: `make test-slow`."""

import jax.random as jr
import pytest

from referee import errors, nuts_draws, problem, run_sghmc, summarise


@pytest.mark.slow
def test_sghmc_agrees_with_nuts():
    target, X, y, grid = problem()
    model, divergent = nuts_draws(target, X, y, jr.key(1), num_chains=2, warmup=1_000, num_draws=2_000)
    assert divergent < 40
    ours, run = run_sghmc(target, X, y, grid, seed=2, integrator="baoab", step_size=None)
    found = errors(ours, summarise(model, grid))
    assert found["mean"] < 0.1, found
    assert found["sd"] < 0.1, found
    assert found["predictive sd"] < 0.1, found
    assert not run.warnings, run.warnings
