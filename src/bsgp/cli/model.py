"""`bsgp fit`, `predict`, `evaluate` and `report`: from a table to a model, and from a model to its predictions."""

import json
import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.checks import check_option
from bsgp.cli.common import Json, Quiet, Verbose, names, output

TASKS = ("regression", "classification")
Model = Annotated[Path, Parameter(help="Folder that `bsgp fit` wrote.")]
NewTable = Annotated[Path, Parameter(help="Table with the columns that the model was fitted on: CSV or Parquet.")]


def fit(
    train: Annotated[Path, Parameter(help="Table to learn from: .csv, .csv.gz, .tsv or .parquet.")],
    *,
    target: Annotated[str, Parameter(help="Column to predict, or several numeric ones with commas.")],
    out: Annotated[Path, Parameter(help="Folder for the model; an older model there is replaced.")],
    task: Annotated[str | None, Parameter(help="`regression` or `classification`; else by the target's kind.")] = None,
    ignore: Annotated[str | None, Parameter(help="Columns to leave out, with commas.")] = None,
    method: Annotated[str, Parameter(help="One that `bsgp methods` lists.")] = "bsgp",
    depth: Annotated[int, Parameter(help="Layers.")] = 1,
    num_inducing: Annotated[int | None, Parameter(help="Inducing points; else the recipe's.")] = None,
    chains: Annotated[int, Parameter(help="Markov chains.")] = 1,
    objective: Annotated[str, Parameter(help="`fitc` or `vfe`.")] = "fitc",
    inducing_prior: Annotated[str, Parameter(help="normal, determinantal, strauss[-hard] or uniform.")] = "normal",
    recipe: Annotated[str, Parameter(help="`default`, or `paper` for what the authors did.")] = "default",
    effort: Annotated[float, Parameter(help="Multiplies the recipe's number of updates.")] = 1.0,
    max_seconds: Annotated[float | None, Parameter(help="Stop sampling then, with what was drawn so far.")] = None,
    float32: Annotated[bool, Parameter(negative="", help="Half the precision, about half the time.")] = False,
    seed: int = 0,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Fit a table and save the model.

    Columns may be numbers, booleans or text with few values; missing values are filled in and marked.

    Example: bsgp fit train.csv --target price --out model

    Example: bsgp fit flights.parquet --target late --task classification --ignore id,date --out model --max-seconds 300
    """
    from bsgp.data.files import read_table
    from bsgp.data.targets import targets_of, task_of
    from bsgp.startup import enable_compilation_cache
    from bsgp.storage import check_writable

    _say_as_told(quiet, verbose)
    check_writable(out)
    if task is not None:
        check_option("--task", task, TASKS)
    table = read_table(train)
    target_names, ignored = names(target), names(ignore)
    y, table = targets_of(table.without(ignored), target_names)
    chosen_task = task_of(y, task)

    from bsgp.estimators import BSGPClassifier, BSGPRegressor

    enable_compilation_cache()
    kind = BSGPRegressor if chosen_task == "regression" else BSGPClassifier
    model = kind(
        method=method, depth=depth, num_inducing=num_inducing, num_chains=chains, objective=objective,
        inducing_prior=inducing_prior, recipe=recipe, effort=effort, max_seconds=max_seconds,
        precision="float32" if float32 else "float64", verbose=not quiet, random_state=seed,
    )  # fmt: skip
    model.fit(table, y.values(chosen_task))
    model.target_names_ = tuple(target_names)
    model.save(out, about={"source": train.name, "ignored": ignored})
    summary = {
        "model": str(out),
        "task": chosen_task,
        "targets": target_names,
        "rows": model.num_rows_,
        "inputs": len(model.schema_.features),
        "notes": list(model.notes_),
        **model.diagnostics_.to_json(),
        "verdict": model.diagnostics_.verdict,
    }
    if as_json:
        print(json.dumps(summary))
        return
    found = model.diagnostics_
    console = output(quiet)
    console.print(
        f"{chosen_task.capitalize()} of {', '.join(target_names)} on {model.num_rows_:,} rows and "
        f"{summary['inputs']} columns: {found.evaluations:,} {_updates(found.num_chains, found.is_sampled)} "
        f"in {found.seconds:.0f} s.",
        markup=False,
    )
    if found.interrupted:
        console.print("Stopped early, as told by --max-seconds.")
    for warning in found.warnings if verbose else ():
        console.print(warning, markup=False)
    console.print(found.verdict, markup=False)
    console.print(
        f"Saved in {out}. Next: bsgp predict {out} NEW.csv --out PRED.csv, or bsgp report {out}", markup=False
    )


def _updates(num_chains: int, is_sampled: bool) -> str:
    if not is_sampled:
        return "steps"
    return f"updates of {num_chains} chain{'s' * (num_chains > 1)}"


def predict(
    model: Model,
    new: NewTable,
    *,
    out: Annotated[Path, Parameter(help="Where the predictions go: .csv, .csv.gz, .tsv or .parquet.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict a table's rows: mean, std, q05, q50 and q95 of each target, or the probability of each class.

    Example: bsgp predict model new.csv --out predictions.csv
    """
    from bsgp.data.files import check_table_path, read_table, write_table

    _say_as_told(quiet, verbose)
    check_table_path(out)
    estimator = _load(model)
    table = _without(read_table(new), [*estimator.target_names_, *estimator.about_.get("ignored", [])])

    from bsgp.prediction import prediction_columns

    columns = prediction_columns(estimator, table)
    write_table(out, columns)
    output(quiet).print(f"Wrote {table.num_rows:,} predictions to {out}.", markup=False)


def evaluate(
    model: Model,
    test: Annotated[Path, Parameter(help="Table with the model's columns and its targets.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score predictions against known targets, beside a constant and a linear baseline.

    Example: bsgp evaluate model test.csv --json
    """
    from rich.table import Table as RichTable

    _say_as_told(quiet or as_json, verbose)
    estimator = _load(model)
    X, y = _test_table(estimator, test)

    from bsgp.scoring import baseline_scores, score

    scores = score(estimator, X, y)
    baselines = baseline_scores(estimator, X, y)
    if as_json:
        print(json.dumps({**scores, "rows": X.num_rows, "baselines": baselines}))
        return
    shown = RichTable("", *scores)
    for name, one in {**baselines, estimator.method: scores}.items():
        shown.add_row(name, *(f"{value:.4g}" for value in one.values()))
    output().print(shown)


def report(
    model: Model,
    *,
    test: Annotated[Path | None, Parameter(help="Table with the model's columns and its targets.")] = None,
    out: Annotated[Path | None, Parameter(help="HTML file; else report.html in the model's folder.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained HTML page: how good, how calibrated, what matters, has it converged.

    Example: bsgp report model --test test.csv
    """
    _say_as_told(quiet, verbose)
    estimator = _load(model)
    held_out = None if test is None else _test_table(estimator, test)

    from bsgp.report import write_report

    path = write_report(estimator, out or model / "report.html", held_out)
    output(quiet).print(f"Wrote {path}.", markup=False)


def _say_as_told(quiet: bool, verbose: bool) -> None:
    """What was done to a table is said on standard error, one line each, once: a score encodes its rows repeatedly."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return message not in said and not said.add(message)

    logging.basicConfig(format="bsgp: %(message)s")
    logger = logging.getLogger("bsgp")
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.WARNING)
    logger.filters = [is_new]


def _load(folder: Path):
    from bsgp.estimators import load
    from bsgp.startup import enable_compilation_cache

    enable_compilation_cache()
    return load(folder)


def _test_table(estimator, path: Path):
    """Inputs and targets of a table, the targets as the model wants them."""
    from bsgp.data.files import read_table
    from bsgp.data.targets import targets_of
    from bsgp.estimators import BSGPRegressor

    y, table = targets_of(_without(read_table(path), estimator.about_.get("ignored", [])), estimator.target_names_)
    task = "regression" if isinstance(estimator, BSGPRegressor) else "classification"
    return table, y.values(task)


def _without(table, names: list[str]):
    """Columns that the model does not look at may be in a new table, or not."""
    return table.without([name for name in names if name in table.columns])
