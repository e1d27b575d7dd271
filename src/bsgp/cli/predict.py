"""`bsgp predict`: writes the predictions of a model for a table."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.cli.common import Quiet, Verbose, configure_logging, output
from bsgp.cli.inputs import ModelFolder, TableChunks, load_model


def predict(
    model: ModelFolder,
    new: Annotated[
        Path,
        Parameter(help="Table with the model's input columns: CSV, Parquet or Arrow, or a folder of those last two."),
    ],
    *,
    out: Annotated[Path, Parameter(help="File for the predictions: .csv, .csv.gz, .tsv or .parquet.")],
    parts: Annotated[
        bool,
        Parameter(
            negative="",
            help="Add the columns `epistemic` and `aleatoric`: the doubt that more data would reduce, and the rest, as "
            "standard deviations of each target or entropies of the class.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict every row of a table: mean, std, q05, q50 and q95 of each target, or the probability of each class.

    The last column, extrapolation, is 0 where the training rows settle the prediction, and 1 far from all of them.

    Example: bsgp predict model new.csv --out predictions.csv
    """
    from bsgp.data.tables.write import TableWriter, check_table_path

    configure_logging(quiet, verbose)
    check_table_path(out)
    estimator = load_model(model)

    from bsgp.estimators.prediction_table import prediction_columns

    chunks = TableChunks(estimator, new, leave_out=estimator.target_names_)
    with TableWriter(out) as writer:
        for index, table in enumerate(chunks):
            with chunks.locating_errors():
                columns = prediction_columns(estimator, table, index, has_parts=parts)
            writer.write(columns)
    output(quiet).print(f"Wrote {chunks.num_rows:,} predictions to {out}.", markup=False)
