"""Tables read in chunks: the values and the error messages of tables that are read whole."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from arrow_files import write_ipc
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from refusals import message

from bsgp.data.encoding.summaries import combined_kind
from bsgp.data.tables import chunks as table_chunks
from bsgp.data.tables import columnar, files
from bsgp.data.tables.chunks import estimate_size, read_chunks, table_columns
from bsgp.data.tables.columns import Table
from bsgp.data.tables.files import read_table
from bsgp.data.tables.write import TableWriter, write_table

LINES = ["number,truth,word,mixed,date,empty"] + [
    f"{0.1 * at},{'true' if at % 3 else 'NA'},{'ab'[at % 2]},{at if at < 15 else 'x'},2020-01-{at % 28 + 1},"
    for at in range(40)
]
CSV = "\n".join(LINES) + "\n"


def drained(source, **options) -> list[Table]:
    return list(read_chunks(source, **options))


def assert_same(chunks: list[Table], whole: Table) -> None:
    assert sum(chunk.num_rows for chunk in chunks) == whole.num_rows
    for name, column in whole.columns.items():
        assert_array_equal(np.concatenate([chunk.columns[name].values for chunk in chunks]), column.values)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows: a small file has as many as one of gigabytes."""
    monkeypatch.setattr(files, "_BLOCK", 256)


# -- the same as at once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.parquet", "x.feather", "x.arrows"])
def test_chunks_are_the_table(tmp_path, small_blocks, name, rows):
    path = tmp_path / name
    columns = pa.table({"a": np.arange(40.0), "b": ["u", None] * 20})
    if name == "x.parquet":
        pq.write_table(columns, path, row_group_size=9)
    elif name in ("x.feather", "x.arrows"):
        write_ipc(path, columns)
    else:
        content = CSV.replace(",", "\t") if "tsv" in name else CSV
        path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    kinds = {"mixed": "text", "date": "date", "empty": "number", "b": "text"}
    chunks = drained(path, kinds=kinds, rows=rows)
    assert {chunk.num_rows for chunk in chunks[:-1]} <= {rows}
    assert_same(chunks, read_table(path))
    assert table_columns(path) == list(read_table(path).columns)


def test_a_chunk_decides_its_kinds_unless_they_are_given(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(CSV)
    first, second, *_ = drained(path, rows=10)
    assert [one.columns["mixed"].kind for one in (first, second)] == ["number", "text"]
    known = drained(path, rows=10, kinds={"mixed": "text", "empty": "text", "date": "text"})[0]
    assert [known.columns[name].kind for name in ("mixed", "empty", "date")] == ["text"] * 3
    assert known.columns["mixed"].values[:2].tolist() == ["0", "1"]
    assert known.columns["empty"].values.tolist() == [None] * 10


WORDS = ["1", "2.5", " 3", "007", "0", "inf", "true", "FALSE", "2020-01-01", "1/2/2020", "x", "NA", "?", "nan", '""']


@settings(max_examples=100)
@given(cells=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), data=st.data())
def test_the_kinds_of_chunks_make_the_kind_of_the_column(tmp_path_factory, cells, data):
    few = data.draw(st.lists(st.sampled_from(cells), min_size=1, max_size=12))  # few words often share a kind
    path = tmp_path_factory.mktemp("kinds") / "x.csv"
    path.write_text("a,b\n" + "".join(f"{cell},1\n" for cell in few))
    whole = read_table(path).columns["a"]
    kind = None
    for chunk in drained(path, rows=3):
        if not chunk.columns["a"].missing.all():
            kind = combined_kind(kind, chunk.columns["a"].kind)
    assert (kind or "number") == whole.kind
    again = drained(path, rows=3, kinds={"a": whole.kind})
    assert {chunk.columns["a"].kind for chunk in again} == {whole.kind}
    assert_array_equal(np.concatenate([chunk.columns["a"].values for chunk in again]), whole.values)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.arrow"])
def test_some_columns(tmp_path, name):
    columns = {"a": np.ones(3), "a.b": np.zeros(3), "c": np.arange(3.0)}
    if name == "x.arrow":
        write_ipc(tmp_path / name, pa.table(columns))
    else:
        write_table(tmp_path / name, columns)
    (chunk,) = drained(tmp_path / name, columns=["c", "a"])
    assert {one: column.values.tolist() for one, column in chunk.columns.items()} == {"a": [1] * 3, "c": [0, 1, 2]}
    assert "Did you mean" in message(drained, tmp_path / name, columns=["cc"])


