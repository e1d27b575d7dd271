"""What the tests of Arrow's own files share."""

from pathlib import Path

import pyarrow as pa
from pyarrow import ipc


def write_ipc(
    path: Path, table: pa.Table, *, rows: int = 9, compression: str | None = None, stream: bool | None = None
):
    """In record batches of `rows` rows: a stream where the ending says so, else a file."""
    as_stream = path.suffix == ".arrows" if stream is None else stream
    options = ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    new = ipc.new_stream if as_stream else ipc.new_file
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
