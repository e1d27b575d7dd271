"""Reads what the commands work on: saved models, and tables that fit them."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    import numpy as np

    from bsgp.data.tables.columns import Table
    from bsgp.estimators.base import BSGPEstimator

ModelFolder = Annotated[Path, Parameter(help="Model folder written by `bsgp fit`.")]
MAX_REPORT_ROWS = 200_000
CHUNK_CELLS = 5_000_000  # encoded inputs of a chunk, 40 MB: one categorical column may become many inputs
PROGRESS_SECONDS = 5.0

logger = logging.getLogger("bsgp")


def load_model(folder: Path) -> "BSGPEstimator":
    """Load a saved model, with the compilation cache switched on."""
    from bsgp.estimators import load
    from bsgp.runtime.compilation import enable_compilation_cache

    enable_compilation_cache()
    return load(folder)


def inputs_and_targets(model: "BSGPEstimator", table: "Table") -> "tuple[Table, np.ndarray]":
    """Split a table into the inputs and the targets of a model."""
    from bsgp.data.encoding.targets import targets_of
    from bsgp.estimators import BSGPRegressor

    y, table = targets_of(table, model.target_names_)
    return table, y.values("regression" if isinstance(model, BSGPRegressor) else "classification")


def no_inputs(model: "BSGPEstimator") -> set[str]:
    """Columns of the training table that are no inputs nor targets: a new table may have them, too."""
    about = model.about_
    return {*about.get("ignored", []), *about.get("noise_std", []), *filter(None, [about.get("weights")])}


def read_test_table(model: "BSGPEstimator", path: Path) -> "tuple[tuple[Table, np.ndarray], str | None]":
    """Inputs and targets of a table, and a description of the whole table if they are a random sample of it."""
    import numpy as np

    from bsgp.data.tables.files import read_table

    table = read_table(path)
    table = table.without(no_inputs(model).intersection(table.columns))
    sample_of = None
    if table.num_rows > MAX_REPORT_ROWS:
        sample_of = f"the {table.num_rows:,} rows in {path.name}"
        logger.warning(f"The report uses a random sample: {MAX_REPORT_ROWS:,} of {sample_of}.")
        table = table.take(np.sort(np.random.default_rng(0).permutation(table.num_rows)[:MAX_REPORT_ROWS]))
    return inputs_and_targets(model, table), sample_of


class TableChunks:
    """A table read in chunks of rows, without `no_inputs` of the model. Logs progress every few seconds."""

    def __init__(self, model: "BSGPEstimator", path: Path, leave_out=()):
        self._model, self._path = model, path
        self._left_out = {*leave_out, *no_inputs(model)}
        self._current: tuple[int, int] | None = None
        self.num_rows = 0
        """Rows read so far."""

    def __iter__(self) -> Iterator["Table"]:
        from bsgp.data.tables.chunks import CHUNK_ROWS, read_chunks, table_columns

        columns = [name for name in table_columns(self._path) if name not in self._left_out]
        rows = min(CHUNK_ROWS, max(1, CHUNK_CELLS // self._model.schema_.width))
        next_report = time.monotonic() + PROGRESS_SECONDS
        with _one_message_per_column():
            for table in read_chunks(self._path, columns=columns, kinds=self._kinds(), rows=rows):
                self._current = (self.num_rows + 1, self.num_rows + table.num_rows)
                yield table
                self._current = None
                self.num_rows += table.num_rows
                if time.monotonic() > next_report:
                    logger.warning(f"Processed {self.num_rows:,} rows of {self._path.name} ...")
                    next_report = time.monotonic() + PROGRESS_SECONDS

    def _kinds(self) -> dict[str, str]:
        """Read the target as text if the classes are text, even in chunks where all of them look like numbers."""
        classes = getattr(self._model, "classes_", None)
        is_text = classes is not None and classes.dtype.kind in "OU"
        return dict.fromkeys(self._model.target_names_, "text") if is_text else {}

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Add the position of the current chunk to a `ValueError`, whose row numbers count from the chunk's start."""
        try:
            yield
        except ValueError as error:
            if self._current is None or self._current[0] == 1:
                raise
            first, last = self._current
            raise ValueError(f"In rows {first:,} to {last:,}, counted from 1: {error}") from None


@contextmanager
def _one_message_per_column() -> Iterator[None]:
    """Log only the first message about each column ("`age`: 3 missing values ..."): numbers differ between chunks."""
    from bsgp.data.encoding.schema import Note

    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        column = record.msg.column if isinstance(record.msg, Note) else None
        return column is None or (column not in seen and not seen.add(column))

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
