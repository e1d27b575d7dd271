"""Chains that become non-finite or run away: they are set back, and dropped if that does not help."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import tiny_target

import bsgp.inference.guard
from bsgp import DivergenceError, Plan, sample
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.chunk_runner import MAX_SET_BACK, ChunkRunner
from bsgp.inference.events import Dropped, Hot, SetBack
from bsgp.inference.guard import faults
from bsgp.inference.programs import adam_chunk, sample_chunk

PLAN = Plan(adam_steps=20, burn_in=40, num_draws=8, thinning=5, batch_size=10, chunk=10)


def test_faults_are_found_by_chain_with_their_place():
    energy = np.zeros((4, 50))
    energy[1, 7] = np.nan
    heat = {"Z": np.ones((4, 50)), "V": np.ones((4, 50))}
    heat["V"][1, 7] = heat["Z"][2, 30] = np.inf
    heat["Z"][3] = 40.0
    found = faults(energy, heat, {"Z": 0.1, "V": 0.1}, limit=10.0)
    assert set(found) == {1, 2, 3}
    assert found[1] == (7, "became non-finite in V", False)
    assert found[2] == (30, "became non-finite in Z", False)
    assert "ran away in Z (temperature 40" in found[3].what
    assert found[3].is_finite
    assert not faults(energy[:1], {"Z": heat["Z"][3:]}, {"Z": 6.0}, limit=10.0)  # so few updates say little


class Sabotage:
    """Spoils a chain in chosen chunks of updates; None are all. Repeated chunks count."""

    def __init__(self, monkeypatch, chain, calls, value=np.nan):
        self.chain, self.calls, self.value = chain, calls, value
        self.count, self.num_chains = 0, 0
        real = ChunkRunner.run
        monkeypatch.setattr(
            ChunkRunner, "run", lambda run, program, *rest: self.spoil(program, real(run, program, *rest))
        )

    def spoil(self, program, done):
        if program is not sample_chunk:
            return done
        after, positions, info = done
        self.count += 1
        self.num_chains = max(self.num_chains, info.energy.shape[0])
        is_there = info.energy.shape[0] == self.num_chains  # and has not been left out
        if is_there and (self.calls is None or self.count in self.calls):
            info = info._replace(temperature=info.temperature.at[self.chain, 3].set(self.value))
        return after, positions, info


def run(plan=PLAN, num_chains=3, checkpoints=None):
    target, X, y = tiny_target()
    return sample(target, X, y, jax.random.key(5), plan=plan, num_chains=num_chains, checkpoints=checkpoints)


@pytest.mark.parametrize("value", [np.nan, 1e6])
def test_one_chain_is_taken_back_and_the_others_go_on_as_they_were(value, monkeypatch):
    plain = run()
    first_draws = 5  # four chunks of burn-in come before
    Sabotage(monkeypatch, chain=1, calls={first_draws}, value=value)
    mended = run()
    for before, after in zip(jax.tree.leaves(plain.model), jax.tree.leaves(mended.model), strict=True):
        np.testing.assert_array_equal(np.asarray(before)[[0, 2]], np.asarray(after)[[0, 2]])
    assert not np.array_equal(plain.model.layers[0].Z[1], mended.model.layers[0].Z[1])
    steps = np.asarray(mended.chains.sampler.step_size) / np.asarray(plain.chains.sampler.step_size)
    np.testing.assert_allclose(steps, np.where(np.arange(3)[:, None] == 1, 0.5, 1.0) * np.ones_like(steps))
    (failure,) = mended.history.events
    assert isinstance(failure, SetBack)
    assert (failure.chain, failure.phase, failure.update) == (1, "draws", 3)
    assert "Chain 1 " in mended.history.warnings[0]
    assert mended.history.evaluations == plain.history.evaluations + PLAN.chunk


def test_a_chain_that_cannot_be_mended_is_left_out(monkeypatch, tmp_path):
    Sabotage(monkeypatch, chain=1, calls=set(range(7, 30)))
    done = run(checkpoints=Checkpoints(tmp_path / "run", {}, every=1e-9))
    assert done.model.layers[0].Z.shape[:2] == (2, 8)
    assert done.history.energy["warm start"].shape == (2, 20)
    assert [event.chain for event in done.history.events if isinstance(event, Dropped)] == [1]
    assert any("Chain 1" in warning and "was dropped" in warning for warning in done.history.warnings)
    assert {event.chain for event in done.history.events} == {1}
    monkeypatch.undo()
    again = run(checkpoints=Checkpoints(tmp_path / "run", {}, resume=True))  # what was written has two chains, too
    np.testing.assert_array_equal(again.model.layers[0].Z, done.model.layers[0].Z)
    assert again.history.warnings == done.history.warnings


def test_the_last_chain_ends_the_run_with_advice(monkeypatch):
    Sabotage(monkeypatch, chain=0, calls=None)
    with pytest.raises(DivergenceError, match=r"Chain 0 became non-finite .* of the burn-in\. Stand"):
        run(num_chains=1)


def test_a_chain_that_runs_away_again_and_again_is_left_out_at_last(monkeypatch):
    calls = set(range(5, 200, 2))  # every second call: each chunk of the draws is done twice
    Sabotage(monkeypatch, chain=0, calls=calls)
    done = run(plan=Plan(**{**PLAN.__dict__, "num_draws": 40}), num_chains=2)
    assert done.model.layers[0].Z.shape[0] == 1
    assert sum(isinstance(event, SetBack) for event in done.history.events) == MAX_SET_BACK


def test_a_warm_start_that_leaves_the_numbers_is_slowed_down(monkeypatch):
    real, rates = ChunkRunner.run, []

    def spoiled(run, program, plan, *rest):
        done = real(run, program, plan, *rest)
        if program is not adam_chunk:
            return done
        positions, adam, energy = done
        rates.append(plan.learning_rate)
        return positions, adam, energy if plan.learning_rate < 0.002 else energy.at[0, 2].set(jnp.inf)

    monkeypatch.setattr(ChunkRunner, "run", spoiled)
    done = run(num_chains=2)
    assert len(done.history.events) == 2  # 0.02, 0.005 and then 0.00125
    assert rates[2] < 0.002
    assert rates[-1] == rates[2]
    assert np.isfinite(done.history.energy["warm start"]).all()


def test_warnings_name_chains_by_their_number_and_not_by_their_place(monkeypatch):
    """Once chain 0 is dropped, chain 1 is the first that is left."""
    Sabotage(monkeypatch, chain=0, calls=set(range(1, 30)))
    monkeypatch.setattr(bsgp.inference.guard, "HOT", -np.inf)
    events = run(num_chains=2).history.events
    assert [event.chain for event in events if isinstance(event, Dropped)] == [0]
    assert {event.chain for event in events if isinstance(event, Hot)} == {1}
