"""`bsgp demo`: examples that need no preparation."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bsgp.cli.common import DataDir, Quiet, output
from bsgp.cli.fit_options import as_flag
from bsgp.runtime.checks import check_option

DEMOS = ("tables", "banana")


def demo(
    which: Annotated[
        str, Parameter(help="`tables`: a regression and a classification. `banana`: the paper's Figure 2.")
    ] = "tables",
    *,
    out: Annotated[Path, Parameter(help="Folder for models, reports and figures.")] = Path("bsgp-demo"),
    effort: Annotated[float, Parameter(help="Factor on the number of updates.")] = 1.0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Fit two real tables beside two baselines and write a report of each, or draw the paper's Figure 2.

    Example: bsgp demo

    Example: bsgp demo banana --data-dir data
    """
    from bsgp.runtime.compilation import enable_compilation_cache

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
            f"\n{example.title} ({done.num_train} training rows, {done.num_test} test rows, "
            f"{done.num_inputs} inputs, {done.seconds:.0f} s)"
        )
        names = list(done.scores["bsgp"])
        table = Table("model", *names)
        for model, scores in done.scores.items():
            table.add_row(model, *(f"{scores[name]:.3f}" for name in names), style="bold" if model == "bsgp" else None)
        console.print(table)
        for warning in done.diagnostics.warnings:
            console.print(warning, markup=False)
        console.print(done.diagnostics.verdict_for(as_flag), markup=False)
        console.print(f"Report: {done.report}")
    console.print("\nmnll, nrmse, rmse, crps, error: lower is better. auc: higher. coverage90: 0.90 is right.")


def _banana(out: Path, effort: float, data_dir: Path | None, quiet: bool) -> None:
    from bsgp.experiments.figures.gallery import save_drawing
    from bsgp.experiments.kinds.banana import load_or_generate_rows
    from bsgp.experiments.paper.banana import draw_priors, fit_priors

    console = output(quiet)
    rows, origin = load_or_generate_rows(data_dir)
    console.print(f"{len(rows.y):,} training points: {origin}", markup=False, soft_wrap=True)
    drawing = draw_priors(fit_priors(rows, effort=effort, verbose=not quiet))
    path = save_drawing(drawing, out / "banana.png")
    save_drawing(drawing, out / "banana.pdf")
    console.print(f"Figure: {path}", markup=False, soft_wrap=True)
