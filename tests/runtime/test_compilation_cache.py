"""Compiled programs are kept on disk between processes."""

import subprocess
import sys
from pathlib import Path

from bsgp.runtime.files import cache_folder

COMPILE = """
import jax, jax.monitoring, jax.random as jr, sys
from bsgp.runtime.compilation import enable_compilation_cache
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if "cache_hits" in name else None)
assert str(enable_compilation_cache()) == sys.argv[1]
jax.jit(lambda x: jax.numpy.linalg.cholesky(x @ x.T + 5.0) * 3.0)(jax.numpy.eye(4)).block_until_ready()
print(len(hits))
"""


def test_a_second_process_finds_what_the_first_compiled(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("BSGP_CACHE", str(folder))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")  # that of the tests themselves
    hits = [
        int(
            subprocess.run(
                [sys.executable, "-c", COMPILE, str(folder)], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(2)
    ]
    assert hits[0] == 0
    assert hits[1] > 0
    assert any(folder.iterdir())


def test_the_cache_can_be_moved_and_switched_off(monkeypatch, tmp_path):
    for off in ("", "off", "0"):
        monkeypatch.setenv("BSGP_CACHE", off)
        assert cache_folder("compiled") is None
        assert cache_folder("stores") is None
    monkeypatch.setenv("BSGP_CACHE", str(tmp_path))
    assert cache_folder("compiled") == tmp_path
    assert cache_folder("stores") == tmp_path / "stores"
    monkeypatch.delenv("BSGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("compiled") == Path(tmp_path) / "bsgp" / "compiled"
    assert cache_folder("stores") == Path(tmp_path) / "bsgp" / "stores"
