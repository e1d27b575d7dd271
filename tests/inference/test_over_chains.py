"""Chains side by side: the same draws whatever the number of cores."""

import threading

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal
from problems import tiny_target

import bsgp.inference.over_chains
from bsgp import Plan, sample
from bsgp.inference.over_chains import SideBySide


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_draws_however_many_cores_run_the_chains(depth, monkeypatch, getkey):
    target, X, y = tiny_target(depth=depth)
    plan, key = Plan(adam_steps=20, burn_in=40, num_draws=4, thinning=5, batch_size=10, chunk=10), getkey()

    def draws(num_cores: int):
        monkeypatch.setattr(bsgp.inference.over_chains, "num_cores", lambda: num_cores)
        return jax.tree.leaves(sample(target, X, y, jax.random.clone(key), plan=plan, num_chains=4).model)

    for one, other in zip(draws(1), draws(4), strict=True):
        assert_array_equal(one, other)


def test_one_chain_compiles_ahead_of_the_others_which_then_run_at_once():
    meeting, seen = threading.Barrier(3, timeout=30), []

    def chain(number: int) -> int:
        seen.append(number)
        if number > 0:
            meeting.wait()  # passes only if three threads are here together
        return number

    side_by_side = SideBySide(num_threads=3)
    assert side_by_side("name", chain, 4) == [0, 1, 2, 3]
    assert seen[0] == 0


def test_threads_have_the_precision_of_the_caller():
    for is_x64 in (True, False):
        with jax.enable_x64(is_x64):
            found = SideBySide(num_threads=2)("name", lambda _: jnp.ones(1).dtype, 3)
        assert {str(one) for one in found} == {"float64" if is_x64 else "float32"}
