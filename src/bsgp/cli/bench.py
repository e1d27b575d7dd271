"""`bsgp bench`: the paper's experiments, beside the authors' own figures."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bsgp.checks import check_count, check_option
from bsgp.cli.common import DataDir, names, numbers, output, say_as_told

if TYPE_CHECKING:
    from bsgp.experiments.experiment import Choice

bench_app = App(name="bench", help="The paper's experiments, beside the authors' own figures.")


@dataclass(frozen=True)
class FreeChoice:
    """Settings of `bsgp bench run uci` alone."""

    recipe: Annotated[str, Parameter(help="With `uci`: `default`, or `paper` for what the authors did.")] = "default"
    num_inducing: Annotated[int | None, Parameter(help="With `uci`: in the place of the recipe's.")] = None
    scale: Annotated[float, Parameter(help="With `uci`: multiplies the recipe's number of updates.")] = 1.0
    full_data_x: Annotated[bool, Parameter(help="With `uci`: standardise inputs by all rows, as the authors did.")] = (
        False
    )
    objective: Annotated[str, Parameter(help="With `uci`: `fitc` or `vfe`, of bsgp and its ablations.")] = "fitc"
    inducing_prior: Annotated[str, Parameter(help="With `uci`: normal, determinantal, strauss, ...; likewise.")] = (
        "normal"
    )
    num_chains: Annotated[int, Parameter(name="--chains", help="With `uci`: of methods that have chains.")] = 1


@bench_app.command(name="run")
def bench_run(
    experiment: Annotated[str, Parameter(help="A name that `bsgp bench list` prints, or `uci` to choose freely.")],
    *,
    out: Annotated[Path, Parameter(help="Folder for the results; finished runs in it are not run again.")],
    datasets: Annotated[str | None, Parameter(help="Names with commas; all of the experiment's by default.")] = None,
    folds: Annotated[str | None, Parameter(help="Such as 0-7 or 0,3; all of the experiment's by default.")] = None,
    methods: Annotated[str | None, Parameter(help="Names with commas; all of the experiment's by default.")] = None,
    depths: Annotated[str | None, Parameter(help="Such as 1-3; all of the experiment's by default.")] = None,
    seed: int = 0,
    quick: Annotated[bool, Parameter(negative="", help="Minutes, to see that it works; figures mean nothing.")] = False,
    processes: Annotated[int, Parameter(help="Runs at a time on this machine, each on one core.")] = 2,
    scheduler: Annotated[
        str | None, Parameter(help="A running Dask scheduler, such as tcp://HOST:8786, whose workers do the runs.")
    ] = None,
    data_dir: DataDir = None,
    free: Annotated[FreeChoice | None, Parameter(name="*")] = None,
) -> None:
    """Do the runs of an experiment that are not in OUT yet, one JSON line each in OUT/runs.jsonl.

    Interrupt it at will: the same command goes on where it stopped. Experiments in one folder share runs.

    Example: bsgp bench run uci --datasets yacht,boston --folds 0-3 --depths 1-2 --out runs
    """
    from bsgp.experiments.campaign import run_with_progress
    from bsgp.experiments.engines import dask_client
    from bsgp.experiments.experiment import EXPERIMENTS, Choice, load_experiment

    say_as_told(quiet=False, verbose=False)
    check_option("experiment", experiment, ["uci", *EXPERIMENTS])
    choice = Choice(
        datasets=_names("--datasets", datasets),
        folds=None if folds is None else tuple(numbers(folds, "folds")),
        methods=_names("--methods", methods),
        depths=None if depths is None else tuple(numbers(depths, "depths")),
        seed=seed,
        quick=quick,
    )
    if experiment == "uci":
        runs = _free_runs(choice, free or FreeChoice())
    elif free is not None and free != FreeChoice():
        raise ValueError(
            "`--recipe`, `--num-inducing`, `--scale`, `--full-data-x`, `--objective`, `--inducing-prior` and "
            f"`--chains` go with `uci`, got one of them with `{experiment}`. Leave it out."
        )
    else:
        runs = load_experiment(experiment).plan(choice)
    if not runs:
        raise ValueError(f"`{experiment}` has no such runs, got {choice}. Leave out an option.")
    folder = _data_folder(data_dir, scheduler)
    with nullcontext() if scheduler is None else dask_client(scheduler) as client:
        failed = run_with_progress(runs, out, data_dir=folder, n_jobs=processes, client=client)
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(runs)} runs failed twice, the first is {failed[0].key}. "
            f"`{out}/failures.jsonl` holds what they said."
        )


def _data_folder(data_dir: Path | None, scheduler: str | None) -> Path | None:
    """The folder must be here if the runs are; the hosts of Dask's workers may have one where this one has none."""
    from bsgp.data.named import data_folder

    try:
        return data_folder(data_dir)
    except ValueError:
        if scheduler is None:
            raise
        return data_dir


def _names(option: str, text: str | None) -> tuple[str, ...] | None:
    """Names of data sets or methods; what an experiment does not have gives it no runs."""
    from bsgp.data.named import schemas
    from bsgp.experiments.peers import PEERS
    from bsgp.methods import METHODS

    if text is None or text == "all":
        return None
    known = list(schemas()) if option == "--datasets" else [*METHODS, *PEERS]
    return tuple(check_option(option, name, known) for name in names(text))


