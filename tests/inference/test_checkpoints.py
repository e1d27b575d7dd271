import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from cut_off_runs import NUM_CHUNKS, PLAN, SETTINGS, KilledError, assert_same, run, whole_run
from numpy.testing import assert_array_equal

import bsgp.inference.checkpoints
from bsgp import Plan
from bsgp.inference.checkpoints import Checkpoints, Snapshot


@pytest.fixture(scope="module")
def whole():
    return whole_run(jax.random.key(3))


@pytest.mark.parametrize("moment", range(1, NUM_CHUNKS + 1, 3))
def test_a_run_that_is_cut_off_goes_on_as_if_it_had_not_been(moment, whole, tmp_path):
    with pytest.raises(KilledError):
        run(tmp_path / "run", jax.random.key(3), dies_after=moment)
    resumed, seen = run(tmp_path / "run", jax.random.key(3), resume=True)
    assert_same(resumed, whole)
    assert len(seen) <= NUM_CHUNKS - moment + 1 + (moment == 1)


def test_a_run_is_cut_off_again_and_again(whole, tmp_path):
    folder, rounds = tmp_path / "run", 0
    while True:
        rounds += 1
        try:
            resumed, _ = run(folder, jax.random.key(3), resume=True, dies_after=3)
            break
        except KilledError:
            continue
    assert rounds > 4
    assert_same(resumed, whole)


