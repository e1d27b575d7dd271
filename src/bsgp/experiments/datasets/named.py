"""Named data sets, read from a folder of files. Every file is verified against a known checksum and schema."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.runtime.checks import check_option

UCI = ("yacht", "boston", "energy", "concrete", "kin8nm", "powerplant", "naval", "protein")
"""The paper's eight regression sets, smallest first."""


@dataclass(frozen=True)
class Schema:
    """Contents of a named file: inputs first, then targets, then columns that are neither."""

    name: str
    file: str
    rows: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    other: tuple[str, ...]
    task: str
    sha256: str
    source: str
    """Where the data set comes from."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.inputs, *self.targets, *self.other)


@dataclass(frozen=True)
class NamedDataset:
    """`X [N D]` and `y [N P]` in raw units and in the file's row order. `other` holds the remaining columns."""

    schema: Schema
    X: np.ndarray
    y: np.ndarray
    other: dict[str, np.ndarray]


@cache
def schemas() -> dict[str, Schema]:
    """Schemas of all known data sets, by name."""
    known = json.loads(files("bsgp.experiments.datasets").joinpath("named_sets.json").read_text())
    return {name: Schema(name=name, **_with_tuples(one)) for name, one in known.items()}


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def data_folder(folder: str | os.PathLike | None = None) -> Path:
    """Folder of the named data sets: `folder`, else the environment variable BSGP_DATA."""
    chosen = folder or os.environ.get("BSGP_DATA")
    if not chosen:
        raise ValueError(
            "A data folder must be named, got none. Pass `--data-dir`, or set the environment variable BSGP_DATA. "
            "`bsgp data list` shows the files that belong in the folder and where they come from."
        )
    if not Path(chosen).is_dir():
        raise ValueError(
            f"The data folder must exist, got `{chosen}`. Check `--data-dir` or the environment variable BSGP_DATA."
        )
    return Path(chosen)


def load_named(name: str, folder: str | os.PathLike | None = None) -> NamedDataset:
    """Read a data set. A missing, damaged or different file raises a `ValueError`."""
    schema = schemas()[check_option("dataset", name, list(schemas()))]
    path = data_folder(folder) / schema.file
    if not path.exists():
        raise ValueError(f"`{name}` must be at `{path}`, got no such file. It is {schema.source}.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != schema.sha256:
        raise ValueError(
            f"`{path}` must have the checksum {schema.sha256[:12]}..., got {digest[:12]}... "
            "It is damaged or another version. Fetch it again."
        )
    return _read(schema, path)


def _read(schema: Schema, path: Path) -> NamedDataset:
    from pyarrow import csv

    table = csv.read_csv(path)  # the file's ending tells whether it is compressed
    if tuple(table.column_names) != schema.columns or table.num_rows != schema.rows:
        raise ValueError(
            f"`{path}` must hold {schema.rows} rows of {list(schema.columns)}, "
            f"got {table.num_rows} rows of {table.column_names}. Fetch it again."
        )

    def matrix(names: tuple[str, ...]) -> np.ndarray:
        return np.stack([table[name].to_numpy().astype(np.float64) for name in names], axis=1)

    other = {name: table[name].to_numpy() for name in schema.other}
    return NamedDataset(schema, matrix(schema.inputs), matrix(schema.targets), other)


NO_FOLDER = "no folder"


@dataclass(frozen=True)
class Availability:
    """One line of `bsgp data list`."""

    schema: Schema
    state: str
    """`found`, `missing`, `wrong checksum`, or `NO_FOLDER` if none was named."""


def available(folder: str | os.PathLike | None = None) -> list[Availability]:
    """State of every known data set, also if no data folder was named."""
    root = data_folder(folder) if folder is not None or os.environ.get("BSGP_DATA") else None

    def state(schema: Schema) -> str:
        if root is None:
            return NO_FOLDER
        path = root / schema.file
        if not path.exists():
            return "missing"
        return "found" if hashlib.sha256(path.read_bytes()).hexdigest() == schema.sha256 else "wrong checksum"

    return [Availability(schema, state(schema)) for schema in schemas().values()]
