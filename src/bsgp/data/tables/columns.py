"""Tables as named columns, made from data frames and arrays. `bsgp.data.tables.files` reads files."""

import datetime
import difflib
import math
import numbers
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

_TIME = r"(?:[T ]\s*\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:[AaPp][Mm]|Z|[+-]\d{2}(?::?\d{2})?)?)?"
_DAY, _MONTH = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])"
_DATE = re.compile(
    rf"(?:\d{{4}}([-/.]){_MONTH}\1{_DAY}"  # 2020-12-31
    rf"|{_DAY}([-/.]){_MONTH}\2\d{{4}}|{_MONTH}([-/.]){_DAY}\3\d{{4}}"  # 31/12/2020, 12/31/2020
    rf"|{_DAY}/{_MONTH}/\d{{2}}|{_MONTH}/{_DAY}/\d{{2}}){_TIME}"
)
OBJECT_KINDS = ("text", "date", "duration")
"""Kinds of columns whose values are `str` objects; those of other kinds are floats."""
_WITH_NAN = (float, np.floating, np.datetime64, np.timedelta64, Decimal, datetime.datetime)
"""Types with a value that differs from itself: NaN, NaT (pandas derives its NaT from `datetime`)."""
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def shortened(value: object, limit: int = 40) -> str:
    """A value as text for an error message: on one line, at most `limit` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(names: Collection[object], limit: int = 10) -> str:
    """Names in backticks, separated by commas; only the first `limit` of a long list."""
    first = ", ".join(f"`{shortened(name)}`" for name in list(names)[:limit])
    return first if len(names) <= limit else f"{first} and {len(names) - limit} more"


def category_name(value: Any) -> str:
    """The name of a value as a category. Whole numbers lose their point, so that 1, 1.0 and "1" are one category."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        return str(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column: `str` and None (missing) if the kind is in `OBJECT_KINDS`, else float64 and NaN."""

    kind: str
    """`number`, `boolean`, `text`, `date` or `duration`."""
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Mask of the missing values, `[N]`."""
        if self.values.dtype == object:
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnan(self.values)

    def take(self, rows: np.ndarray | slice) -> "Column":
        return Column(self.kind, self.values[rows])


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, in order."""

    columns: dict[str, Column]
    num_rows: int

    def select(self, names: Iterable[str]) -> "Table":
        names = list(names)
        self._check_known(names)
        return Table({name: self.columns[name] for name in names}, self.num_rows)

    def without(self, names: Iterable[str]) -> "Table":
        """The table without some columns. Unknown names are an error, since they may be typing mistakes."""
        left_out = set(names)
        self._check_known(sorted(left_out))
        return Table({name: one for name, one in self.columns.items() if name not in left_out}, self.num_rows)

    def take(self, rows: np.ndarray | slice) -> "Table":
        """The rows chosen by index, mask or slice."""
        columns = {name: one.take(rows) for name, one in self.columns.items()}
        return Table(columns, len(np.arange(self.num_rows)[rows]))

    def _check_known(self, names: Collection[str]) -> None:
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            near = difflib.get_close_matches(unknown[0], list(self.columns), n=1)
            advice = f"Did you mean {quoted(near)}?" if near else f"It has {quoted(self.columns)}."
            raise ValueError(f"The table must have the columns that you name, got no {quoted(unknown)}. {advice}")


def is_frame(X: object) -> bool:
    """Whether `from_frame` accepts X: a data frame of pandas, polars or Arrow, not a single column of one."""
    if _is_pandas(X):
        return True
    return hasattr(X, "__arrow_c_stream__") and (hasattr(X, "columns") or hasattr(X, "schema"))


def _is_pandas(X: object) -> bool:
    return all(hasattr(X, name) for name in ("iloc", "columns", "dtypes"))


def from_frame(frame: Any) -> Table:
    """Converts a pandas data frame, or anything that supports Arrow's stream protocol (polars, pyarrow)."""
    import pyarrow as pa

    if _is_pandas(frame):
        names = column_names(frame.columns, "The data frame")
        columns = {name: _from_series(name, frame.iloc[:, at]) for at, name in enumerate(names)}
        return checked_table(columns, len(frame), "The data frame")
    if not is_frame(frame):
        raise ValueError(f"The table must be a data frame, got {type(frame).__name__}. Pass a pandas or polars one.")
    return table_from_arrow(pa.table(frame), "The data frame")


