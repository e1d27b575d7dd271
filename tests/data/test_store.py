"""Stores: converted once, shuffled, shared between processes, and checked for damage and changes."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_files import write_ipc
from numpy.testing import assert_allclose, assert_array_equal
from refusals import message

from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.targets import targets_of, task_of
from bsgp.data.store import convert, store
from bsgp.data.store.convert import Sizes
from bsgp.data.store.packing import Packing
from bsgp.data.store.store import DESCRIPTION, ROWS, Store, open_store
from bsgp.data.tables.files import read_table
from bsgp.data.tables.write import write_table

SMALL = Sizes(chunk_rows=37, bucket_bytes=2000, block_rows=10)


def write_mixed(path: Path, num_rows: int = 500) -> Path:
    """Writes columns of all kinds; `late` starts with numbers, and some values of `code` have leading zeros."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=num_rows)
    rows = np.arange(num_rows)
    text = {
        "x": x,
        "holes": np.where(rng.random(num_rows) < 0.3, np.nan, x),
        "seconds": 1.6e9 + np.round(1e4 * x),
        "truth": x > 0,
        "word": rng.choice(["red", "green", "blue"], num_rows),
        "gaps": np.where(rng.random(num_rows) < 0.2, None, rng.choice(["u", "v"], num_rows).astype(object)),
        "late": np.where(rows < 400, rows % 3, rows % 2).astype(str).astype(object),
        "code": np.array([f"{at % 5:02d}" if at % 90 == 3 else str(at % 5) for at in rows], object),
        "constant": np.ones(num_rows),
        "copy": x,
        "id": np.array([f"row {at}" for at in rows], object),
        "y": 100.0 + 5.0 * x,
    }
    text["late"][450] = "n"
    if path.suffix in (".arrow", ".arrows"):
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in text.items()})
        table = table.set_column(table.column_names.index("word"), "word", table["word"].dictionary_encode())
        write_ipc(path, table, rows=100)
    else:
        write_table(path, text)
    return path


@pytest.fixture
def mixed(tmp_path) -> Path:
    return write_mixed(tmp_path / "mixed.csv")


@pytest.fixture
def opened(tmp_path, mixed) -> Store:
    return open_store(mixed, targets=["y"], ignore=["id"], cache=tmp_path / "cache", sizes=SMALL)


def plain(tmp_path, num_rows=95, **options) -> Store:
    """A store in which `y` is the row number and `x` its square."""
    rows = np.arange(num_rows, dtype=float)
    if not (tmp_path / "plain.parquet").exists():
        write_table(tmp_path / "plain.parquet", {"x": rows**2, "y": rows})
    options = {"targets": ["y"], "cache": tmp_path / "cache", "sizes": SMALL} | options
    return open_store(tmp_path / "plain.parquet", **options)


def row_numbers(found: Store, y: np.ndarray) -> np.ndarray:
    return np.rint(y[..., 0] * found.target_state.scale[0] + found.target_state.mean[0]).astype(int)


def all_rows(found: Store) -> tuple[np.ndarray, np.ndarray]:
    """X and y in the order of the store."""
    rows = found.read_blocks(range(found.num_blocks))
    return rows[:, : found.num_inputs], rows[:, found.num_inputs :]


# -- what is in it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "arrow", "arrows"])
def test_rows_are_those_of_the_table_encoded(tmp_path, ending):
    path = write_mixed(tmp_path / f"mixed.{ending}")
    found = open_store(path, targets=["y"], ignore=["id"], cache=tmp_path / "cache", sizes=SMALL)
    table = read_table(path).without(["id"])
    schema, notes = InputSchema.learn(table.without(["y"]))
    assert found.notes == notes
    assert found.schema.names == schema.names
    assert found.schema.encoded_names == schema.encoded_names
    assert found.schema.dropped == {"constant": "constant", "copy": "same as `x`"}
    assert (found.num_rows, found.num_inputs, found.num_targets) == (500, schema.width, 1)
    X, _ = schema.encode(table.without(["y"]))
    y = table.columns["y"].values
    expected = np.column_stack([X, (y - y.mean()) / y.std()])
    rows = np.column_stack(all_rows(found))
    assert rows.dtype == np.float32
    assert_allclose(rows[np.argsort(rows[:, -1])], expected[np.argsort(expected[:, -1])], atol=3e-6)


