"""Tables from files, data frames and arrays: every value keeps its kind, and every bad file is named in one line."""

import datetime
import gzip
import io
import math
import os
import re
import string
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_files import write_ipc
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from refusals import message

from bsgp.data.tables import files
from bsgp.data.tables.columns import OBJECT_KINDS, Column, Table, column_from_values, from_array, from_frame, is_frame
from bsgp.data.tables.files import MISSING, read_table
from bsgp.data.tables.write import check_table_path, write_table


def read(tmp_path, content: str | bytes, name: str = "data.csv") -> Table:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path)


def assert_column(column: Column, kind: str, values: list) -> None:
    assert column.kind == kind
    assert_array_equal(column.values, np.array(values, dtype=object if kind in OBJECT_KINDS else float))
    assert_array_equal(column.missing, [value is None or value != value for value in values])


# -- files: what the cells say --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "-2.5", "1e3", "+4", ".5"], "number", [1, -2.5, 1000, 4, 0.5]),
        (["  1", "2\t", " 3 "], "number", [1, 2, 3]),
        (["1", *MISSING[1:], " NA "], "number", [1] + [math.nan] * len(MISSING)),
        (["a", *MISSING[1:]], "text", ["a"] + [None] * (len(MISSING) - 1)),
        (["NA", "?", "null"], "number", [math.nan] * 3),
        (["0", "0.5", "-0", "00.5"], "number", [0, 0.5, 0, 0.5]),
        (["00123", "4", "55555"], "text", ["00123", "4", "55555"]),
        (["true", "FALSE", "True", "NA"], "boolean", [1, 0, 1, math.nan]),
        (["true", "1"], "text", ["true", "1"]),
        (["1234", '"1,234"'], "text", ["1234", "1,234"]),
        (["1_000", "2"], "text", ["1_000", "2"]),
        (["inf", "1"], "number", [math.inf, 1]),
        ([" red", "red ", "Red"], "text", ["red", "red", "Red"]),
        (["2020-12-31", "?", "2020-1-1"], "date", ["2020-12-31", None, "2020-1-1"]),
        (["2020-12-31T10:00:00Z", "2020-12-31 10:00"], "date", ["2020-12-31T10:00:00Z", "2020-12-31 10:00"]),
        (["31/12/2020", "12/31/2020 23:59"], "date", ["31/12/2020", "12/31/2020 23:59"]),
        (["31/31/2020", "1/1/2020"], "text", ["31/31/2020", "1/1/2020"]),
        (["2020-12-31", "never"], "text", ["2020-12-31", "never"]),
        (["10-12", "3/4"], "text", ["10-12", "3/4"]),
        (["2020", "2021"], "number", [2020, 2021]),
        (['"a,b"', '"two\nlines"', '"say ""so"""'], "text", ["a,b", "two\nlines", 'say "so"']),
        (['"12"', "13"], "number", [12, 13]),
    ],
)
def test_cells_become_the_kind_that_all_of_them_are(tmp_path, cells, kind, values):
    rows = "".join(f"{cell},x\n" for cell in cells)
    assert_column(read(tmp_path, f"a,b\n{rows}").columns["a"], kind, values)


def test_the_kind_is_that_of_the_whole_column_however_late_its_odd_value(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 256)
    rows = [f"{row},{row},true,x" for row in range(2000)] + ["oops,?,false,007"]
    table = read(tmp_path, "a,b,c,d\n" + "\n".join(rows))
    assert {name: one.kind for name, one in table.columns.items()} == dict(a="text", b="number", c="boolean", d="text")
    assert table.columns["a"].values[0] == "0"
    assert table.columns["b"].missing.sum() == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", "a,b\n1,x\n2,y\n"),
        ("DATA.CSV", "a,b\r\n1,x\r\n2,y"),
        ("bom.csv", "\ufeffa,b\n1,x\n2,y\n"),
        ("blank.csv", "\n\na, b\n1,x\n\n2, y\n\n"),
        ("quoted.csv", '"a","b"\n"1","x"\n"2","y"\n'),
        ("data.tsv", "a\tb\n1\tx\n2\ty\n"),
        ("data.csv.gz", gzip.compress(b"a,b\n1,x\n2,y\n", mtime=0)),
        ("data.tsv.gz", gzip.compress(b"a\tb\n1\tx\n2\ty\n", mtime=0)),
    ],
)
def test_one_table_in_all_its_spellings(tmp_path, name, content):
    table = read(tmp_path, content, name)
    assert table.num_rows == 2
    assert list(table.columns) == ["a", "b"]
    assert_column(table.columns["a"], "number", [1, 2])
    assert_column(table.columns["b"], "text", ["x", "y"])


