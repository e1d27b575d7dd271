"""Data sets by name, from a folder of files, each verified against the checksum and schema it is known by."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.checks import check_option

UCI = ("yacht", "boston", "energy", "concrete", "kin8nm", "powerplant", "naval", "protein")
"""The paper's eight regression sets, smallest first."""


@dataclass(frozen=True)
class Schema:
    """What a named file must hold: inputs first, then targets, then columns that are neither."""

    name: str
    file: str
    rows: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    other: tuple[str, ...]
    task: str
    sha256: str
    source: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.inputs, *self.targets, *self.other)


@dataclass(frozen=True)
class NamedDataset:
    """`X [N D]` and `y [N P]` in raw units, in the file's row order; `other` holds the remaining columns."""

    schema: Schema
    X: np.ndarray
    y: np.ndarray
    other: dict[str, np.ndarray]


@cache
def schemas() -> dict[str, Schema]:
    """Every data set that is known, by name."""
    known = json.loads(files("bsgp.data").joinpath("named_sets.json").read_text())
    return {name: Schema(name=name, **_with_tuples(one)) for name, one in known.items()}


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def data_folder(folder: str | os.PathLike | None = None) -> Path:
    """`folder`, else `$BSGP_DATA`, else `../shared/data` where that exists."""
    if folder is not None:
        chosen = Path(folder)
    elif os.environ.get("BSGP_DATA"):
        chosen = Path(os.environ["BSGP_DATA"])
    else:
        chosen = Path("../shared/data")
    if not chosen.is_dir():
        raise ValueError(
            f"The data folder must exist, got `{chosen}`. Name one with `--data-dir` or the variable BSGP_DATA."
        )
    return chosen


def load_named(name: str, folder: str | os.PathLike | None = None) -> NamedDataset:
    """Read a data set, or say in a `ValueError` what is wrong with its file."""
    schema = schemas()[check_option("dataset", name, list(schemas()))]
    path = data_folder(folder) / schema.file
    if not path.exists():
        raise ValueError(f"`{name}` must lie at `{path}`, got no such file. It is {schema.source}.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != schema.sha256:
        raise ValueError(
            f"`{path}` must have the checksum {schema.sha256[:12]}..., got {digest[:12]}... "
            "It is damaged, or another version; fetch it again."
        )
    return _read(schema, path)


def _read(schema: Schema, path: Path) -> NamedDataset:
    from pyarrow import csv

    table = csv.read_csv(path)  # decompresses by the file's ending
    if tuple(table.column_names) != schema.columns or table.num_rows != schema.rows:
        raise ValueError(
            f"`{path}` must hold {schema.rows} rows of {list(schema.columns)}, "
            f"got {table.num_rows} rows of {table.column_names}. Fetch it again."
        )

    def matrix(names: tuple[str, ...]) -> np.ndarray:
        return np.stack([table[name].to_numpy().astype(np.float64) for name in names], axis=1)

    other = {name: table[name].to_numpy() for name in schema.other}
    return NamedDataset(schema, matrix(schema.inputs), matrix(schema.targets), other)


@dataclass(frozen=True)
class Availability:
    """One line of `bsgp data list`."""

    schema: Schema
    state: str
    """`there`, `missing` or `another checksum`."""


def available(folder: str | os.PathLike | None = None) -> list[Availability]:
    root = data_folder(folder)

    def state(schema: Schema) -> str:
        path = root / schema.file
        if not path.exists():
            return "missing"
        return "there" if hashlib.sha256(path.read_bytes()).hexdigest() == schema.sha256 else "another checksum"

    return [Availability(schema, state(schema)) for schema in schemas().values()]