def test_arrow_objects_and_their_streams():
    table = pa.table({"a": np.arange(10.0), "b": ["u", None] * 5, "__index_level_0__": np.arange(10)})
    for source in (table, table.to_reader(max_chunksize=3), ds.dataset(table)):
        chunks = drained(source, rows=4)
        assert [chunk.num_rows for chunk in chunks] == [4, 4, 2]
        assert list(chunks[0].columns) == ["a", "b"]
    assert "at least one row" in message(drained, table.slice(0, 0))
    assert "must be a file" in message(drained, 3)


def test_wide_tables_come_in_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(table_chunks, "_CHUNK_CELLS", 12)
    write_table(tmp_path / "x.parquet", {name: np.ones(10) for name in "abcd"})
    assert {chunk.num_rows for chunk in drained(tmp_path / "x.parquet")} == {3, 1}


def test_a_folder_is_its_parquet_files_by_name(tmp_path):
    for name, start in (("b.parquet", 5), ("a.parquet", 0)):
        write_table(tmp_path / name, {"x": np.arange(start, start + 5.0), "w": np.full(5, name)})
    for name in (".hidden.parquet", "_metadata.parquet", "README.md"):
        (tmp_path / name).write_text("nothing")
    pq.write_table(pa.table({"w": pa.nulls(2), "x": [10, 11]}), tmp_path / "c.pq")  # another order, compatible types
    chunks = drained(tmp_path, rows=3)
    assert np.concatenate([chunk.columns["x"].values for chunk in chunks]).tolist() == list(range(12))
    assert {tuple(chunk.columns) for chunk in chunks} == {("x", "w")}
    assert estimate_size(tmp_path) == (12, 12 * 2 * 8)


# -- Arrow's own files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_record_batches_of_any_size(tmp_path, monkeypatch, compression, stream, rows, is_mapped):
    monkeypatch.setattr(columnar, "_MAPPED_BYTES", 0 if is_mapped else 1 << 20)
    parts = (["x", "y", None], ["z", "x", "x", "y"])  # different dictionaries, which only a stream allows
    words = pa.chunked_array([pa.array(part).dictionary_encode() for part in parts])
    table = pa.table({"a": np.arange(7.0), "w": words, "t": ["p", None, "q", "p", "p", "q", "q"]})
    table = table if stream else table.unify_dictionaries()
    path = tmp_path / "x.ipc"
    write_ipc(path, table, rows=rows, compression=compression, stream=stream)
    chunks = drained(path, rows=3)
    assert [chunk.num_rows for chunk in chunks] == [3, 3, 1]
    assert_same(chunks, read_table(path))
    assert np.concatenate([one.columns["w"].values for one in chunks]).tolist() == ["x", "y", None, *"zxxy"]


def test_a_large_batch_is_not_loaded_whole(tmp_path, monkeypatch):
    """Some programs write all rows as one batch."""
    path = tmp_path / "x.arrow"
    write_ipc(path, pa.table({name: np.ones(100_000) for name in "abcdefghij"}), rows=100_000)

    def most_bytes() -> int:
        before = pa.total_allocated_bytes()
        return max(pa.total_allocated_bytes() - before for _ in read_chunks(path, rows=1000))

    assert most_bytes() > 8_000_000
    monkeypatch.setattr(columnar, "_MAPPED_BYTES", 1 << 20)
    assert most_bytes() < 1_000_000


# -- what is wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n" + "1,2\n" * 500 + "1,2,3\n" + "1,2\n" * 500, "got 3 in row 501"),
        ("a,b\n" + "1,2\n" * 500 + '1,"2\n' + "1,2\n" * 500, "close every quote"),
        ("a,b\n" + "1,2\n" * 500 + '1,"2\n3,4\n', "close every quote"),
        (b"a,b\n" + b"1,2\n" * 500 + b"1,\xff\n", "UTF-8"),
        (b"a,b\n" + b"1,2\n" * 500 + b"1,\0\n", "NUL"),
        ("a,b\n", "rows below its header"),
        ("", "empty file"),
        ("a,a\n1,2\n", "more than once"),
    ],
)
def test_bad_text_is_named_in_one_line(tmp_path, small_blocks, content, said):
    path = tmp_path / "x.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = message(drained, path, rows=10)
    assert said in found
    assert str(path) in found