# -- files: what is wrong with them ---------------------------------------------------------------------------

# without a time stamp: the bytes are part of test names, on which all workers must agree
PACKED = gzip.compress(b"a,b\n" + np.random.default_rng(0).bytes(4000).hex().encode() + b",2\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "", "empty file"),
        ("x.csv", "\ufeff", "empty file"),
        ("x.csv", "\n\n", "empty file"),
        ("x.csv", "a,b", "rows below its header"),
        ("x.csv", "a,b\n\n", "rows below its header"),
        ("x.csv", "a,b\n1,2\n\n3,4,5\n6,7\n", r"must have 2 values .*got 3 in row 2 \(`3,4,5`\)"),
        ("x.csv", "a,b\n1,2\n3\n", r"got 1 in row 2 "),
        ("x.csv", 'a,b\n1,2,"q\nr"\n', r"got 3 in row 1 "),
        ("x.csv", "a,b\n1,caf\u00e9\n".encode("latin1"), "UTF-8.*latin1"),
        ("x.csv", b"a,b\n" + b"1,2\n" * 30000 + b"1,\xe9\n", "UTF-8.*column `b`"),
        ("x.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-8.*utf-16"),
        ("x.csv", b"a,b\n1,\0\n", "NUL"),
        ("x.csv", b"a,b\n" + b"1,2\n" * 30000 + b"1,\0\n", "NUL"),
        ("x.csv", b"\x89PNG\r\n\x1a\n\0\0", "binary"),
        ("x.csv", "a,b,a,c,b\n1,2,3,4,5\n", "`a`, `b` more than once"),
        ("x.csv", "a, ,c\n1,2,3\n", "none for column 2"),
        ("x.csv", "a;b\n1;2\n", "separated by ','"),
        ("x.tsv", "a,b\n1,2\n", "separated by"),
        ("x.csv", 'a,b\n1,"2\n3,4\n5,6\n', "close every quote"),
        ("x.csv", 'a,"b\n1,2\n3,4', "quotes"),
        ("x.csv.gz", "a,b\n1,2\n", "damaged"),
        ("x.csv.gz", PACKED[:-2000], "damaged"),
        ("x.csv.gz", "", "empty"),
        ("x.parquet", "", "empty"),
        ("x.parquet", "a,b\n1,2\n", "damaged"),
        ("x.pq", b"PAR1" + b"z" * 100 + b"PAR1", "damaged"),
        ("x.arrow", "", "empty"),
        ("x.arrow", "a,b\n1,2\n", "Arrow IPC file or stream, got another format"),
        ("x.feather", b"FEA1" + b"z" * 100 + b"FEA1", "Feather of version 1"),
        ("x.ipc", b"ARROW1\0\0" + b"z" * 100 + b"ARROW1", "damaged"),
        ("x.arrows", b"\xff\xff\xff\xff\xff\0\0\0" + b"z" * 100, "damaged"),
        ("x.xlsx", "a", "must end in .*Save the sheet as CSV"),
        ("x", "a", "must end in .csv"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, name, content, said):
    text = message(read, tmp_path, content, name)
    assert str(tmp_path / name) in text
    assert re.search(said, text), text


PIECES = [
    "a",
    "b,",
    ",",
    "1",
    "007",
    "\n",
    "\n",
    "\r\n",
    '"',
    '""',
    ";",
    " ",
    "NA",
    "2020-01-01",
    "true",
    "1e999",
    "\t",
]
BYTES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=25).map(lambda pieces: "".join(pieces).encode()),
    st.binary(max_size=60),
)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz", "x.parquet", "x.arrow"])
@settings(max_examples=80)
@given(content=BYTES)
def test_any_bytes_are_a_table_or_one_line_of_complaint(tmp_path_factory, name, content):
    folder = tmp_path_factory.mktemp("bytes")
    error = table = None
    try:
        table = read(folder, content, name)
    except ValueError as one:
        error = one
    if table is None:
        assert type(error) is ValueError
        assert name in str(error)
        assert len(str(error).splitlines()) == 1
    else:
        assert table.num_rows > 0
        assert all(len(column.values) == table.num_rows for column in table.columns.values())


