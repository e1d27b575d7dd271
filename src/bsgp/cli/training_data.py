"""The table of `bsgp fit`, in memory or on disk."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger("bsgp")

MAX_BYTES_IN_MEMORY = 500_000_000
"""Size in float64 above which a table's rows stay on disk, on any machine: its draws are then the same anywhere."""


class TrainingData(NamedTuple):
    """Inputs and targets of a table in memory, or a store and None; and the task."""

    X: Any
    y: Any
    task: str


def read_training_data(
    train: Path, target_names: list[str], ignored: list[str], task: str | None, stream: bool | None
) -> TrainingData:
    """Read a table whole, or open it as a store; by its size if `stream` is None."""
    if stream is None:
        stream = _is_large(train)
    if stream:
        from bsgp.data.store.store import open_store

        store = open_store(train, targets=target_names, ignore=ignored, task=task, say=logger.warning)
        return TrainingData(store, None, store.task)

    from bsgp.data.encoding.targets import targets_of, task_of
    from bsgp.data.tables.files import read_table

    y, table = targets_of(read_table(train).without(ignored), target_names)
    return TrainingData(table, y, task_of(y, task))


def _is_large(train: Path) -> bool:
    from bsgp.data.tables.chunks import estimate_size

    size = 0 if not train.exists() else estimate_size(train).bytes_in_memory
    is_large = train.is_dir() or size > MAX_BYTES_IN_MEMORY
    if is_large:
        logger.warning(
            f"{train.name} would take {size / 1e9:.1f} GB in memory: its rows stay on disk and are read as needed. "
            "Pass --no-stream to read it whole."
        )
    return is_large