def _free_runs(choice: "Choice", free: FreeChoice) -> list:
    from bsgp.data.named import UCI
    from bsgp.experiments.uci import UCIRun
    from bsgp.inducing import INDUCING_PRIORS
    from bsgp.methods import METHODS
    from bsgp.recipes import RECIPES
    from bsgp.target import OBJECTIVES

    check_option("--recipe", free.recipe, list(RECIPES))
    check_option("--objective", free.objective, OBJECTIVES)
    check_option("--inducing-prior", free.inducing_prior, list(INDUCING_PRIORS))
    check_count("--chains", free.num_chains)
    for name in choice.datasets or ():
        check_option("--datasets", name, UCI)
    for method in choice.methods or ():
        check_option("--methods", method, list(METHODS))
    return [
        UCIRun(name, fold, depth, method, seed=choice.seed, **asdict(free))
        for depth in choice.depths or (1,)
        for method in choice.methods or ("bsgp",)
        for name in choice.datasets or UCI
        for fold in (choice.folds if choice.folds is not None else range(8))
    ]


@bench_app.command(name="list")
def bench_list() -> None:
    """Print the experiments of the paper, and how many runs each has."""
    from rich.table import Table

    from bsgp.experiments.experiment import EXPERIMENTS, Choice, load_experiment

    table = Table("experiment", "runs", "about")
    for name in EXPERIMENTS:
        experiment = load_experiment(name)
        table.add_row(name, f"{len(experiment.plan(Choice())):,}", experiment.ABOUT)
    output().print(table)


Shown = Annotated[str | None, Parameter(name="--experiments", help="Names with commas; all with runs by default.")]
Runs = Annotated[Path, Parameter(help="A folder that `bsgp bench run` wrote.")]
PaperDir = Annotated[Path | None, Parameter(help="Folder with the authors' results.csv.")]


@bench_app.command(name="table")
def bench_table(
    runs: Runs,
    *,
    methods: Annotated[str | None, Parameter(help="Names with commas; all by default.")] = None,
    budget: Annotated[
        int | None, Parameter(help="A row per cell: the default recipe, as long as it fits into so many evaluations.")
    ] = None,
    markdown: Annotated[Path | None, Parameter(help="Write the table as Markdown to this file, too.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Print our mean (sd) over folds beside the authors' for the same folds, with a paired test.

    Example: bsgp bench table runs --markdown table.md
    """
    from bsgp.experiments.paper import authors_mnll, paper_file
    from bsgp.experiments.runner import read_records
    from bsgp.experiments.table import compare, summary, to_markdown, to_terminal, within

    chosen = _names("--methods", methods)
    records = [one for one in read_records(runs) if chosen is None or one.get("method") in chosen]
    if not records:
        raise ValueError(f"`{runs}` must hold finished runs, got none. Start some with `bsgp bench run`.")
    path = paper_file(paper_dir, data_dir)
    rows = compare(records, {} if path is None else authors_mnll(path))
    if budget is not None:
        rows = within(rows, check_count("--budget", budget))
        if not rows:
            raise ValueError(f"`--budget` must leave some runs, got {budget:,}. Raise it.")
    console = output()
    console.print(to_terminal(rows))
    for line in summary(rows):
        console.print(line)
    if path is None:
        console.print("The authors' results.csv was not found: name its folder with --paper-dir.")
    if markdown is not None:
        markdown.write_text(to_markdown(rows))


@bench_app.command(name="figures")
def bench_figures(
    runs: Runs,
    *,
    experiments: Shown = None,
    out: Annotated[Path | None, Parameter(help="Folder for the pictures; RUNS/figures by default.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Draw every experiment of which there are runs: SVG, PNG and a Markdown page with captions and tables.

    Example: bsgp bench figures runs
    """
    from bsgp.experiments.gallery import write_figures

    index = write_figures(_gathered(runs, experiments, paper_dir, data_dir), out or runs / "figures")
    output().print(f"Figures and tables are in {index}.", soft_wrap=True)


@bench_app.command(name="report")
def bench_report(
    runs: Runs,
    *,
    experiments: Shown = None,
    out: Annotated[Path | None, Parameter(help="The page; RUNS/report.html by default.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Make one HTML page of all tables and figures, beside the authors'.

    Example: bsgp bench report runs
    """
    from bsgp.experiments.gallery import write_page

    page = write_page(_gathered(runs, experiments, paper_dir, data_dir), out or runs / "report.html")
    output().print(f"The page is {page}.", soft_wrap=True)


def _gathered(runs: Path, experiments: str | None, paper_dir: Path | None, data_dir: Path | None) -> list:
    from bsgp.experiments.experiment import EXPERIMENTS
    from bsgp.experiments.gallery import gather
    from bsgp.experiments.paper import Paper, paper_file
    from bsgp.experiments.runner import read_records

    chosen = names(experiments) or EXPERIMENTS
    shown = gather(read_records(runs), Paper.read(paper_file(paper_dir, data_dir)), str(runs), chosen)
    if not shown:
        raise ValueError(f"`{runs}` must hold runs of an experiment, got none. Start some with `bsgp bench run`.")
    return shown
