"""`bsgp demo`: something to see, with nothing to prepare."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.checks import check_option
from bsgp.cli.common import DataDir, Quiet, output

DEMOS = ("tables", "banana")


def demo(
    which: Annotated[
        str, Parameter(help="`tables`: a regression and a classification; `banana`: Figure 2.")
    ] = "tables",
    *,
    out: Annotated[Path, Parameter(help="Folder for models, reports and figures.")] = Path("bsgp-demo"),
    effort: Annotated[float, Parameter(help="Multiplies the number of updates.")] = 1.0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Fit two real tables beside two baselines and write a report of each, or draw the paper's Figure 2.

    Example: bsgp demo

    Example: bsgp demo banana --data-dir ../shared/data
    """
    from bsgp.startup import enable_compilation_cache

    check_option("demo", which, DEMOS)
    enable_compilation_cache()
    if which == "tables":
        _tables(out, effort, quiet)
    else:
        _banana(out, effort, data_dir, quiet)


def _tables(out: Path, effort: float, quiet: bool) -> None:
    from rich.table import Table

    from bsgp.demos.tables import EXAMPLES, run_example

    console = output(quiet)
    for example in EXAMPLES:
        done = run_example(example, out, effort=effort, verbose=not quiet)
        console.print(
            f"\n{example.title} ({done.num_train} rows to learn from, {done.num_test} to predict, "
            f"{done.num_inputs} inputs, {done.seconds:.0f} s)"
        )
        names = list(done.scores["bsgp"])
        table = Table("model", *names)
        for model, scores in done.scores.items():
            table.add_row(model, *(f"{scores[name]:.3f}" for name in names), style="bold" if model == "bsgp" else None)
        console.print(table)
        console.print(done.verdict)
        console.print(f"Report: {done.report}")
    console.print("\nmnll, nrmse, rmse, crps, error: lower is better. auc: higher. coverage90: 0.90 is right.")


def _banana(out: Path, effort: float, data_dir: Path | None, quiet: bool) -> None:
    from bsgp.demos.banana import draw_figure, fit_priors, load_banana

    console = output(quiet)
    data = load_banana(data_dir)
    console.print(f"{data.source}: {len(data.y):,} points.", markup=False)
    fits = fit_priors(data, effort=effort, verbose=not quiet)
    console.print(f"Figure: {draw_figure(data, fits, out / 'banana.png')}")
