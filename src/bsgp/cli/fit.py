"""`bsgp fit`: from a table to a model."""

import json
import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.checks import check_count, check_option
from bsgp.cli.common import Json, Quiet, Verbose, names, output, say_as_told

logger = logging.getLogger("bsgp")

TASKS = ("regression", "classification")
MAX_BYTES_IN_MEMORY = 500_000_000
"""Of a table in float64, whatever the machine: a fit needs several times as much, and gives the same draws anywhere."""


def fit(
    train: Annotated[
        Path,
        Parameter(help="Table to learn from: .csv, .csv.gz, .tsv, .parquet, .arrow, or a folder of Parquet or Arrow."),
    ],
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
    inducing_prior: Annotated[
        str | None, Parameter(help="normal, determinantal, strauss[-hard] or uniform; the recipe's by default.")
    ] = None,
    likelihood_power: Annotated[
        float, Parameter(help="Below 1 the data count for fewer rows than they are, and the posterior is wider.")
    ] = 1.0,
    recipe: Annotated[str, Parameter(help="`default`, or `paper` for what the authors did.")] = "default",
    effort: Annotated[float, Parameter(help="Multiplies the recipe's number of updates.")] = 1.0,
    max_seconds: Annotated[float | None, Parameter(help="Stop sampling then, with what was drawn so far.")] = None,
    float32: Annotated[bool, Parameter(negative="", help="Half the precision, about half the time.")] = False,
    stream: Annotated[
        bool | None,
        Parameter(help="Leave the rows on disk and read them as they are needed; else by the table's size."),
    ] = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on with a run that was cut off.")] = False,
    checkpoint_seconds: Annotated[float, Parameter(help="From one checkpoint to the next.")] = 60.0,
    mesh: Annotated[
        str | None, Parameter(help="Devices for chains and shares of minibatches, CHAINSxDATA, such as 2x1.")
    ] = None,
    coordinator: Annotated[
        str | None, Parameter(help="With several processes: HOST:PORT at which the first listens, and it alone.")
    ] = None,
    num_processes: Annotated[int | None, Parameter(help="That work as one; start each with its number.")] = None,
    process_id: Annotated[int | None, Parameter(help="The number of this process, from 0; 0 writes the model.")] = None,
    seed: int = 0,
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
    from bsgp.checkpoints import check_checkpoint_folder
    from bsgp.methods import METHODS
    from bsgp.startup import enable_compilation_cache
    from bsgp.storage import check_writable

    say_as_told(quiet, verbose)
    check_writable(out)
    is_first = _join(mesh, coordinator, num_processes, process_id)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    check_checkpoint_folder(checkpoint)
    if task is not None:
        check_option("--task", task, TASKS)
    target_names, ignored = names(target), names(ignore)
    enable_compilation_cache()
    X, y, chosen_task = _training_data(train, target_names, ignored, task, stream)

    from bsgp.estimators import BSGPClassifier, BSGPRegressor

    can_resume = METHODS[check_option("--method", method, list(METHODS))].can_resume
    if resume and not can_resume:
        raise ValueError(f"`--resume` must go with a method of chains, got `{method}`. Run it without.")
    kind = BSGPRegressor if chosen_task == "regression" else BSGPClassifier
    model = kind(
        method=method, depth=depth, num_inducing=num_inducing, num_chains=chains, objective=objective,
        inducing_prior=inducing_prior, likelihood_power=likelihood_power, recipe=recipe, effort=effort,
        max_seconds=max_seconds, mesh=mesh,
        precision="float32" if float32 else "float64", verbose=not quiet and is_first, random_state=seed,
        checkpoint=checkpoint if can_resume else None, checkpoint_seconds=checkpoint_seconds, resume=resume,
    )  # fmt: skip
    model.fit(X, y)
    if not is_first:
        return
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
        console.print("Stopped early. The same command with --resume, and more time, goes on.")
    for warning in found.warnings if verbose else ():
        console.print(warning, markup=False)
    console.print(found.verdict, markup=False)
    console.print(
        f"Saved in {out}. Next: bsgp predict {out} NEW.csv --out PRED.csv, or bsgp report {out}", markup=False
    )


def _join(mesh: str | None, coordinator: str | None, num_processes: int | None, process_id: int | None) -> bool:
    """Prepare the devices of a mesh, with those of other processes if there are any; whether this one is the first."""
    if mesh is None and (coordinator, num_processes, process_id) == (None, None, None):
        return True
    from bsgp.mesh import mesh_shape

    num_devices = math.prod(mesh_shape(mesh)) if mesh is not None else 0
    if (coordinator, num_processes, process_id) == (None, None, None):
        import jax

        with suppress(RuntimeError):  # JAX runs already, with the devices that it has
            jax.config.update("jax_num_cpu_devices", num_devices)
        return True
    if mesh is None or num_processes is None or process_id is None:
        raise ValueError(
            "Several processes must come with --mesh, --num-processes and --process-id, got some of them only. "
            "Pass all three, and --coordinator unless all are on this machine."
        )
    if num_devices % check_count("--num-processes", num_processes):
        raise ValueError(
            f"`--mesh` must have as many devices for each of the {num_processes} processes, got {mesh}: "
            f"{num_devices} devices. Choose a multiple of {num_processes}."
        )
    from bsgp.processes import DEFAULT_COORDINATOR, join_processes

    join_processes(coordinator or DEFAULT_COORDINATOR, num_processes, process_id, num_devices // num_processes)
    return process_id == 0


def _training_data(train: Path, target_names: list[str], ignored: list[str], task: str | None, stream: bool | None):
    """Inputs, targets and task: of a table in memory, or of a store and None."""
    from bsgp.data.table_chunks import estimate_size

    if stream is None:
        size = 0 if not train.exists() else estimate_size(train).bytes_in_memory
        stream = train.is_dir() or size > MAX_BYTES_IN_MEMORY
        if stream:
            logger.warning(
                f"{train.name} would take {size / 1e9:.1f} GB in memory: its rows stay on disk and are read as needed. "
                "Pass --no-stream to read it whole."
            )
    if stream:
        from bsgp.data.store import open_store

        store = open_store(train, targets=target_names, ignore=ignored, task=task, say=logger.warning)
        return store, None, store.task

    from bsgp.data.files import read_table
    from bsgp.data.targets import targets_of, task_of

    y, table = targets_of(read_table(train).without(ignored), target_names)
    chosen_task = task_of(y, task)
    return table, y.values(chosen_task), chosen_task


def _updates(num_chains: int, is_sampled: bool) -> str:
    if not is_sampled:
        return "steps"
    return f"updates of {num_chains} chain{'s' * (num_chains > 1)}"
