"""The table of `bsgp fit`, in memory or on disk."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from bsgp.data.tables.columns import Table

logger = logging.getLogger("bsgp")

MAX_BYTES_IN_MEMORY = 500_000_000
"""Size in float64 above which a table's rows stay on disk, on any machine: its draws are then the same anywhere."""


@dataclass(frozen=True)
class Roles:
    """Columns of the training table that are no inputs, by what they are."""

    targets: list[str]
    ignored: list[str] = field(default_factory=list)
    weights: str | None = None
    noise_std: list[str] = field(default_factory=list)
    """One column for each target, or none."""

    @property
    def about(self) -> dict[str, Any]:
        """What a model remembers of them, as JSON, so that its commands leave these columns out of the inputs."""
        given = {"weights": self.weights, "noise_std": self.noise_std}
        return {"ignored": self.ignored, **{role: names for role, names in given.items() if names}}


class TrainingData(NamedTuple):
    """Inputs and targets of a table in memory, or a store and None; the task; and what `fit` takes beside them."""

    X: Any
    y: Any
    task: str
    of_rows: "dict[str, np.ndarray]"
    """`sample_weight` and `noise_std`, as far as they are given and not in the store."""


def read_training_data(train: Path, roles: Roles, task: str | None, stream: bool | None) -> TrainingData:
    """Read a table whole, or open it as a store; by its size if `stream` is None."""
    if stream is None:
        stream = _is_large(train)
    if not stream:
        return _in_memory(train, roles, task)
    if roles.noise_std:
        raise ValueError("`--noise-std` must have all rows in memory, got rows on disk. Pass `--no-stream`.")
    from bsgp.data.store.store import open_store

    store = open_store(
        train, targets=roles.targets, ignore=roles.ignored, weights=roles.weights, task=task, say=logger.warning
    )
    return TrainingData(store, None, store.task, {})


def _in_memory(train: Path, roles: Roles, task: str | None) -> TrainingData:
    from bsgp.data.encoding.targets import targets_of, task_of
    from bsgp.data.tables.files import read_table

    table, of_rows = _of_rows(read_table(train).without(roles.ignored), roles)
    y, table = targets_of(table, roles.targets)
    task = task_of(y, task)
    if roles.noise_std and task != "regression":
        raise ValueError(f"`--noise-std` must go with a regression, got a {task}. Leave it out.")
    return TrainingData(table, y, task, of_rows)


def _of_rows(table: "Table", roles: Roles) -> "tuple[Table, dict[str, np.ndarray]]":
    """The rest of a table without rows of weight zero, and the weights and known noise of its rows."""
    import numpy as np

    from bsgp.data.encoding.weight_columns import left_out_note, noise_in, weights_in

    of_rows = {}
    if roles.weights is not None:
        weight = weights_in(table, roles.weights)
        kept = np.flatnonzero(weight)
        if 0 < len(kept) < len(weight):  # here already: such a row may have no target
            logger.warning(left_out_note(len(weight) - len(kept)))
            table, weight = table.take(kept), weight[kept]
        of_rows["sample_weight"] = weight
    if roles.noise_std:
        columns = [noise_in(table, name) for name in roles.noise_std]
        of_rows["noise_std"] = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    left_out = [*roles.noise_std, *([] if roles.weights is None else [roles.weights])]
    return table.without(left_out), of_rows


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