def test_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(whole, tmp_path, caplog):
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run(folder, jax.random.key(3), dies_after=14)
    states = sorted(folder.glob("state-*"))
    assert len(states) == 2 == len(list(folder.glob("checkpoint-*.json")))
    damaged = bytearray(states[-1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    states[-1].write_bytes(damaged)
    with caplog.at_level(logging.WARNING, logger="bsgp"):
        resumed, _ = run(folder, jax.random.key(3), resume=True)
    assert "does not match its checksum" in caplog.text
    assert_same(resumed, whole)
    for state in folder.glob("state-*"):
        state.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged ones only"):
        run(folder, jax.random.key(3), resume=True)


def test_without_resume_a_run_begins_anew(whole, tmp_path, caplog):
    with pytest.raises(KilledError):
        run(tmp_path / "run", jax.random.key(4), dies_after=14)
    with caplog.at_level(logging.WARNING, logger="bsgp"):
        anew, seen = run(tmp_path / "run", jax.random.key(3))
    assert "is discarded" in caplog.text
    assert len(seen) == NUM_CHUNKS
    assert_same(anew, whole)


def test_other_settings_and_newer_versions_are_refused(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run(folder, jax.random.key(3), dies_after=6)
    with pytest.raises(ValueError, match=r"another `seed`: it was 0 and is 1"):
        run(folder, jax.random.key(3), resume=True, settings={**SETTINGS, "seed": 1})
    with pytest.raises(ValueError, match="belongs to another run"):  # the settings do not say it, the chains do
        run(folder, jax.random.key(3), resume=True, chains=1)
    # what is None by default may not have been a setting when the checkpoint was written
    with pytest.raises(KilledError):
        run(folder, jax.random.key(3), resume=True, settings={**SETTINGS, "of_later": None}, dies_after=8)
    for path in folder.glob("checkpoint-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 3}))
    with pytest.raises(ValueError, match="version 2, got 3"):
        run(folder, jax.random.key(3), resume=True)


@pytest.mark.parametrize("change", [{"chains": [7]}, {"phase": None}, {"batches": "many"}, {"evaluations": None}])
def test_facts_that_do_not_belong_are_refused(change, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run(folder, jax.random.key(3), dies_after=6)
    for path in folder.glob("checkpoint-*.json"):
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "facts": {**document["facts"], **change}}))
    with pytest.raises(ValueError, match=r"belongs to another run|must hold"):
        run(folder, jax.random.key(3), resume=True)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"`thesis.tex` in it"):
        Checkpoints(tmp_path, SETTINGS)
    with pytest.raises(ValueError, match="got a file"):
        Checkpoints(tmp_path / "thesis.tex", SETTINGS)


def test_a_failing_disk_does_not_end_a_run(whole, tmp_path, caplog, monkeypatch):
    folder, count = tmp_path / "run", 0
    flush = os.fsync

    def full(descriptor):
        nonlocal count
        count += 1
        if count > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(bsgp.inference.checkpoints.os, "fsync", full)
    with caplog.at_level(logging.WARNING, logger="bsgp"):
        done, _ = run(folder, jax.random.key(3))
    assert "No space left on device" in caplog.text
    assert "the run continues" in caplog.text
    assert_same(done, whole)
    assert not list(folder.glob("*.part"))
    monkeypatch.undo()
    resumed, _ = run(folder, jax.random.key(3), resume=True)  # from the last good one
    assert_same(resumed, whole)


def test_draws_that_were_not_written_are_written_next_time(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "run", SETTINGS)
    assert checkpoints.load() is None
    first, second = ({"draws.0": np.full(3, number)} for number in (1.0, 2.0))
    state = {"x": np.arange(4.0)[::2]}
    assert checkpoints.save(Snapshot(state, {"n": 1}, [first]))
    with monkeypatch.context() as patch:
        patch.setattr(
            bsgp.inference.checkpoints.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
        )
        assert not checkpoints.save(Snapshot(state, {"n": 2}, [second]))
    assert checkpoints.save(Snapshot(state, {"n": 3}, [second, first]))
    found = Checkpoints(tmp_path / "run", SETTINGS, resume=True).load()
    assert found is not None
    assert found.facts == {"n": 3}
    assert [float(draws["draws.0"][0]) for draws in found.draws] == [1.0, 2.0, 1.0]
    assert_array_equal(found.arrays["x"], [0.0, 2.0])


def test_max_seconds_can_be_gone_on_with(tmp_path):
    folder = tmp_path / "run"
    short = Plan(**{**PLAN.__dict__, "max_seconds": 1e-3})
    first, _ = run(folder, jax.random.key(3), plan=short)
    assert first.history.interrupted
    longer, _ = run(folder, jax.random.key(3), resume=True)
    assert not longer.history.interrupted
    num_drawn = first.model.layers[0].Z.shape[1]
    assert num_drawn < longer.model.layers[0].Z.shape[1] == PLAN.num_draws
    assert_array_equal(longer.model.layers[0].Z[:, :num_drawn], first.model.layers[0].Z)


FIT = """
import sys
from bsgp.cli import main
main(sys.argv[1:])
"""


def fit_command(table: Path, out: Path, *options: str) -> list[str]:
    arguments = [
        "fit", str(table), "--target", "y", "--out", str(out), "--effort", "0.1", "--num-inducing", "12",
        "--checkpoint-seconds", "0.001", "--quiet", *options,
    ]  # fmt: skip
    return [sys.executable, "-c", FIT, *arguments]


def draws_of(folder: Path) -> bytes:
    return (folder / "arrays.safetensors").read_bytes()


def kill_and_resume(table: Path, out: Path, checkpoint: int, delay: float, *options: str) -> bool:
    """Kill once a checkpoint of that number is there, and a little later; whether there was someone to kill."""
    process = subprocess.Popen(fit_command(table, out, *options))
    folder = out.with_name(f"{out.name}.checkpoint")
    while process.poll() is None:
        numbers = [int(path.stem[-6:]) for path in folder.glob("checkpoint-*.json")]
        if max(numbers, default=-1) >= checkpoint or checkpoint == 0:
            time.sleep(delay)
            break
        time.sleep(0.002)
    was_alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(fit_command(table, out, "--resume", *options), check=True)
    return was_alive


def write_table(path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=600)
    path.write_text("a,b,y\n" + "\n".join(f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True)))


def check_kills(tmp_path: Path, moments: int, options: tuple[str, ...]) -> None:
    write_table(tmp_path / "t.csv")
    subprocess.run(fit_command(tmp_path / "t.csv", tmp_path / "whole", *options), check=True)
    rng, killed = np.random.default_rng(1), 0
    for moment in range(moments):
        out, checkpoint = tmp_path / f"killed{moment}", int(rng.integers(0 if moment else 2, 7 if moment else 4))
        killed += kill_and_resume(tmp_path / "t.csv", out, checkpoint, rng.uniform(0.0, 0.1), *options)
        assert draws_of(out) == draws_of(tmp_path / "whole")
        assert not (tmp_path / f"killed{moment}.checkpoint").exists()
    assert killed >= max(1, moments // 2)


def test_a_killed_process_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("BSGP_CACHE", str(tmp_path / "cache"))
    check_kills(tmp_path, 1, ())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", [(), ("--stream", "--chains", "2")])
def test_thirty_killed_processes_go_on_bit_for_bit(options, tmp_path, monkeypatch):
    monkeypatch.setenv("BSGP_CACHE", str(tmp_path / "cache"))
    check_kills(tmp_path, 15, options)