def test_a_folder_of_files(tmp_path):
    rows = np.arange(90, dtype=float)
    (tmp_path / "parts").mkdir()
    for at in range(3):
        write_table(tmp_path / "parts" / f"{at}.parquet", {"x": rows[at::3], "y": rows[at::3]})
    found = open_store(tmp_path / "parts", targets=["y"], cache=tmp_path / "cache", sizes=SMALL)
    assert sorted(row_numbers(found, all_rows(found)[1])) == list(range(90))
    files = [str(tmp_path / "parts" / f"{at}.parquet") for at in range(3)]
    assert found.sources == files
    write_table(tmp_path / "parts" / "1.parquet", {"x": rows[:3], "z": rows[:3]})
    said = message(open_store, tmp_path / "parts", targets=["y"], cache=tmp_path / "cache")
    assert "1.parquet` must have the columns" in said


@pytest.mark.parametrize("kind", ["text", "boolean", "number"])
def test_classes(tmp_path, kind):
    labels = {"text": ["no", "yes", "maybe"], "boolean": [True, False], "number": [7, 10**9 + 1, -2]}[kind]
    values = np.array(labels, object if kind == "text" else None)[np.arange(90) % len(labels)]
    write_table(tmp_path / "x.parquet", {"x": np.arange(90.0), "y": values})
    found = open_store(
        tmp_path / "x.parquet", targets=["y"], task="classification", cache=tmp_path / "cache", sizes=SMALL
    )
    assert found.task == "classification"
    assert found.target_state.classes == tuple(sorted(labels))
    X, y = all_rows(found)
    rows = np.rint(X[:, 0] * found.schema.features[0].scale + found.schema.features[0].mean).astype(int)
    assert found.target_state.labels[y[:, 0].astype(int)].tolist() == values[rows].tolist()


def test_several_targets_and_more_rows_than_were_expected(tmp_path, monkeypatch):
    rows = np.arange(400.0)
    write_table(tmp_path / "x.csv", {"a": rows, "x": rows, "b": -rows})
    monkeypatch.setattr(convert, "_MAX_BUCKETS", 3)
    sizes = Sizes(chunk_rows=50, bucket_bytes=100, block_rows=10)
    found = open_store(tmp_path / "x.csv", targets=["b", "a"], cache=tmp_path / "cache", sizes=sizes)
    X, y = all_rows(found)
    assert_allclose(y[:, 1], X[:, 0], rtol=1e-6)
    assert_allclose(y[:, 0], -X[:, 0], rtol=1e-6)
    assert sorted(np.rint(y[:, 1] * found.target_state.scale[1] + found.target_state.mean[1])) == rows.tolist()


def test_a_column_that_turns_out_to_be_text_is_read_again_once(tmp_path):
    columns = {f"late{at}": np.where(np.arange(300) < 100 + 50 * at, "1", "w").astype(object) for at in range(4)}
    write_table(tmp_path / "x.csv", columns | {"y": np.arange(300.0)})
    said = []
    found = open_store(tmp_path / "x.csv", targets=["y"], cache=tmp_path / "cache", sizes=SMALL, say=said.append)
    assert [feature.categories for feature in found.schema.features] == [("1", "w")] * 4
    assert sum("starts over" in text for text in said) == 1
    assert all("x.csv" in text and "\n" not in text for text in said)


def test_leading_zeros_far_down_make_a_column_text(tmp_path):
    values = np.array(["1", "2"] * 150, object)
    values[250] = "01"
    write_table(tmp_path / "x.csv", {"x": values, "y": np.arange(300.0)})
    found = open_store(tmp_path / "x.csv", targets=["y"], cache=tmp_path / "cache", sizes=SMALL)
    assert found.schema.features[0].categories == ("01", "1", "2")


def test_a_slip_among_numbers_is_named_with_its_row(tmp_path):
    values = np.arange(300).astype(str).astype(object)
    values[250] = "oops"
    write_table(tmp_path / "x.csv", {"x": values, "y": np.arange(300.0)})
    said = message(open_store, tmp_path / "x.csv", targets=["y"], cache=tmp_path / "cache", sizes=SMALL)
    assert "most values are numbers, but row 251 holds `oops`" in said


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (None, "numbers, but row 251 holds `oops`. Correct it or drop the row."),
        ("regression", "got `oops` in row 251."),
    ],
)
def test_a_slip_in_the_target_is_named_as_in_memory(tmp_path, task, expected):
    values = np.arange(300).astype(str).astype(object)
    values[250] = "oops"
    write_table(tmp_path / "x.csv", {"x": np.arange(300.0), "y": values})
    targets, _ = targets_of(read_table(tmp_path / "x.csv"), ["y"])
    said = message(targets.training_values, task_of(targets, task))
    assert expected in said
    options = {"targets": ["y"], "task": task, "cache": tmp_path / "cache", "sizes": SMALL}
    assert message(open_store, tmp_path / "x.csv", **options) == said