def test_a_cell_that_swallows_more_than_a_block_is_an_open_quote(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 256)
    assert "close every quote" in message(read, tmp_path, 'a,b\n1,"2\n' + "3,4\n" * 1000)


def test_a_quoted_last_cell_of_two_lines_is_no_open_quote(tmp_path):
    assert read(tmp_path, 'a,b\n1,"2\n3"\n').columns["b"].values.tolist() == ["2\n3"]


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for ending in ("csv", "parquet"):
        assert "no such file" in message(read_table, tmp_path / f"nowhere.{ending}")
    assert "folder" in message(read_table, tmp_path / "folder.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n")
    path.chmod(0)
    assert "permission" in message(read_table, path)
    tmp_path.chmod(0o500)
    assert "permission" in message(write_table, tmp_path / "y.csv", {"a": np.ones(2)})
    tmp_path.chmod(0o700)


def test_a_damaged_page_of_parquet(tmp_path):
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": np.arange(10000)}), sink)
    content = bytearray(sink.getvalue())
    content[100:3000] = b"z" * 2900
    assert "damaged" in message(read, tmp_path, bytes(content), "x.parquet")


@pytest.mark.parametrize("stream", [False, True])
def test_damaged_batches_of_arrow(tmp_path, rng, stream):
    """Arrow IPC files have no checksums: damage may change numbers, but invalid offsets must be found."""
    words = pa.array(["some", "words", None] * 20)
    table = pa.table({"a": np.arange(60.0), "w": words, "c": words.dictionary_encode()})
    write_ipc(tmp_path / "x.arrow", table, rows=25, stream=stream)
    content = (tmp_path / "x.arrow").read_bytes()
    said = []
    for at in rng.choice(np.arange(8, len(content), 8), 100, replace=False):
        damaged = content[:at] + b"\xff" * 8 + content[at + 8 :]
        try:
            assert read(tmp_path, damaged, "x.arrow").num_rows == 60
        except ValueError as error:
            said.append(str(error))
    assert 20 < len(said) < 100
    assert not any("\n" in one for one in said)


# -- Arrow's types --------------------------------------------------------------------------------------------

DAY = datetime.date(2020, 12, 31)