def from_array(X: Any, names: Sequence[str] | None = None) -> Table:
    """Converts a matrix of numbers, NaN where missing. Without `names` its columns are called x0, x1, ..."""
    array = np.asarray(X)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`X` must hold numbers, got dtype {array.dtype}. Pass text and dates in a data frame.")
    if array.ndim != 2:
        raise ValueError(
            f"`X` must be two-dimensional (rows, columns), got shape {array.shape}. "
            "For a single column use `X.reshape(-1, 1)`."
        )
    if names is None:
        names = [f"x{at}" for at in range(array.shape[1])]
    elif len(names) != array.shape[1]:
        raise ValueError(
            f"`names` must name the {array.shape[1]} columns of `X`, got {len(names)} names. Pass one per column."
        )
    kind = "boolean" if array.dtype.kind == "b" else "number"
    values = array.astype(np.float64)
    columns = {name: Column(kind, values[:, at]) for at, name in enumerate(column_names(names, "`X`"))}
    return checked_table(columns, len(array), "`X`")


def column_names(names: Iterable[object], source: str) -> list[str]:
    """Returns column names as text; raises if one is empty or repeated."""
    texts = [str(name) for name in names]
    nameless = [at for at, text in enumerate(texts, 1) if not text.strip()]
    if nameless:
        raise ValueError(f"{source} must have a name for every column, got none for column {nameless[0]}. Name it.")
    repeated = [text for text, count in Counter(texts).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{source} must have distinct column names, got {quoted(repeated)} more than once. Rename them."
        )
    return texts


def checked_table(columns: dict[str, Column], num_rows: int, source: str) -> Table:
    """Makes a table; raises if it is empty. `source` names it in the error."""
    if not columns or not num_rows:
        raise ValueError(
            f"{source} must have at least one row and one column, got {num_rows} rows and {len(columns)} columns. "
            "Pass some data."
        )
    return Table(columns, num_rows)


