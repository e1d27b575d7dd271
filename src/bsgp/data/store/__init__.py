"""Sources of the rows of a fit: arrays in memory, or a converted table on disk."""

from bsgp.data.store.store import Store, open_store

__all__ = ["Store", "open_store"]
