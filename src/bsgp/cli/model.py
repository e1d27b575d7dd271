"""`bsgp predict`, `evaluate` and `report`: from a model to its predictions, and how good they are."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.cli.common import Json, Quiet, Verbose, output, say_as_told

Model = Annotated[Path, Parameter(help="Folder that `bsgp fit` wrote.")]
NewTable = Annotated[
    Path, Parameter(help="Table with the model's columns: CSV, Parquet or Arrow, or a folder of the latter two.")
]
MAX_REPORT_ROWS = 200_000
_CHUNK_CELLS = 5_000_000  # of encoded inputs, 40 MB: categories make many columns of one
_SAY_SECONDS = 5.0

logger = logging.getLogger("bsgp")


def predict(
    model: Model,
    new: NewTable,
    *,
    out: Annotated[Path, Parameter(help="Where the predictions go: .csv, .csv.gz, .tsv or .parquet.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict a table's rows: mean, std, q05, q50 and q95 of each target, or the probability of each class.

    Example: bsgp predict model new.csv --out predictions.csv
    """
    from bsgp.data.files import TableWriter, check_table_path

    say_as_told(quiet, verbose)
    check_table_path(out)
    estimator = _load(model)

    from bsgp.prediction import prediction_columns

    chunks = _Chunks(estimator, new, leave_out=estimator.target_names_)
    with TableWriter(out) as writer:
        for index, table in enumerate(chunks):
            with chunks.naming_rows():
                columns = prediction_columns(estimator, table, index)
            writer.write(columns)
    output(quiet).print(f"Wrote {chunks.num_rows:,} predictions to {out}.", markup=False)


def evaluate(
    model: Model,
    test: Annotated[Path, Parameter(help="Table with the model's columns and its targets.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score predictions against known targets, beside a constant and a linear baseline.

    Example: bsgp evaluate model test.csv --json
    """
    from rich.table import Table as RichTable

    say_as_told(quiet or as_json, verbose)
    estimator = _load(model)

    from bsgp.scoring import score_chunks

    chunks = _Chunks(estimator, test)
    with chunks.naming_rows():
        tables = (_inputs_and_targets(estimator, table) for table in chunks)
        scores, baselines, num_rows = score_chunks(estimator, tables)
    if as_json:
        print(json.dumps({**scores, "rows": num_rows, "baselines": baselines}))
        return
    shown = RichTable("", *scores)
    for name, one in {**baselines, estimator.method: scores}.items():
        shown.add_row(name, *(f"{value:.4g}" for value in one.values()))
    output().print(shown)


def report(
    model: Model,
    *,
    test: Annotated[Path | None, Parameter(help="Table with the model's columns and its targets.")] = None,
    out: Annotated[Path | None, Parameter(help="HTML file; else report.html in the model's folder.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained HTML page: how good, how calibrated, what matters, has it converged.

    Example: bsgp report model --test test.csv
    """
    say_as_told(quiet, verbose)
    estimator = _load(model)
    held_out, sample_of = (None, None) if test is None else _test_table(estimator, test)

    from bsgp.report import write_report

    path = write_report(estimator, out or model / "report.html", held_out, sample_of=sample_of)
    output(quiet).print(f"Wrote {path}.", markup=False)


def _load(folder: Path):
    from bsgp.estimators import load
    from bsgp.startup import enable_compilation_cache

    enable_compilation_cache()
    return load(folder)


def _test_table(estimator, path: Path):
    """Inputs and targets of a table, as the model wants them; of very many rows a random sample, and then of what."""
    import numpy as np

    from bsgp.data.files import read_table

    table = read_table(path)
    table = table.without([name for name in estimator.about_.get("ignored", []) if name in table.columns])
    sample_of = None
    if table.num_rows > MAX_REPORT_ROWS:
        sample_of = f"the {table.num_rows:,} rows in {path.name}"
        logger.warning(f"The report is of a random sample: {MAX_REPORT_ROWS:,} of {sample_of}.")
        table = table.take(np.sort(np.random.default_rng(0).permutation(table.num_rows)[:MAX_REPORT_ROWS]))
    return _inputs_and_targets(estimator, table), sample_of


def _inputs_and_targets(estimator, table):
    from bsgp.data.targets import targets_of
    from bsgp.estimators import BSGPRegressor

    y, table = targets_of(table, estimator.target_names_)
    if isinstance(estimator, BSGPRegressor):
        return table, y.values("regression")
    (column,) = y.columns.values()
    # the model knows its classes, so that words need not look like classes in every chunk
    return table, column.values.astype(str) if column.kind == "text" else y.values("classification")


class _Chunks:
    """A table some rows at a time, without what the model does not look at; says now and then how far it is."""

    def __init__(self, estimator, path: Path, leave_out=()):
        self._estimator, self._path = estimator, path
        self._left_out = {*leave_out, *estimator.about_.get("ignored", [])}
        self._current: tuple[int, int] | None = None
        self.num_rows = 0
        """So far."""

    def __iter__(self) -> Iterator:
        from bsgp.data.table_chunks import CHUNK_ROWS, read_chunks, table_columns

        columns = [name for name in table_columns(self._path) if name not in self._left_out]
        rows = min(CHUNK_ROWS, max(1, _CHUNK_CELLS // self._estimator.schema_.width))
        say_at = time.monotonic() + _SAY_SECONDS
        with _each_column_once():
            for table in read_chunks(self._path, columns=columns, kinds=self._kinds(), rows=rows):
                self._current = (self.num_rows + 1, self.num_rows + table.num_rows)
                yield table
                self._current = None
                self.num_rows += table.num_rows
                if time.monotonic() > say_at:
                    logger.warning(f"{self.num_rows:,} rows of {self._path.name} are done ...")
                    say_at = time.monotonic() + _SAY_SECONDS

    def _kinds(self) -> dict[str, str]:
        """Classes that are words stay so in a chunk whose words all look like numbers."""
        classes = getattr(self._estimator, "classes_", None)
        is_text = classes is not None and classes.dtype.kind in "OU"
        return dict.fromkeys(self._estimator.target_names_, "text") if is_text else {}

    @contextmanager
    def naming_rows(self) -> Iterator[None]:
        """An error names a row of its chunk: say where the chunk lies."""
        try:
            yield
        except ValueError as error:
            if self._current is None or self._current[0] == 1:
                raise
            first, last = self._current
            raise ValueError(f"Of rows {first:,} to {last:,}, counted from 1: {error}") from None


@contextmanager
def _each_column_once() -> Iterator[None]:
    """What is said of a column (`age`: 3 missing values ...) would differ in its numbers in every chunk."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        column, colon, _ = record.getMessage().partition(": ")
        return not colon or (column not in said and not said.add(column))

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
