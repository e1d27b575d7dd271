"""`bsgp bench`: the paper's experiments, beside the authors' own results."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bsgp.cli.common import DataDir, configure_logging, names, numbers, output
from bsgp.runtime.checks import check_count, check_option

if TYPE_CHECKING:
    from bsgp.experiments.experiment import Choice

bench_app = App(name="bench", help="Run the paper's experiments and show them beside the authors' own results.")


@dataclass(frozen=True)
class FreeChoice:
    """Options that only `bsgp bench run uci` takes."""

    recipe: Annotated[str, Parameter(help="Only with `uci`: `default`, or `paper` for the authors' settings.")] = (
        "default"
    )
    num_inducing: Annotated[
        int | None, Parameter(help="Only with `uci`: number of inducing points. Default: the method's own.")
    ] = None
    scale: Annotated[float, Parameter(help="Only with `uci`: factor on the number of updates.")] = 1.0
    full_data_x: Annotated[
        bool, Parameter(help="Only with `uci`: standardise inputs by all rows, as the authors did.")
    ] = False
    objective: Annotated[
        str, Parameter(help="Only with `uci`: `fitc`, `vfe` or `tighter-vfe`, for bsgp and its ablations.")
    ] = "fitc"
    inducing_prior: Annotated[
        str, Parameter(help="Only with `uci`: normal, determinantal, strauss, ..., for bsgp and its ablations.")
    ] = "normal"
    num_chains: Annotated[int, Parameter(name="--chains", help="Only with `uci`: number of chains.")] = 1


@bench_app.command(name="run")
def bench_run(
    experiment: Annotated[str, Parameter(help="A name from `bsgp bench list`, or `uci` for runs of your choice.")],
    *,
    out: Annotated[Path, Parameter(help="Folder for the results. Finished runs in it are not repeated.")],
    datasets: Annotated[
        str | None, Parameter(help="Names separated by commas. Default: all of the experiment.")
    ] = None,
    folds: Annotated[str | None, Parameter(help="Such as 0-7 or 0,3. Default: all of the experiment.")] = None,
    methods: Annotated[str | None, Parameter(help="Names separated by commas. Default: all of the experiment.")] = None,
    depths: Annotated[str | None, Parameter(help="Such as 1-3. Default: all of the experiment.")] = None,
    seed: int = 0,
    quick: Annotated[
        bool,
        Parameter(negative="", help="A form of minutes that shows that everything works. Its scores mean nothing."),
    ] = False,
    processes: Annotated[int, Parameter(help="Number of runs at a time on this machine, each on one core.")] = 2,
    scheduler: Annotated[
        str | None,
        Parameter(help="Address of a running Dask scheduler whose workers do the runs, such as tcp://HOST:8786."),
    ] = None,
    data_dir: DataDir = None,
    free: Annotated[FreeChoice | None, Parameter(name="*")] = None,
) -> None:
    """Do the runs of an experiment that OUT does not have yet. Each becomes a JSON line of OUT/runs.jsonl.

    You can interrupt it at any time: the same command continues. Experiments in one folder share runs.

    Example: bsgp bench run uci --datasets yacht,boston --folds 0-3 --depths 1-2 --out runs
    """
    from bsgp.experiments.engine.campaign import run_with_progress
    from bsgp.experiments.engine.engines import dask_client
    from bsgp.experiments.experiment import EXPERIMENTS, Choice, load_experiment

    configure_logging(quiet=False, verbose=False)
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
            f"`--chains` must come with `uci`, got one of them with `{experiment}`. Leave it out."
        )
    else:
        runs = load_experiment(experiment).plan(choice)
    if not runs:
        raise ValueError(
            f"`{experiment}` must have the chosen runs, got none of them for {choice}. Leave out an option."
        )
    folder = _data_folder(data_dir, scheduler)
    with nullcontext() if scheduler is None else dask_client(scheduler) as client:
        failed = run_with_progress(runs, out, data_dir=folder, n_jobs=processes, client=client)
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(runs)} runs failed twice, the first is {failed[0].key}. "
            f"`{out}/failures.jsonl` holds their errors."
        )


def _data_folder(data_dir: Path | None, scheduler: str | None) -> Path | None:
    """Data folder of this machine. With a scheduler it may be missing: the hosts of the workers have their own."""
    from bsgp.experiments.datasets.named import data_folder

    try:
        return data_folder(data_dir)
    except ValueError:
        if scheduler is None:
            raise
        return data_dir


def _names(option: str, text: str | None) -> tuple[str, ...] | None:
    """Checked names of data sets or methods. Not every experiment has all of them."""
    from bsgp.experiments.datasets.named import schemas
    from bsgp.experiments.kinds.peers import PEERS
    from bsgp.methods.registry import METHODS

    if text is None or text == "all":
        return None
    known = list(schemas()) if option == "--datasets" else [*METHODS, *PEERS]
    return tuple(check_option(option, name, known) for name in names(text))


def _free_runs(choice: "Choice", free: FreeChoice) -> list:
    """Runs of `bsgp bench run uci`."""
    from bsgp.experiments.datasets.named import UCI
    from bsgp.experiments.kinds.uci import UCIRun
    from bsgp.inference.objectives import OBJECTIVES
    from bsgp.methods.bsgp import RECIPES
    from bsgp.methods.registry import METHODS
    from bsgp.models.inducing_priors import INDUCING_PRIORS

    check_option("--recipe", free.recipe, list(RECIPES))
    check_option("--objective", free.objective, list(OBJECTIVES))
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
    """Print the experiments of the paper and the number of their runs."""
    from rich.table import Table

    from bsgp.experiments.experiment import EXPERIMENTS, Choice, load_experiment

    table = Table("experiment", "runs", "about")
    for name in EXPERIMENTS:
        experiment = load_experiment(name)
        table.add_row(name, f"{len(experiment.plan(Choice())):,}", experiment.about)
    output().print(table)


ExperimentNames = Annotated[
    str | None, Parameter(name="--experiments", help="Names separated by commas. Default: all that have runs.")
]
Runs = Annotated[Path, Parameter(help="Folder that `bsgp bench run` wrote.")]
PaperDir = Annotated[
    Path | None,
    Parameter(help="Folder of the authors' results.csv. Default: BSGP_PAPER, or `paper` beside the data folder."),
]


@bench_app.command(name="table")
def bench_table(
    runs: Runs,
    *,
    methods: Annotated[str | None, Parameter(help="Names separated by commas. Default: all.")] = None,
    budget: Annotated[
        int | None, Parameter(help="Show one row per cell: the longest default run within this many evaluations.")
    ] = None,
    markdown: Annotated[Path | None, Parameter(help="Also write the table as Markdown to this file.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Print our mean (sd) over folds beside the authors' on the same folds, with a paired test.

    Example: bsgp bench table runs --markdown table.md
    """
    from bsgp.experiments.engine.runner import read_records
    from bsgp.experiments.figures.authors import authors_mnll, paper_file
    from bsgp.experiments.figures.table import compare, summary, to_markdown, to_terminal, within_budget

    chosen = _names("--methods", methods)
    records = [one for one in read_records(runs) if chosen is None or one.get("method") in chosen]
    if not records:
        raise ValueError(f"`{runs}` must hold finished runs, got none. Start some with `bsgp bench run`.")
    path = paper_file(paper_dir, data_dir)
    rows = compare(records, {} if path is None else authors_mnll(path))
    if budget is not None:
        rows = within_budget(rows, check_count("--budget", budget))
        if not rows:
            raise ValueError(f"`--budget` must leave some runs, got {budget:,}. Raise it.")
    console = output()
    console.print(to_terminal(rows))
    for line in summary(rows):
        console.print(line)
    if path is None:
        console.print("The authors' results.csv was not found. Name its folder with --paper-dir.")
    if markdown is not None:
        markdown.write_text(to_markdown(rows))


