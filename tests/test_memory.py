import jax.random as jr
import numpy as np
import pytest

import bsgp.memory
from bsgp.fitting import Options, fit_method
from bsgp.likelihoods import gaussian
from bsgp.memory import available_memory, memory_of_chains

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


def test_axes_take_memory_where_there_are_few_enough_coordinates():
    def more(num_inputs):
        size = {**SIZE, "num_inputs": num_inputs, "num_chains": 4}
        plain, learned = (memory_of_chains(**size, is_streamed=True, learns_axes=flag) for flag in (False, True))
        return learned - plain

    assert more(4) == 6 * 4 * 4 * (128 * (4 + 1)) ** 2
    assert more(28) == 0


def test_what_is_free_is_less_than_a_petabyte_and_more_than_nothing():
    free = available_memory()
    assert free is None or 0 < free < 1e15


def test_the_limit_of_a_container_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\nactive_file 50\n")
    assert bsgp.memory._free_of_group(str(tmp_path)) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert bsgp.memory._free_of_group(str(tmp_path)) is None


@pytest.mark.parametrize(("method", "advice"), [("bsgp", "num_inducing"), ("exact-gp", "Pass fewer rows")])
def test_what_cannot_fit_is_refused_before_the_start_with_the_number(method, advice, monkeypatch):
    monkeypatch.setattr(bsgp.memory, "available_memory", lambda: 300_000_000)
    X = np.zeros((50, 2))
    with pytest.raises(ValueError, match=rf"about 0\.7 GB of memory, got 0\.3 GB that are free\. .*{advice}"):
        fit_method(method, X, X[:, :1], gaussian(1, X.dtype), jr.key(0), options=Options())