def test_truncated_files(tmp_path, rng):
    packed = gzip.compress(("a\n" + "\n".join(map(str, rng.random(5000)))).encode())
    (tmp_path / "x.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert "x.csv.gz` must be complete" in message(drained, tmp_path / "x.csv.gz")
    write_table(tmp_path / "x.parquet", {"a": rng.random(5000)})
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-1000])
    assert "x.parquet` must be complete" in message(drained, tmp_path / "x.parquet")
    for name in ("x.arrow", "x.arrows"):
        path = tmp_path / name
        write_ipc(path, pa.table({"a": rng.random(5000)}), rows=1000)
        whole = path.read_bytes()
        # the last two cut off the end-of-stream mark, and half of it
        for size in (4, len(whole) // 2, len(whole) - 8, len(whole) - 2):
            path.write_bytes(whole[:size])
            assert f"{name}` must be" in message(drained, path)
    assert "no such file" in message(drained, tmp_path / "y.parquet")
    assert "no such file" in message(drained, tmp_path / "y.csv")


def test_a_bad_file_in_the_middle_of_a_folder(tmp_path):
    for name in "abc":
        write_table(tmp_path / f"{name}.parquet", {"x": np.ones(5), "y": np.ones(5)})
    bad = tmp_path / "b.parquet"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-50])
    assert "b.parquet` must be complete" in message(drained, tmp_path)
    bad.write_bytes(b"")
    assert "b.parquet` must hold a table" in message(drained, tmp_path)
    write_table(bad, {"x": np.ones(5), "z": np.ones(5)})
    assert "b.parquet` must have the columns of `a.parquet`, got a difference in `z`, `y`" in message(drained, tmp_path)
    write_table(bad, {"x": np.ones(5), "y": np.full(5, "w")})
    assert "got text instead of number in `y`" in message(drained, tmp_path)
    (tmp_path / "empty").mkdir()
    assert "must hold Parquet or Arrow files" in message(drained, tmp_path / "empty")


def test_a_folder_of_arrow_files(tmp_path):
    for at, name in enumerate(("a.arrow", "b.feather", "c.arrows")):
        write_ipc(tmp_path / name, pa.table({"x": np.arange(5 * at, 5 * at + 5.0)}), rows=2)
    assert np.concatenate([chunk.columns["x"].values for chunk in drained(tmp_path, rows=4)]).tolist() == list(
        range(15)
    )
    (tmp_path / "b.feather").write_bytes((tmp_path / "b.feather").read_bytes()[:-20])
    assert "b.feather` must be complete" in message(drained, tmp_path)
    write_table(tmp_path / "b.parquet", {"x": np.ones(5)})
    assert "got both: `a.arrow` and `b.parquet`" in message(drained, tmp_path)


# -- sizes ----------------------------------------------------------------------------------------------------


def test_sizes_are_estimated_from_the_beginning(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(table_chunks, "_SAMPLE", 1 << 12)
    columns = {name: rng.random(3000).round(4) for name in "abc"}
    for name in ("x.csv", "x.csv.gz", "x.tsv"):
        write_table(tmp_path / name, columns)
        size = estimate_size(tmp_path / name)
        assert size.num_rows is None
        assert 0.8 < size.bytes_in_memory / (3000 * 3 * 8) < 1.25
    for name in ("x.arrow", "x.arrows"):
        write_ipc(tmp_path / name, pa.table(columns), rows=400)
        size = estimate_size(tmp_path / name)
        assert size.num_rows is None
        assert 0.8 < size.bytes_in_memory / (3000 * 3 * 8) < 1.25
    (tmp_path / "x.csv.gz").write_bytes(b"no gzip at all")
    assert "must be complete" in message(estimate_size, tmp_path / "x.csv.gz")


# -- writing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_rows_are_appended(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    with TableWriter(path) as writer:
        for start in range(0, 9, 3):
            writer.write({"a": np.arange(start, start + 3.0), "b": np.array(["u", None, "v"], object)})
        assert not path.exists()
    table = read_table(path)
    assert table.columns["a"].values.tolist() == list(range(9))
    assert table.columns["b"].values.tolist() == ["u", None, "v"] * 3


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_an_unfinished_table_is_not_there(tmp_path, ending):
    path = tmp_path / f"x.{ending}"

    def write(*tables) -> None:
        with TableWriter(path) as writer:
            for one in tables:
                writer.write(one)

    assert "got none" in message(write)
    assert "must be those of the first call" in message(write, {"a": np.ones(2)}, {"b": np.ones(2)})
    if ending == "parquet":
        assert "keep the types" in message(write, {"a": np.ones(2)}, {"a": np.array(["u", "v"])})

    def interrupted() -> None:
        with TableWriter(path) as writer:
            writer.write({"a": np.ones(2)})
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        interrupted()
    assert os.listdir(tmp_path) == []
