"""Tables from files and data frames, their encoding as numbers, and tables that stay on disk."""

from bsgp.data.encoding.schema import InputSchema
from bsgp.data.store.store import Store, open_store
from bsgp.data.tables.columns import Column, Table, from_array, from_frame
from bsgp.data.tables.files import read_table
from bsgp.data.tables.write import write_table

__all__ = [
    "Column",
    "InputSchema",
    "Store",
    "Table",
    "from_array",
    "from_frame",
    "open_store",
    "read_table",
    "write_table",
]