@pytest.mark.parametrize("size", [1e-60, 1.0, 1e60])
def test_packed_numbers_keep_their_digits(rng, size):
    packing = Packing("x")
    for spread in (0.0, 1.0, 30.0):  # starting with a constant chunk
        values = size * (1e6 + spread * rng.normal(size=50))
        values[3] = np.nan
        assert_allclose(packing.unpack(packing.pack(values)), values, rtol=0, atol=2e-7 * size * max(spread, 1) * 4)
    assert "similar size" in message(packing.pack, np.array([1e45]) * size)


def test_bad_names_and_tasks(tmp_path, mixed):
    options = {"cache": tmp_path / "cache"}
    assert "no `z`" in message(open_store, mixed, targets=["z"], **options)
    assert "no `idd`" in message(open_store, mixed, targets=["y"], ignore=["idd"], **options)
    assert "got none" in message(open_store, mixed, targets=[], **options)
    assert "`task` must be" in message(open_store, mixed, targets=["y"], task="other", **options)
    assert "no such file" in message(open_store, tmp_path / "no.csv", targets=["y"], **options)
    assert "at most 50 different" in message(open_store, mixed, targets=["y"], **options)
    assert not list((tmp_path / "cache").glob("*")) + list((tmp_path / "cache").glob(".*.part"))


# -- the cache ------------------------------------------------------------------------------------------------


def test_it_is_converted_once_and_again_when_the_source_changes(tmp_path, mixed, monkeypatch):
    said = []
    options = {"targets": ["y"], "ignore": ["id"], "cache": tmp_path / "cache", "sizes": SMALL, "say": said.append}
    first = open_store(mixed, **options)
    assert said[0] == "Converting mixed.csv once."
    said.clear()
    assert open_store(str(mixed), **options).fingerprint == first.fingerprint
    assert said == []
    assert (
        open_store(mixed, **(options | {"ignore": ["id", "x"]})).num_inputs == first.num_inputs
    )  # `copy` replaces `x`
    mixed.write_text(mixed.read_text().replace("red", "rot"))
    second = open_store(mixed, **options)
    assert "word = rot" in second.schema.encoded_names
    assert second.fingerprint != first.fingerprint


def test_the_same_source_gives_the_same_store(tmp_path, mixed):
    found = [
        open_store(mixed, targets=["y"], ignore=["id"], cache=tmp_path / name, sizes=SMALL).fingerprint
        for name in ("one", "two")
    ]
    assert found[0] == found[1]


