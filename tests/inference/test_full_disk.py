"""A disk that is really full: a file system of one megabyte in memory, where the system lets us mount one."""

import logging
import os
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from cut_off_runs import NUM_CHUNKS, KilledError, assert_same, run, whole_run
from refusals import message

from bsgp.data.store.store import open_store
from bsgp.data.tables.write import write_table


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs `mount`")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"may not mount a file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # lazy: a store may still be open


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)


def fill(disk: Path) -> None:
    usage = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(usage.f_bfree * usage.f_frsize))
    assert os.statvfs(disk).f_bfree == 0


def num_bytes(disk: Path) -> int:
    usage = os.statvfs(disk)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


# one is full of the rows as they are read, the other of what a few words become: a column for each
WORDS = np.array([f"word {at}" for at in range(40)], object)
TABLES = {
    "while it is read": {name: np.random.default_rng(0).random(70_000) for name in "abcdy"},
    "while it is shuffled": {"word": WORDS[np.arange(20_000) % 40], "y": np.arange(20_000.0)},
}


@pytest.mark.parametrize("moment", TABLES)
def test_a_table_that_does_not_fit_is_converted_once_there_is_room(small_disk, tmp_path, moment):
    write_table(tmp_path / "x.parquet", TABLES[moment])
    said: list[str] = []
    options = {"targets": ["y"], "cache": small_disk / "stores", "say": said.append}
    assert "stores` must have room for about" in message(open_store, tmp_path / "x.parquet", **options)
    assert any("Shuffling" in line for line in said) == (moment == "while it is shuffled")
    assert os.listdir(small_disk / "stores") == []
    assert num_bytes(small_disk) < 20_000
    enlarge(small_disk)
    found = open_store(tmp_path / "x.parquet", **options)
    assert len(found.read_blocks(range(found.num_blocks))) == len(TABLES[moment]["y"])  # each with its checksum


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_predictions_that_do_not_fit_leave_those_before_them(small_disk, ending):
    path = small_disk / f"predictions.{ending}"
    write_table(path, {"mean": np.ones(3)})
    before = path.read_bytes()
    assert "No space left on device" in message(write_table, path, {"mean": np.random.default_rng(0).random(300_000)})
    assert os.listdir(small_disk) == [path.name]
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def whole():
    return whole_run(jax.random.key(3))


def test_a_run_goes_on_while_the_disk_is_full_and_resumes_from_the_last_checkpoint(small_disk, whole, caplog):
    folder = small_disk / "run"
    full_from, dies_after = 6, 11
    with caplog.at_level(logging.WARNING, logger="bsgp"), pytest.raises(KilledError):
        run(folder, jax.random.key(3), dies_after=dies_after, happening={full_from: lambda: fill(small_disk)})
    assert "No space left on device" in caplog.text
    assert f"the run continues, checkpoint {full_from - 1} is kept" in caplog.text
    assert not list(folder.glob(".*.part"))
    (small_disk / "ballast").unlink()
    resumed, seen = run(folder, jax.random.key(3), resume=True)
    assert NUM_CHUNKS - full_from <= len(seen) <= NUM_CHUNKS - full_from + 2
    assert_same(resumed, whole)


def test_checkpoints_are_written_again_once_there_is_room(small_disk, whole, caplog):
    folder = small_disk / "run"
    happening = {6: lambda: fill(small_disk), 10: (small_disk / "ballast").unlink}
    with caplog.at_level(logging.WARNING, logger="bsgp"), pytest.raises(KilledError):
        run(folder, jax.random.key(3), dies_after=14, happening=happening)
    assert "the run continues" in caplog.text
    resumed, seen = run(folder, jax.random.key(3), resume=True)
    assert len(seen) <= NUM_CHUNKS - 14 + 2
    assert_same(resumed, whole)
