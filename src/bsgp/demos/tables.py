"""Two real tables that ship with our dependencies, a regression and a classification, beside two baselines."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bsgp.data.encoding.targets import Targets
from bsgp.data.tables.columns import Table, column_from_values, from_array
from bsgp.data.tables.write import write_table
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.estimators.diagnostics import Diagnostics
from bsgp.estimators.scoring import Scores, evaluate
from bsgp.report import write_report

TEST_SHARE = 0.2
NUM_ROWS = 750
"""Rows of each table. More would make the demo longer than a minute or two."""


@dataclass(frozen=True)
class Example:
    """A table that needs no download."""

    name: str
    title: str
    target: str
    """Name of the target column."""
    load: Callable[[], tuple[Table, np.ndarray]]
    estimator: type[BSGPRegressor] | type[BSGPClassifier]


@dataclass(frozen=True)
class ExampleResult:
    """Scores of a fitted example, and the path of its report."""

    example: Example
    num_train: int
    num_test: int
    num_inputs: int
    scores: dict[str, Scores]
    """Test scores by model, baselines first."""
    seconds: float
    diagnostics: Diagnostics
    report: Path


def _elevation() -> tuple[Table, np.ndarray]:
    """Heights at random places around the Jacksboro fault in Tennessee."""
    from matplotlib.cbook import get_sample_data

    file: Any = get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)
    with np.load(file) as dem:
        height = dem["elevation"]
        longitude = np.linspace(dem["xmin"], dem["xmax"], height.shape[1])
        latitude = np.linspace(dem["ymin"], dem["ymax"], height.shape[0])
    places = np.random.default_rng(0).choice(height.size, NUM_ROWS, replace=False)
    north, east = np.unravel_index(places, height.shape)
    position = np.stack([longitude[east], latitude[north]], axis=1)
    return from_array(position, names=["longitude", "latitude"]), height[north, east].astype(np.float64)


def _digits() -> tuple[Table, np.ndarray]:
    """Handwritten digits of 8 x 8 pixels. Even and odd ones cannot be separated by a plane."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    rows = slice(NUM_ROWS)
    names = [f"pixel {index // 8},{index % 8}" for index in range(64)]
    return from_array(bunch.data[rows], names=names), np.where(bunch.target[rows] % 2 == 0, "even", "odd")


EXAMPLES = (
    Example(
        "elevation", "Elevation: height in metres from longitude and latitude", "height", _elevation, BSGPRegressor
    ),
    Example("digits", "Digits: is a handwritten digit even or odd", "parity", _digits, BSGPClassifier),
)


def split_example(example: Example, out: Path):
    """Inputs and target of training and test rows. Both are also written to `out` as CSV files."""
    table, y = example.load()
    order = np.random.default_rng(0).permutation(table.num_rows)
    num_test = round(TEST_SHARE * table.num_rows)
    parts = {"train": order[num_test:], "test": order[:num_test]}
    out.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        columns = {name: column.values[rows] for name, column in table.columns.items()}
        write_table(out / f"{example.name}-{part}.csv", {**columns, example.target: y[rows]})
    return [(table.take(rows), y[rows]) for rows in parts.values()]


def run_example(example: Example, out: Path, *, effort: float = 1.0, verbose: bool = True) -> ExampleResult:
    """Fit four fifths of the rows and score the rest. Model and report are written to a folder in `out`."""
    (X, y), held_out = split_example(example, out)
    target = Targets({example.target: column_from_values(example.target, y)})
    model = example.estimator(effort=effort, verbose=verbose, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the verdict is among the results
        model.fit(X, target)
    found = evaluate(model, *held_out)
    scores = {**found.baselines, "bsgp": found.scores}
    folder = out / example.name
    model.save(folder, about={"source": f"{example.name}-train.csv"})
    return ExampleResult(
        example=example,
        num_train=X.num_rows,
        num_test=held_out[0].num_rows,
        num_inputs=len(X.columns),
        scores=scores,
        seconds=model.diagnostics_.seconds,
        diagnostics=model.diagnostics_,
        report=write_report(model, folder / "report.html", held_out),
    )
