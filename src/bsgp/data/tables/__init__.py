"""Tables as named columns, read from files and data frames, whole or in chunks."""

from bsgp.data.tables.columns import Column, Table, from_array, from_frame

__all__ = ["Column", "Table", "from_array", "from_frame"]