@pytest.mark.parametrize(
    ("array", "kind", "values"),
    [
        (pa.array([1, None, 3], pa.int32()), "number", [1, math.nan, 3]),
        (pa.array([2**53 + 1], pa.uint64()), "number", [2.0**53]),
        (pa.array([1.5, None], pa.float32()), "number", [1.5, math.nan]),
        (pa.array([Decimal("1.25"), None]), "number", [1.25, math.nan]),
        (pa.array([True, None, False]), "boolean", [1, math.nan, 0]),
        (pa.nulls(2), "number", [math.nan] * 2),
        (pa.nulls(2, pa.string()), "number", [math.nan] * 2),
        (pa.nulls(2, pa.date32()), "number", [math.nan] * 2),
        (pa.array(["00123", None, " x ", ""]), "text", ["00123", None, "x", None]),
        (pa.array(["1", "2"]), "text", ["1", "2"]),
        (pa.array(["a", None], pa.large_string()), "text", ["a", None]),
        (pa.array(["a", None], pa.string_view()), "text", ["a", None]),
        (pa.array(["2020-12-31", None]), "date", ["2020-12-31", None]),
        (pa.array(["b", None, "a", "b"]).dictionary_encode(), "text", ["b", None, "a", "b"]),
        (pa.array([2.0, None, 1.5]).dictionary_encode(), "text", ["2", None, "1.5"]),
        (pa.array([10, 2]).dictionary_encode(), "text", ["10", "2"]),
        (pa.array([True, False]).dictionary_encode(), "text", ["True", "False"]),
        (pa.array(["2020-12-31"]).dictionary_encode(), "text", ["2020-12-31"]),
        (pa.array([DAY, None]), "date", ["2020-12-31", None]),
        (pa.array([0, None], pa.timestamp("s", "Asia/Tokyo")), "date", ["1970-01-01 00:00:00", None]),
        (pa.array([60, None], pa.time32("s")), "date", ["00:01:00", None]),
        (pa.array([60, None], pa.duration("s")), "duration", ["0:01:00", None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_arrow_types(tmp_path, array, kind, values):
    chunks = pa.chunked_array([array.slice(0, 1), array.slice(1)])
    assert_column(from_frame(pa.table({"a": chunks})).columns["a"], kind, values)
    write_ipc(tmp_path / "x.feather", pa.table({"a": chunks}))
    assert_column(read_table(tmp_path / "x.feather").columns["a"], kind, values)


@pytest.mark.parametrize(
    "array",
    [pa.array([[1]]), pa.array([{"x": 1}]), pa.array([b"x"]), pa.array([b"x"]).dictionary_encode()],
    ids=lambda array: str(array.type),
)
def test_nested_and_binary_columns_are_named(array):
    assert "`odd` must hold numbers" in message(from_frame, pa.table({"fine": [1], "odd": array}))


def test_chunks_with_dictionaries_of_their_own(tmp_path):
    first = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint8()), ["x", "y"])
    other = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint8()), pa.array(["z", None, "x"]))
    table = from_frame(pa.table({"a": pa.chunked_array([first, other])}))
    assert_column(table.columns["a"], "text", ["x", "y", None, "z", None, "x"])


def test_parquet_has_no_columns_of_its_folder_or_of_the_pandas_index(tmp_path):
    folder = tmp_path / "year=2020"
    folder.mkdir()
    pd.DataFrame({"a": [1.0, 2.0]}, index=[7, 9]).to_parquet(folder / "x.parquet")
    assert list(read_table(folder / "x.parquet").columns) == ["a"]


def test_repeated_names_in_parquet_and_arrow(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "x.parquet")
    write_ipc(tmp_path / "x.arrow", table)
    for name in ("x.parquet", "x.arrow"):
        assert "`a` more than once" in message(read_table, tmp_path / name)


# -- data frames and arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (np.array([1, 2]), "number", [1, 2]),
        (np.array([1.5, np.nan], np.float32), "number", [1.5, math.nan]),
        (np.array([True, False]), "boolean", [1, 0]),
        (pd.array([1, None], "Int64"), "number", [1, math.nan]),
        (pd.array([0.5, None], "Float64"), "number", [0.5, math.nan]),
        (pd.array([True, None], "boolean"), "boolean", [1, math.nan]),
        (pd.array(["a", None], "string"), "text", ["a", None]),
        (pd.array(["1", "2"], "string"), "text", ["1", "2"]),
        (pd.arrays.SparseArray([0.0, 1.0]), "number", [0, 1]),
        (pd.Categorical([3, None, 1]), "text", ["3", None, "1"]),
        (pd.Categorical([3.0, 0.5]), "text", ["3", "0.5"]),
        (pd.Categorical(["b", None], categories=["a", "b"]), "text", ["b", None]),
        (pd.Categorical([None, None], categories=["a"]), "number", [math.nan] * 2),
        (pd.to_datetime(["2020-12-31", None]).as_unit("s"), "date", ["2020-12-31 00:00:00", None]),
        (pd.array(pd.period_range("2020-01", periods=2, freq="M")), "date", ["2020-01", "2020-02"]),
        (np.array([1, 2.5, None], object), "number", [1, 2.5, math.nan]),
        (np.array([1, Decimal("2.5"), np.float32("nan"), pd.NA], object), "number", [1, 2.5, math.nan, math.nan]),
        (np.array([10**400, -(10**400)], object), "number", [math.inf, -math.inf]),
        (np.array([True, None], object), "boolean", [1, math.nan]),
        (np.array([True, 2], object), "number", [1, 2]),
        (np.array(["a", None, np.nan], object), "text", ["a", None, None]),
        (np.array(["a", 1, 2.0, True, pd.NA], object), "text", ["a", "1", "2", "True", None]),
        (np.array([DAY, pd.NaT], object), "date", ["2020-12-31", None]),
        (pd.to_timedelta(["1h", None]), "duration", ["1:00:00", None]),
        (np.array([datetime.timedelta(1), None], object), "duration", ["1 day, 0:00:00", None]),
        (np.array([None, None], object), "number", [math.nan] * 2),
    ],
)
def test_pandas_columns(values, kind, expected):
    assert_column(from_frame(pd.DataFrame({"a": values})).columns["a"], kind, expected)


