"""`bsgp report`: writes an HTML page about a model."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.cli.common import Quiet, Verbose, configure_logging, output
from bsgp.cli.inputs import ModelFolder, load_model, read_test_table


def report(
    model: ModelFolder,
    *,
    test: Annotated[Path | None, Parameter(help="Table with the model's input columns and its targets.")] = None,
    out: Annotated[Path | None, Parameter(help="HTML file. Default: report.html in the model folder.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained HTML page: accuracy, calibration, inputs that matter, convergence.

    Example: bsgp report model --test test.csv
    """
    configure_logging(quiet, verbose)
    estimator = load_model(model)
    held_out, sample_of = (None, None) if test is None else read_test_table(estimator, test)

    from bsgp.report import write_report

    path = write_report(estimator, out or model / "report.html", held_out, sample_of=sample_of)
    output(quiet).print(f"Wrote {path}.", markup=False)