def test_where_stores_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("BSGP_CACHE", str(tmp_path / "chosen"))
    assert plain(tmp_path, cache=None).folder.parent == tmp_path / "chosen" / "stores"
    monkeypatch.delenv("BSGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert plain(tmp_path, cache=None).folder.parent == tmp_path / "xdg" / "bsgp" / "stores"
    monkeypatch.setenv("BSGP_CACHE", "off")
    folders = {plain(tmp_path, cache=None).folder for _ in range(2)}
    assert len(folders) == 1
    assert not folders.pop().is_relative_to(tmp_path)


def test_two_processes_at_once(tmp_path, mixed):
    code = (
        "import sys; from pathlib import Path; from bsgp.data.store.store import open_store; "
        "print(open_store(sys.argv[1], targets=['y'], ignore=['id'], cache=Path(sys.argv[2])).fingerprint)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    running = [
        subprocess.Popen([*command, mixed, tmp_path / "cache"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_the_second_to_finish_takes_what_is_there(tmp_path, monkeypatch):
    first = plain(tmp_path)
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # as when both processes started
    assert plain(tmp_path).fingerprint == first.fingerprint
    assert os.listdir(tmp_path / "cache") == [first.folder.name]


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    old, new = tmp_path / "cache" / ".old.part", tmp_path / "cache" / ".new.part"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / ROWS).touch()
    for path in (old / ROWS, old):
        os.utime(path, (time.time() - 1e5,) * 2)
    plain(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert._BlockWriter, "write", full)
    assert "must have room for about 1 MB, got a full disk" in message(plain, tmp_path)
    assert os.listdir(tmp_path / "cache") == []
    (tmp_path / "file").touch()
    assert "must be writable" in message(plain, tmp_path, cache=tmp_path / "file" / "cache")


@pytest.mark.parametrize("accident", ["grown", "gone"])
def test_a_source_that_changes_while_it_is_read(tmp_path, mixed, monkeypatch, accident):
    read_chunks = convert.read_chunks

    def change(*arguments, **options):
        chunks = read_chunks(*arguments, **options)
        yield next(chunks)
        if accident == "grown":
            mixed.write_text(mixed.read_text() + "more")
        else:
            mixed.unlink()
        yield from chunks

    monkeypatch.setattr(convert, "read_chunks", change)
    said = message(open_store, mixed, targets=["y"], ignore=["id"], cache=tmp_path / "cache", sizes=SMALL)
    assert "must not change while it is read, got a new version. Run it again" in said
    assert os.listdir(tmp_path / "cache") == []


# -- damage ---------------------------------------------------------------------------------------------------


def test_other_bytes_are_noticed_as_they_are_read(tmp_path):
    found = plain(tmp_path)
    content = bytearray((found.folder / ROWS).read_bytes())
    content[200] ^= 1
    (found.folder / ROWS).write_bytes(content)
    damaged = Store.open(found.folder)
    for read in (lambda: all_rows(damaged), lambda: damaged.stream(95, 0).read(0, 1)):
        said = message(read)
        assert f"`{found.folder}` must be as it was written, got other bytes in block 2" in said
        assert "Delete that folder" in said


def test_truncated_and_deleted_files(tmp_path):
    found = plain(tmp_path)
    os.truncate(found.folder / ROWS, 700)
    assert "ends too early" in message(all_rows, found)  # opened before the damage
    assert "another length" in message(plain, tmp_path)
    (found.folder / ROWS).unlink()
    assert f"no readable `{ROWS}`" in message(Store.open, found.folder)
    (found.folder / DESCRIPTION).unlink()
    assert f"no readable `{DESCRIPTION}`" in message(Store.open, found.folder)


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "other"},
        {"version": "1"},
        {"num_rows": -1},
        {"num_rows": 94.5},
        {"num_rows": True},
        {"block_rows": 0},
        {"num_inputs": 2},
        {"num_targets": 2},
        {"checksums": [1, 2]},
        {"checksums": ["a"] * 10},
        {"checksums": None},
        {"schema": {}},
        {"task": "classification"},
        {"targets": []},
        {"notes": [1]},
        {"sources": "x"},
        {"key": None},
    ],
)
def test_a_damaged_description(tmp_path, damage):
    folder = plain(tmp_path).folder
    saved = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps(saved | damage))
    assert "must be as it was written" in message(Store.open, folder)
    (folder / DESCRIPTION).write_text(json.dumps({name: saved[name] for name in saved if name not in damage}))
    assert "must be as it was written" in message(Store.open, folder)


def test_other_versions(tmp_path):
    found = plain(tmp_path)
    description = found.folder / DESCRIPTION
    saved = json.loads(description.read_text())
    description.write_text(json.dumps(saved | {"version": 99}))
    assert "made by a later bsgp" in message(plain, tmp_path)
    description.write_text(json.dumps({"format": saved["format"], "version": 0}))
    assert plain(tmp_path).fingerprint == found.fingerprint
    description.write_text("no JSON")
    assert "no JSON" in message(plain, tmp_path)


# -- reading --------------------------------------------------------------------------------------------------


def test_blocks_hold_every_row_once(tmp_path):
    found = plain(tmp_path)
    everything = found.read_blocks(range(found.num_blocks))
    assert sorted(row_numbers(found, everything[:, 1:])) == list(range(95))
    blocks = [found.read_blocks([block]) for block in range(found.num_blocks)]
    assert [len(block) for block in blocks] == [10] * 9 + [5]
    assert_array_equal(np.concatenate(blocks), everything)
    assert_array_equal(found.read_blocks([9, 2]), np.concatenate([blocks[9], blocks[2]]))


@pytest.mark.parametrize("count", [1, 9, 40, 95, 200])
def test_some_rows_are_random_and_differ(tmp_path, count):
    found = plain(tmp_path)
    picked = [row_numbers(found, found.some_rows(count, seed)[1]) for seed in range(30)]
    assert all(len(set(rows)) == min(count, 95) for rows in picked)
    assert len({tuple(rows) for rows in picked}) > 10
    assert_array_equal(row_numbers(found, found.some_rows(count, 7)[1]), picked[7])