@pytest.mark.parametrize(
    "odd", [[[1], [2]], [{}, {}], [b"x", b"y"], ["a", DAY], [DAY, datetime.timedelta(1)], [1j, 2j]]
)
def test_other_objects_are_named(odd):
    frame = pd.DataFrame({"fine": [1, 2], "odd": pd.Series(odd, dtype=object)})
    assert "`odd` must hold numbers, text" in message(from_frame, frame)
    assert "`c` must hold" in message(from_frame, pd.DataFrame({"c": np.array([1j])}))


def test_names_of_a_frame_are_text_and_differ():
    assert list(from_frame(pd.DataFrame({0: [1], ("a", 1): [2]}, index=[5])).columns) == ["0", "('a', 1)"]
    assert "`1` more than once" in message(from_frame, pd.DataFrame([[1, 2]], columns=pd.Index([1, "1"], dtype=object)))
    assert "none for column 1" in message(from_frame, pd.DataFrame({"": [1]}))
    assert "at least one row" in message(from_frame, pd.DataFrame({"a": []}))
    assert "data frame" in message(from_frame, [[1]])


def test_what_is_a_frame():
    frame, arrow = pd.DataFrame({"a": [1]}), pa.table({"a": [1]})
    assert all(map(is_frame, [frame, arrow, arrow.to_batches()[0], arrow.to_reader()]))
    assert not any(map(is_frame, [frame["a"], arrow["a"], np.ones((2, 2)), [[1]], None, from_frame(frame)]))
    for one in (arrow, arrow.to_batches()[0], arrow.to_reader()):
        assert_column(from_frame(one).columns["a"], "number", [1])


def test_arrays():
    table = from_array(np.array([[1, 2], [3, 4]], np.int8))
    assert list(table.columns) == ["x0", "x1"]
    assert_column(table.columns["x1"], "number", [2, 4])
    assert_column(from_array([[np.nan], [1.0]], ["a"]).columns["a"], "number", [math.nan, 1])
    assert_column(from_array([[True], [False]]).columns["x0"], "boolean", [1, 0])
    assert "two-dimensional" in message(from_array, np.ones(3))
    assert "at least one row" in message(from_array, np.ones((0, 3)))
    assert "dtype" in message(from_array, [["a"]])
    assert "name the 2 columns" in message(from_array, np.ones((2, 2)), ["a"])
    assert "`a` more than once" in message(from_array, np.ones((2, 2)), ["a", "a"])


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2], "number", [1, 2]),
        ([1, None], "number", [1, math.nan]),
        ([True, None], "boolean", [1, math.nan]),
        (["a", 1], "text", ["a", "1"]),
        (np.array(["a", "b"]), "text", ["a", "b"]),
        (np.array(["2020-12-31", "NaT"], "M8[ns]"), "date", ["2020-12-31T00:00:00.000000000", None]),
        (np.array([90, "NaT"], "m8[s]"), "duration", ["90 seconds", None]),
    ],
)
def test_columns_of_plain_values(values, kind, expected):
    assert_column(column_from_values("a", values), kind, expected)
    assert "one column" in message(column_from_values, "a", [[1]])


