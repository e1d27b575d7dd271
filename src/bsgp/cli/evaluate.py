"""`bsgp evaluate`: scores a model on a table with known targets."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.cli.common import Json, Quiet, Verbose, configure_logging, output
from bsgp.cli.inputs import ModelFolder, TableChunks, inputs_and_targets, load_model


def evaluate(
    model: ModelFolder,
    test: Annotated[Path, Parameter(help="Table with the model's input columns and its targets.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score predictions against known targets, beside a constant and a linear baseline.

    Example: bsgp evaluate model test.csv --json
    """
    from rich.table import Table as RichTable

    configure_logging(quiet or as_json, verbose)
    estimator = load_model(model)

    from bsgp.estimators.scoring import evaluate_chunks

    chunks = TableChunks(estimator, test)
    with chunks.locating_errors():
        tables = (inputs_and_targets(estimator, table) for table in chunks)
        scores, baselines, num_rows = evaluate_chunks(estimator, tables)
    if as_json:
        print(json.dumps({**scores, "rows": num_rows, "baselines": baselines}))
        return
    shown = RichTable("", *scores)
    for name, one in {**baselines, estimator.method: scores}.items():
        shown.add_row(name, *(f"{value:.4g}" for value in one.values()))
    output().print(shown)
