"""Estimates of the memory that fits need."""

import jax.random as jr
import numpy as np
import pytest

import bsgp.runtime.memory
from bsgp.methods.memory import memory_of_chains
from bsgp.methods.options import Options
from bsgp.methods.registry import fit_method
from bsgp.models.likelihoods.classes import Categorical
from bsgp.models.likelihoods.gaussian_noise import gaussian

SIZE = {
    "num_rows": 11_000_000, "num_inputs": 28, "num_targets": 1, "num_inducing": 128, "depth": 1, "num_chains": 1,
    "num_draws": 256, "batch_size": 1_000, "updates_per_chunk": 160, "itemsize": 4,
}  # fmt: skip


def test_rows_on_disk_take_no_memory_and_rows_in_memory_do():
    streamed, held = (memory_of_chains(**SIZE, is_streamed=flag) for flag in (True, False))
    assert streamed < 1.5e9 < 4e9 < held
    assert memory_of_chains(**{**SIZE, "num_rows": 10**9}, is_streamed=True) == streamed
    for name in ("num_inducing", "depth", "num_chains", "num_draws", "itemsize"):
        assert memory_of_chains(**{**SIZE, name: 2 * SIZE[name]}, is_streamed=True) > streamed


def test_every_class_takes_memory_and_no_more_than_its_share():
    def needed(num_classes):
        size = {**SIZE, "num_inputs": 20, "num_rows": 2_000, "num_chains": 4, "num_draws": 128, "itemsize": 8}
        return memory_of_chains(**{**size, "num_targets": num_classes}, is_streamed=False)

    assert needed(100) - needed(3) > 500_000_000
    assert needed(200) - needed(100) == pytest.approx(needed(300) - needed(200), rel=1e-6)  # linear
    assert needed(1_000) < 12e9


def test_a_fit_of_too_many_classes_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(bsgp.runtime.memory, "available_memory", lambda: 1_000_000_000)
    X, y = np.random.default_rng(0).standard_normal((400, 2)), np.arange(400.0)[:, None] % 200
    with pytest.raises(ValueError, match=r"about \d\.\d GB of memory, got 1\.0 GB available\. Lower `num_inducing`"):
        fit_method("bsgp", X, y, Categorical(200), jr.key(0), options=Options())


def test_axes_take_memory_up_to_a_number_of_coordinates():
    def more(num_inputs):
        size = {**SIZE, "num_inputs": num_inputs, "num_chains": 4}
        plain, learned = (memory_of_chains(**size, is_streamed=True, learns_axes=flag) for flag in (False, True))
        return learned - plain

    assert more(4) == 6 * 4 * 4 * (128 * (4 + 1)) ** 2
    assert more(28) == 0


@pytest.mark.parametrize(("method", "advice"), [("bsgp", "num_inducing"), ("exact-gp", "Pass fewer rows")])
def test_a_fit_that_needs_too_much_memory_is_refused_with_the_numbers(method, advice, monkeypatch):
    monkeypatch.setattr(bsgp.runtime.memory, "available_memory", lambda: 300_000_000)
    X = np.zeros((50, 2))
    with pytest.raises(ValueError, match=rf"about 0\.7 GB of memory, got 0\.3 GB available\. .*{advice}"):
        fit_method(method, X, X[:, :1], gaussian(1, X.dtype), jr.key(0), options=Options())