@pytest.mark.parametrize(("num_rows", "batch"), [(95, 7), (95, 95), (95, 500), (8, 3), (10, 10), (2, 1), (100, 33)])
@pytest.mark.parametrize("group", [1, 3, 200])
def test_every_epoch_has_every_row_once(tmp_path, monkeypatch, num_rows, batch, group):
    monkeypatch.setattr(store, "GROUP_BLOCKS", group)
    found = plain(tmp_path, num_rows)
    stream = found.stream(batch, 5)
    assert stream.batch_size == min(batch, num_rows)
    y = stream.read(0, -(-4 * num_rows // stream.batch_size)).y
    rows = row_numbers(found, y.reshape(-1, 1))[: 4 * num_rows].reshape(4, num_rows)
    assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(num_rows), (4, 1)))
    if num_rows > 2:
        assert len({tuple(epoch) for epoch in rows}) == 4


def test_reading_is_a_function_of_position_and_seed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "GROUP_BLOCKS", 3)
    found = plain(tmp_path)
    X, y = found.stream(8, 1).read(0, 60)[:2]
    assert (X.shape, y.shape, X.dtype) == ((60, 8, 1), (60, 8, 1), np.float32)
    stream = found.stream(8, 1)
    for first, count in [(0, 1), (1, 2), (59, 1), (3, 30), (30, 3), (30, 3), (12, 48)]:
        some = stream.read(first, count)
        assert_array_equal(some[0], X[first : first + count])
        assert_array_equal(some[1], y[first : first + count])
    assert not np.array_equal(found.stream(8, 2).read(0, 60)[1], y)
    assert "first_batch" in message(stream.read, -1, 1)
    assert "batch_size" in message(found.stream, 0, 1)


@pytest.mark.parametrize("count", [2, 3])
def test_shares_are_disjoint_parts_of_every_batch(tmp_path, monkeypatch, count):
    monkeypatch.setattr(store, "GROUP_BLOCKS", 3)
    found = plain(tmp_path, 96)
    seen = []
    for index in range(count):
        stream = found.stream(12, 5, (index, count))
        assert stream.batch_size == 12 // count
        rows = row_numbers(found, stream.read(0, 3 * 8)[1].reshape(-1, 1)).reshape(3, -1)  # three epochs of 8 batches
        assert len({tuple(sorted(epoch)) for epoch in rows}) == 1
        assert len({tuple(epoch) for epoch in rows}) == 3
        seen += rows[0].tolist()
    assert sorted(seen) == list(range(96))


def test_batches_of_a_sorted_file_vary_as_uniform_ones_do(tmp_path):
    """If a table sorted by its target were badly shuffled, the means of batches would vary more."""
    num_rows, batch = 6000, 50
    found = plain(tmp_path, num_rows, sizes=Sizes(chunk_rows=700, bucket_bytes=8000, block_rows=20))
    num_batches = 200 * num_rows // batch  # the bound is five standard errors of the variance away
    y = found.stream(batch, 3).read(0, num_batches).y
    variance = y.mean(axis=1).var()
    uniform = (1 / batch) * (1 - (batch - 1) / (num_rows - 1))  # without replacement; the targets have variance 1
    assert variance < 1.05 * uniform


def test_positions_in_the_store_are_uniform(tmp_path):
    """Over many stores, a row of the source is equally likely in each third of the store."""
    where = []
    for at in range(30):
        (tmp_path / str(at)).mkdir()
        found = plain(tmp_path / str(at))
        where += [int(np.argmax(row_numbers(found, all_rows(found)[1]) == row)) for row in (0, 1, 94)]
    counts = np.histogram(where, bins=3, range=(0, 95))[0]
    assert counts.min() > 8  # 30 expected, with a standard deviation of 4.5


def test_a_deleted_store_closes_its_file(tmp_path):
    descriptors = set()
    for _ in range(3):
        found = plain(tmp_path)
        descriptors.add(found._file)
        del found
    assert len(descriptors) == 1


def test_text_of_dates_and_other_words(tmp_path):
    """Dates in the first chunk and words in a later one are text, as in the whole column."""
    words = np.array(["2020-12-31"] * 50 + ["never"] * 50, object)
    pq.write_table(pa.table({"x": words, "y": np.arange(100.0)}), tmp_path / "x.parquet")
    found = open_store(tmp_path / "x.parquet", targets=["y"], cache=tmp_path / "cache", sizes=SMALL)
    assert found.schema.features[0].categories == ("2020-12-31", "never")