def test_select_leave_out_and_take():
    table = from_frame(pd.DataFrame({"age": [1, 2, 3], "name": ["a", None, "c"], "z": [True, False, True]}))
    assert list(table.select(["z", "age"]).columns) == ["z", "age"]
    assert list(table.without(["age"]).columns) == ["name", "z"]
    assert "no `agee`. Did you mean `age`?" in message(table.without, ["agee"])
    assert "It has `age`, `name`, `z`" in message(table.select, ["quite another"])
    for rows in (np.array([2, 0]), np.array([True, False, True]), slice(None, None, 2)):
        taken = table.take(rows)
        assert taken.num_rows == 2
        assert_array_equal(taken.columns["name"].values, table.columns["name"].values[rows])
        assert_array_equal(taken.columns["age"].values, table.columns["age"].values[rows])


# -- writing --------------------------------------------------------------------------------------------------

ENDINGS = ["csv", "csv.gz", "tsv", "parquet"]
# words that no reader takes for numbers, dates, booleans or missing values
WORDS = st.text(string.ascii_letters + ' ",;\t\n\u00e9\u03b1', max_size=8).map(lambda text: f"w{text}w")


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=40)
@given(
    rows=st.lists(
        st.tuples(st.floats(allow_nan=True), st.one_of(st.none(), WORDS), st.booleans()), min_size=1, max_size=8
    )
)
def test_what_is_written_is_read(tmp_path_factory, ending, rows):
    numbers, words, truths = map(list, zip(*rows, strict=True))
    path = tmp_path_factory.mktemp("round") / f"x.{ending}"
    columns = {"a, b": np.array(numbers), 'say "c"': np.array(words, dtype=object), "d": np.array(truths)}
    write_table(path, columns)
    table = read_table(path)
    assert list(table.columns) == list(columns)
    assert_array_equal(table.columns["a, b"].values, columns["a, b"])
    if any(word is not None for word in words):
        assert table.columns['say "c"'].values.tolist() == words
    assert table.columns["d"].kind == "boolean"
    assert_array_equal(table.columns["d"].values, truths)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_single_column_keeps_its_missing_rows(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    write_table(path, {"a": np.array([np.nan, 0.1, np.nan])})
    assert_column(read_table(path).columns["a"], "number", [math.nan, 0.1, math.nan])


def test_csv_is_plain(tmp_path):
    write_table(tmp_path / "x.csv", {"mean": np.array([0.1, np.nan]), "label": np.array(["a", "b"])})
    assert (tmp_path / "x.csv").read_text() == 'mean,label\n0.1,"a"\n,"b"\n'
    for name in ("x.csv.gz", "y.csv.gz"):
        write_table(tmp_path / name, {"a": np.ones(3)})
    assert (tmp_path / "x.csv.gz").read_bytes() == (tmp_path / "y.csv.gz").read_bytes()


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    fine = {"a": np.ones(2)}
    for ending in ("xlsx", "arrow"):
        assert "Choose one of these" in message(write_table, tmp_path / f"x.{ending}", fine)
    assert "folder that exists" in message(write_table, tmp_path / "no" / "x.csv", fine)
    assert "folder that exists" in message(check_table_path, tmp_path / "no" / "x.csv")
    assert "got a folder" in message(write_table, _folder(tmp_path / "y.csv"), fine)
    assert "one length" in message(write_table, tmp_path / "x.csv", {"a": np.ones(2), "b": np.ones(3)})
    assert "one length" in message(write_table, tmp_path / "x.csv", {"a": np.ones((2, 2))})
    assert "one length" in message(write_table, tmp_path / "x.csv", {})
    assert "`b` must" in message(write_table, tmp_path / "x.csv", {"a": np.ones(2), "b": np.array(["x", 1], object)})
    assert os.listdir(tmp_path) == ["y.csv"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("accident", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_accident_while_writing_keeps_the_old_file(tmp_path, monkeypatch, ending, accident):
    path = tmp_path / f"x.{ending}"
    write_table(path, {"a": np.array([1.0, 2.0])})

    def fail(descriptor):
        raise accident

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((ValueError, KeyboardInterrupt), match=r"No space left|^$"):
        write_table(path, {"a": np.array([3.0, 4.0])})
    assert os.listdir(tmp_path) == [path.name]
    assert_column(read_table(path).columns["a"], "number", [1, 2])


def _folder(path):
    path.mkdir()
    return path
