import signal

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import tiny_target

import bsgp.inference.programs
from bsgp import DivergenceError, Plan, Posterior, sample
from bsgp.data.store.minibatches import Minibatches

SHORT = Plan(adam_steps=50, burn_in=200, num_draws=8, thinning=5, batch_size=10, chunk=50)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_key_gives_the_same_draws_and_another_other_ones(depth, getkey):
    target, X, y = tiny_target(depth=depth)
    key = getkey()
    first = sample(target, X, y, key, plan=SHORT, num_chains=2)
    again = sample(target, X, y, jax.random.clone(key), plan=SHORT, num_chains=2)
    other = sample(target, X, y, getkey(), plan=SHORT, num_chains=2)
    assert same(first.model, again.model)
    assert not same(first.model, other.model)


def test_chains_draws_and_evaluations_are_those_of_the_plan(getkey):
    target, X, y = tiny_target()
    seen = []
    run = sample(target, X, y, getkey(), plan=SHORT, num_chains=3, report=lambda *args: seen.append(args))
    posterior = Posterior.from_run(run)
    assert (posterior.num_chains, posterior.num_draws) == (3, 8)
    assert run.history.evaluations == SHORT.evaluations == 50 + 200 + 40
    assert run.history.energy["draws"].shape == (3, 40)
    assert {phase for phase, *_ in seen} == {"warm start", "burn-in", "draws"}
    assert seen[-1][:3] == ("draws", 40, 40)
    chains = run.model.layers[0].V
    assert np.abs(chains[0] - chains[1]).min() > 0


def test_warm_start_descends(getkey):
    target, X, y = tiny_target()
    energy = sample(target, X, y, getkey(), plan=SHORT).history.energy["warm start"]
    assert energy[0, -10:].mean() < energy[0, :10].mean()


def test_fixed_blocks_stay_and_optimised_ones_move_until_the_draws(getkey):
    target, X, y = tiny_target(treatment={"Z": "fix", "theta": "optimise", "noise": "sample"})
    run = sample(target, X, y, getkey(), plan=SHORT, num_chains=2)
    layer = run.model.layers[0]
    assert_array_equal(layer.Z, np.broadcast_to(target.model.layers[0].Z, layer.Z.shape))
    assert np.ptp(layer.kernel.lengthscales, axis=1).max() == 0
    moved = np.asarray(layer.kernel.lengthscales[:, 0]) - np.asarray(target.model.layers[0].kernel.lengthscales)
    assert np.abs(moved).min() > 1e-4
    assert np.ptp(run.model.likelihood.noise_variance, axis=1).min() > 0


def test_step_size_is_adapted_or_kept(getkey):
    target, X, y = tiny_target()
    adapted = sample(target, X, y, getkey(), plan=SHORT)
    kept = sample(target, X, y, getkey(), plan=Plan(**{**SHORT.__dict__, "step_size": 0.003}))
    assert len(np.unique(adapted.history.step_sizes)) > 1
    assert_allclose(kept.history.step_sizes, 0.003)


def test_a_chain_that_runs_too_hot_is_flagged(getkey):
    target, X, y = tiny_target()
    hot = Plan(**{**SHORT.__dict__, "step_size": 0.1, "batch_size": 3, "num_draws": 200})
    warnings = sample(target, X, y, getkey(), plan=hot).history.warnings
    assert any("runs hot" in warning and "too wide" in warning for warning in warnings)
    cool = Plan(**{**SHORT.__dict__, "step_size": 1e-4, "num_draws": 40})
    assert not any("runs hot" in warning for warning in sample(target, X, y, getkey(), plan=cool).history.warnings)


def test_a_chain_that_still_moves_is_flagged(getkey):
    target, X, y = tiny_target()
    cold_start = Plan(adam_steps=0, burn_in=0, num_draws=100, thinning=5, step_size=0.008)
    warnings = sample(target, X, y, getkey(), plan=cold_start).history.warnings
    assert any("still moves" in warning and "energy" in warning for warning in warnings)


def test_a_non_finite_value_stops_with_its_place_named(getkey):
    target, X, y = tiny_target()
    wild = Plan(**{**SHORT.__dict__, "step_size": 500.0})
    with pytest.raises(
        DivergenceError, match=r"Chain \d .*(layers|likelihood).* at update \d+ of the (burn-in|draws)\. .*step_size"
    ):
        sample(target, X, y, getkey(), plan=wild, num_chains=2)


def test_an_adapted_step_recovers_from_a_bad_start(getkey, monkeypatch):
    monkeypatch.setattr(bsgp.inference.programs, "START_STEP_SIZE", 500.0)
    target, X, y = tiny_target()
    run = sample(target, X, y, getkey(), plan=SHORT)
    assert run.history.step_sizes[-1].max() < 10.0
    assert np.isfinite(run.history.energy["draws"]).all()


def test_ctrl_c_returns_what_was_drawn(getkey):
    target, X, y = tiny_target()
    plan = Plan(**{**SHORT.__dict__, "num_draws": 40})

    def interrupt(phase, done, total, energy):
        if phase == "draws" and done >= 100:
            signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore the signal
    try:
        run = sample(target, X, y, getkey(), plan=plan, report=interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert run.history.interrupted
    assert 10 <= run.model.layers[0].Z.shape[1] < 40

    def at_once(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(target, X, y, getkey(), plan=plan, report=at_once)


def test_max_seconds_ends_every_phase_early(getkey):
    target, X, y = tiny_target()
    plan = Plan(**{**SHORT.__dict__, "adam_steps": 10**6, "burn_in": 10**6, "num_draws": 10**6, "max_seconds": 1e-3})
    run = sample(target, X, y, getkey(), plan=plan)
    assert run.history.interrupted
    assert run.model.layers[0].Z.shape[1] >= 1
    assert run.history.evaluations < 1000
    # burn-in had one chunk, at the first guess; the draws still get a step that was adapted and made safer
    assert (run.history.step_sizes[-1] < run.history.step_sizes[0]).all()


def test_every_row_is_seen_once_an_epoch():
    batches = Minibatches(30, 10, seed=0).take(6)
    for epoch in (batches[:3], batches[3:]):
        assert_array_equal(np.sort(epoch.ravel()), np.arange(30))
    assert not np.array_equal(batches[:3], batches[3:])
    counts = np.bincount(Minibatches(25, 10, seed=1).take(5000).ravel(), minlength=25)
    assert_allclose(counts / counts.mean(), 1.0, atol=0.08)


@pytest.mark.parametrize(
    "options",
    [{"num_draws": 0}, {"thinning": 0}, {"burn_in": -1}, {"batch_size": 0}, {"step_size": 0.0}, {"max_seconds": -1.0},
     {"integrator": "rk4"}, {"learning_rate": float("inf")}, {"chunk": 0}],
)  # fmt: skip
def test_impossible_plans_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        Plan(**options)


def test_the_old_name_of_the_adam_steps_warns():
    with pytest.warns(DeprecationWarning, match="now `adam_steps`"):
        plan = Plan(warm_start=7)
    assert plan == Plan(adam_steps=7)
    with pytest.warns(DeprecationWarning, match="now `adam_steps`"):
        assert plan.warm_start == 7
    assert plan.to_record()["warm_start"] == 7
    with pytest.raises(AttributeError, match="`cold_start`"):
        _ = plan.cold_start