@bench_app.command(name="figures")
def bench_figures(
    runs: Runs,
    *,
    experiments: ExperimentNames = None,
    out: Annotated[Path | None, Parameter(help="Folder for the pictures. Default: RUNS/figures.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Draw every experiment that has runs: SVG, PNG and a Markdown page with captions and tables.

    Example: bsgp bench figures runs
    """
    from bsgp.experiments.figures.gallery import write_figures

    index = write_figures(_entries(runs, experiments, paper_dir, data_dir), out or runs / "figures")
    output().print(f"Figures and tables are in {index}.", soft_wrap=True)


@bench_app.command(name="report")
def bench_report(
    runs: Runs,
    *,
    experiments: ExperimentNames = None,
    out: Annotated[Path | None, Parameter(help="File of the page. Default: RUNS/report.html.")] = None,
    paper_dir: PaperDir = None,
    data_dir: DataDir = None,
) -> None:
    """Write one HTML page of all tables and figures, beside the authors' results.

    Example: bsgp bench report runs
    """
    from bsgp.experiments.figures.gallery import write_page

    page = write_page(_entries(runs, experiments, paper_dir, data_dir), out or runs / "report.html")
    output().print(f"The page is {page}.", soft_wrap=True)


def _entries(runs: Path, experiments: str | None, paper_dir: Path | None, data_dir: Path | None) -> list:
    from bsgp.experiments.engine.runner import read_records
    from bsgp.experiments.experiment import EXPERIMENTS
    from bsgp.experiments.figures.authors import Paper, paper_file
    from bsgp.experiments.figures.gallery import gather

    chosen = names(experiments) or EXPERIMENTS
    entries = gather(read_records(runs), Paper.read(paper_file(paper_dir, data_dir)), str(runs), chosen)
    if not entries:
        raise ValueError(f"`{runs}` must hold runs of an experiment, got none. Start some with `bsgp bench run`.")
    return entries
