"""`bsgp fit`: from a table to a model."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bsgp.cli.common import Json, Quiet, Verbose, configure_logging, names, output
from bsgp.cli.devices import prepare_devices
from bsgp.cli.fit_options import ModelOptions, ProcessOptions, as_flag
from bsgp.cli.training_data import Roles, read_training_data
from bsgp.runtime.checks import check_option

if TYPE_CHECKING:
    from bsgp.estimators import BSGPEstimator

TASKS = ("regression", "classification")


def fit(
    train: Annotated[
        Path,
        Parameter(help="Table to learn from: .csv, .csv.gz, .tsv, .parquet, .arrow, or a folder of Parquet or Arrow."),
    ],
    *,
    target: Annotated[str, Parameter(help="Column to predict, or several numeric ones with commas.")],
    out: Annotated[Path, Parameter(help="Folder for the model; an older model there is replaced.")],
    task: Annotated[
        str | None, Parameter(help="`regression` or `classification`. Default: decided by the target's values.")
    ] = None,
    ignore: Annotated[str | None, Parameter(help="Columns to leave out, with commas.")] = None,
    weights: Annotated[
        str | None, Parameter(help="Column that says how many times each row counts; rows of weight zero are left out.")
    ] = None,
    noise_std: Annotated[
        str | None,
        Parameter(help="Column with the known standard deviation of each row's target; several targets: with commas."),
    ] = None,
    stream: Annotated[
        bool | None,
        Parameter(
            help="Leave the rows on disk and read them as they are needed. Default: decided by the table's size."
        ),
    ] = None,
    float32: Annotated[bool, Parameter(negative="", help="Half the precision, about half the time.")] = False,
    options: Annotated[ModelOptions | None, Parameter(name="*")] = None,
    processes: Annotated[ProcessOptions | None, Parameter(name="*")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Fit a table and save the model.

    Columns may be numbers, booleans or text with few values; missing values are filled in and marked.

    Example: bsgp fit train.csv --target price --out model

    Example: bsgp fit flights.parquet --target late --task classification --ignore id,date --out model --max-seconds 300

    Example: bsgp fit train.csv --target price --out model --chains 4 --mesh 4x1
    """
    from bsgp.inference.checkpoints import check_checkpoint_folder
    from bsgp.posterior.storage import check_writable
    from bsgp.runtime.compilation import enable_compilation_cache

    configure_logging(quiet, verbose)
    options = options or ModelOptions()
    check_writable(out)
    is_first = prepare_devices(options.mesh, processes or ProcessOptions())
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    check_checkpoint_folder(checkpoint)
    if task is not None:
        check_option("--task", task, TASKS)
    roles = Roles(names(target), names(ignore), weights, names(noise_std))
    enable_compilation_cache()
    data = read_training_data(train, roles, task, stream)

    from sklearn.exceptions import ConvergenceWarning

    from bsgp.estimators import BSGPClassifier, BSGPRegressor

    kind = BSGPRegressor if data.task == "regression" else BSGPClassifier
    model = kind(
        **_parameters(options, data.task),
        checkpoint=checkpoint if _can_checkpoint(options) else None,
        precision="float32" if float32 else "float64",
        verbose=not quiet and is_first,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the verdict is printed below
        model.fit(data.X, data.y, **data.of_rows)
    if is_first:
        model.save(out, about={"source": train.name, **roles.about})
        _print_result(model, data.task, out, as_json=as_json, quiet=quiet)


def _parameters(options: ModelOptions, task: str) -> dict:
    """Parameters of the task's estimator; a `ValueError` if some are for the other one only."""
    parameters = asdict(options)
    if task == "regression":
        return parameters
    for name in ("noise", "exposure"):
        if parameters.pop(name) is not None:
            raise ValueError(f"{as_flag(name)} is for a regression, got classes. Leave it out, or set `--task`.")
    return parameters


def _can_checkpoint(options: ModelOptions) -> bool:
    """Whether the method can be resumed; a `ValueError` if it cannot and should be."""
    from bsgp.methods.registry import METHODS

    method = METHODS[check_option("--method", options.method, list(METHODS))]
    if options.resume and not method.can_checkpoint:
        raise ValueError(
            f"`--resume` must go with a method that writes checkpoints, got `{options.method}`. Run it without."
        )
    return method.can_checkpoint


def _print_result(model: "BSGPEstimator", task: str, out: Path, *, as_json: bool, quiet: bool) -> None:
    found, num_columns = model.diagnostics_, len(model.schema_.features)
    verdict = found.verdict_for(as_flag)
    if as_json:
        summary = {
            "model": str(out),
            "task": task,
            "targets": list(model.target_names_),
            "rows": model.num_rows_,
            "inputs": num_columns,
            "notes": list(model.notes_),
            **found.to_json(),
            "grade": found.grade,
            "verdict": verdict,
        }
        print(json.dumps(summary))
        return
    console = output(quiet)
    console.print(
        f"{task.capitalize()} of {', '.join(model.target_names_)} on {model.num_rows_:,} rows and "
        f"{num_columns} columns: {found.evaluations:,} {_updates(found.num_chains, found.is_sampled)} "
        f"in {found.seconds:.0f} s.",
        markup=False,
    )
    if found.interrupted:
        console.print("Stopped early. Run the same command with --resume and more time to continue.")
    for warning in found.warnings:
        console.print(warning, markup=False)
    console.print(verdict, markup=False)
    console.print(
        f"Saved in {out}. Next: bsgp predict {out} NEW.csv --out PRED.csv, or bsgp report {out}", markup=False
    )


def _updates(num_chains: int, is_sampled: bool) -> str:
    if not is_sampled:
        return "steps"
    return f"updates of {num_chains} chain{'s' * (num_chains > 1)}"