def column_from_values(name: str, values: Any) -> Column:
    """Makes a column of any Python or NumPy values."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"`{shortened(name)}` must be one column, got shape {array.shape}. Pass a flat array.")
    if array.dtype.kind in "fiub":
        return Column("boolean" if array.dtype.kind == "b" else "number", array.astype(np.float64))
    if array.dtype.kind in "mM":
        kind = "date" if array.dtype.kind == "M" else "duration"
        return Column(kind, _object_array(None if np.isnat(value) else str(value) for value in array))
    # np.asarray turned [1, "a"] into text and [1.0, None] into objects: use the original values
    return _from_objects(name, array.tolist() if isinstance(values, np.ndarray) else list(values))


def _from_series(name: str, series: Any) -> Column:
    """Converts one column of a pandas data frame, without importing pandas."""
    import pyarrow as pa

    dtype = series.dtype
    if hasattr(dtype, "categories"):
        return column_from_codes(map(category_name, dtype.categories), series.cat.codes.to_numpy(), find_dates=False)
    if str(dtype) == "object":
        return _from_objects(name, series.tolist())
    if str(dtype).startswith("period"):
        return Column(
            "date", _object_array([None if gone else str(one) for one, gone in zip(series, series.isna(), strict=True)])
        )
    if str(dtype).startswith("Sparse"):
        series = series.sparse.to_dense()
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        raise _unusable_error(name, f"dtype {dtype}") from None
    return column_from_arrow(name, array)


def _from_objects(name: str, values: list) -> Column:
    """Makes a column of Python objects. Numbers mixed with text become text."""
    pandas = sys.modules.get("pandas")  # its NA can be here only if it is imported
    na = None if pandas is None else pandas.NA
    values = [None if value is na or _is_missing(value) else value for value in values]
    kinds = {kind: _kind_of(kind) for kind in {type(value) for value in values if value is not None}}
    found = set(kinds.values())
    if found <= {"number", "boolean"}:
        kind = "boolean" if found == {"boolean"} else "number"
        return Column(kind, np.array([math.nan if value is None else _as_float(value) for value in values]))
    if found in ({"date"}, {"duration"}):
        (kind,) = found
        return Column(kind, _as_strings(values))
    if found <= {"number", "boolean", "text"}:
        words = [None if value is None else category_name(value) for value in values]
        codes = {text: code for code, text in enumerate(dict.fromkeys(text for text in words if text is not None))}
        return column_from_codes(codes, np.array([-1 if text is None else codes[text] for text in words]))
    odd = next(kind for kind, called in kinds.items() if called not in ("number", "boolean", "text"))
    raise _unusable_error(name, f"a value of type {odd.__name__}")


def _is_missing(value: object) -> bool:
    """Whether a value is None, NaN or NaT."""
    return value is None or (isinstance(value, _WITH_NAN) and bool(value != value))


def _kind_of(kind: type) -> str:
    if issubclass(kind, bool | np.bool_):
        return "boolean"
    if issubclass(kind, datetime.timedelta | np.timedelta64):
        return "duration"
    if issubclass(kind, datetime.date | datetime.time | np.datetime64):
        return "date"
    if issubclass(kind, numbers.Real | Decimal):
        return "number"
    return "text" if issubclass(kind, str) else "other"


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return math.inf if value > 0 else -math.inf


def _object_array(values: Iterable[str | None]) -> np.ndarray:
    return np.array([*values, None], dtype=object)[:-1]  # the final None keeps NumPy from choosing another dtype


def _as_strings(values: Iterable[Any]) -> np.ndarray:
    return _object_array(None if value is None else str(value) for value in values)


def _unusable_error(name: str, got: str) -> ValueError:
    return ValueError(
        f"`{shortened(name)}` must hold numbers, text, booleans or dates, got {shortened(got)}. Convert or remove it."
    )


def column_from_codes(words: Iterable[str | None], codes: np.ndarray, *, find_dates: bool = True) -> Column:
    """Makes a text column of codes, positions in `words` (-1: missing). Strips words; blank ones count as missing."""
    stripped = [None if text is None else text.strip() or None for text in words]
    column = Column("text", np.array([*stripped, None], dtype=object)[codes])
    if column.missing.all():
        return all_missing(len(codes))
    if find_dates and all(_DATE.fullmatch(text) for text in stripped if text is not None):
        return Column("date", column.values)
    return column


def all_missing(num_rows: int) -> Column:
    """A column without any value. Its kind is unknown, and reported as `number`."""
    return Column("number", np.full(num_rows, np.nan))


def table_from_arrow(table: Any, source: str) -> Table:
    # pandas writes an unnamed index as a column, which is not part of the data
    kept = [at for at, name in enumerate(table.column_names) if not _PANDAS_INDEX.fullmatch(name)]
    names = column_names([table.column_names[at] for at in kept], source)
    columns = {name: column_from_arrow(name, table.column(at)) for name, at in zip(names, kept, strict=True)}
    return checked_table(columns, table.num_rows, source)


def column_from_arrow(name: str, array: Any) -> Column:
    """Converts an Arrow array, chunked or not. Arrow's dictionary type is a column that was declared categorical."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if array.null_count == len(array):
        return all_missing(len(array))
    if types.is_dictionary(kind):
        if types.is_nested(kind.value_type) or "binary" in str(kind.value_type):
            raise _unusable_error(name, f"type {kind}")
        return _from_dictionary(array, find_dates=False)
    if types.is_boolean(kind):
        return Column("boolean", _floats(array.cast(pa.int8())))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return Column("number", _floats(array))
    if types.is_duration(kind):  # in microseconds, the unit of Python's timedelta
        return Column("duration", _as_strings(array.cast(pa.duration("us"), safe=False).to_pylist()))
    if types.is_temporal(kind):
        if types.is_timestamp(kind):
            array = array.cast(pa.timestamp(kind.unit))  # writing a time zone as text needs a time zone database
        try:
            return Column("date", _object_array(array.cast(pa.string()).to_pylist()))
        except pa.ArrowException:
            return Column("date", _as_strings(array.to_pylist()))
    if types.is_string_view(kind):  # polars sends this type, which few of Arrow's functions support
        array = pa.array(array.to_pylist(), pa.large_string())
    if types.is_string(array.type) or types.is_large_string(array.type):
        # a single chunk has a single dictionary; large_string, because a text column may exceed 2 GB
        whole = pa.chunked_array([array]) if isinstance(array, pa.Array) else array
        return _from_dictionary(whole.cast(pa.large_string()).combine_chunks().dictionary_encode(), find_dates=True)
    raise _unusable_error(name, f"type {kind}")


def _floats(array: Any) -> np.ndarray:
    import pyarrow as pa

    # safe=False rounds integers beyond 2**53, as float64 always does
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()


def _from_dictionary(array: Any, *, find_dates: bool) -> Column:
    import pyarrow as pa

    codes: list[np.ndarray] = [np.empty(0, np.int64)]
    code_of: dict[str, int] = {}
    for chunk in [array] if isinstance(array, pa.Array) else array.chunks:  # each chunk has its own dictionary
        words = chunk.dictionary.to_pylist()
        known = [-1 if value is None else code_of.setdefault(category_name(value), len(code_of)) for value in words]
        indices = chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        codes.append(np.array([*known, -1])[indices])
    return column_from_codes(code_of, np.concatenate(codes), find_dates=find_dates)
