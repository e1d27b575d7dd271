"""`bsgp bench`: the paper's experiments, beside the authors' own figures."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bsgp.checks import check_option
from bsgp.cli.common import DataDir, numbers, output

bench_app = App(name="bench", help="The paper's experiments, beside the authors' own figures.")


@bench_app.command(name="run")
def bench_run(
    experiment: Annotated[str, Parameter(help="`uci`: a fold of a regression set per run.")],
    *,
    out: Annotated[Path, Parameter(help="Folder for the results; finished runs in it are not run again.")],
    datasets: Annotated[str, Parameter(help="Names with commas, or `all`.")] = "all",
    folds: Annotated[str, Parameter(help="Such as 0-7 or 0,3.")] = "0-7",
    methods: Annotated[str, Parameter(help="Names with commas.")] = "bsgp",
    depths: Annotated[str, Parameter(help="Numbers of layers, such as 1-3.")] = "1",
    recipe: Annotated[str, Parameter(help="`default`, or `paper` for what the authors did.")] = "default",
    seed: int = 0,
    num_inducing: Annotated[int | None, Parameter(help="In the place of the recipe's.")] = None,
    scale: Annotated[float, Parameter(help="Multiplies the recipe's number of updates.")] = 1.0,
    full_data_x: Annotated[bool, Parameter(help="Standardise inputs by all rows, as the authors did.")] = False,
    objective: Annotated[str, Parameter(help="`fitc` or `vfe`, of bsgp and its ablations.")] = "fitc",
    inducing_prior: Annotated[str, Parameter(help="normal, determinantal, strauss or uniform; likewise.")] = "normal",
    processes: Annotated[int, Parameter(help="Runs at a time, each on one core.")] = 2,
    data_dir: DataDir = None,
) -> None:
    """Run every method x data set x fold x depth that is not in OUT yet, one JSON line each in OUT/runs.jsonl.

    Interrupt it at will: the same command goes on where it stopped.

    Example: bsgp bench run uci --datasets yacht,boston --folds 0-3 --depths 1-2 --out runs
    """
    from bsgp.data.named import UCI, data_folder
    from bsgp.experiments.campaign import run_with_progress
    from bsgp.experiments.uci import UCIRun
    from bsgp.inducing import INDUCING_PRIORS
    from bsgp.methods import METHODS
    from bsgp.recipes import RECIPES
    from bsgp.target import OBJECTIVES

    check_option("experiment", experiment, ["uci"])
    check_option("--recipe", recipe, list(RECIPES))
    check_option("--objective", objective, OBJECTIVES)
    check_option("--inducing-prior", inducing_prior, list(INDUCING_PRIORS))
    names = list(UCI) if datasets == "all" else [check_option("--datasets", n, UCI) for n in datasets.split(",")]
    chosen_methods = [check_option("--methods", method, list(METHODS)) for method in methods.split(",")]
    runs = [
        UCIRun(name, fold, depth, method, recipe, seed, num_inducing, scale, full_data_x, objective, inducing_prior)
        for depth in numbers(depths, "depths")
        for method in chosen_methods
        for name in names
        for fold in numbers(folds, "folds")
    ]
    failed = run_with_progress(runs, out, data_dir=data_folder(data_dir), num_processes=processes)
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(runs)} runs failed twice, the first is {failed[0].key}. "
            f"`{out}/failures.jsonl` holds what they said."
        )


@bench_app.command(name="table")
def bench_table(
    runs: Annotated[Path, Parameter(help="A folder that `bsgp bench run` wrote.")],
    *,
    markdown: Annotated[Path | None, Parameter(help="Write the table as Markdown to this file, too.")] = None,
    paper_dir: Annotated[Path | None, Parameter(help="Folder with the authors' results.csv.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print our mean (sd) over folds beside the authors' for the same folds, with a paired test.

    Example: bsgp bench table runs --markdown table.md
    """
    from bsgp.experiments.paper import authors_mnll, paper_file
    from bsgp.experiments.runner import read_records
    from bsgp.experiments.table import compare, summary, to_markdown, to_terminal

    records = read_records(runs)
    if not records:
        raise ValueError(f"`{runs}` must hold finished runs, got none. Start some with `bsgp bench run`.")
    path = paper_file(paper_dir, data_dir)
    rows = compare(records, {} if path is None else authors_mnll(path))
    console = output()
    console.print(to_terminal(rows))
    for line in summary(rows):
        console.print(line)
    if path is None:
        console.print("The authors' results.csv was not found: name its folder with --paper-dir.")
    if markdown is not None:
        markdown.write_text(to_markdown(rows))
