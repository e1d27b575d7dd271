"""A progress bar around `run_all`."""

import os
from collections.abc import Sequence
from typing import Any

from bsgp.experiments.experiment import Run
from bsgp.experiments.runner import run_all, take_in


def run_with_progress(
    runs: Sequence[Run],
    folder: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None,
    n_jobs: int,
    client: Any = None,
) -> list[Run]:
    """As `run_all`, with a bar on a terminal and one line per finished run anywhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    finished = take_in(folder)
    done = sum(run.key in finished for run in runs)
    if done:
        console.print(f"{done} of {len(runs)} runs are there already.")
    columns = TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=len(runs), completed=done)

        def on_done(run: Run, record: dict | None) -> None:
            bar.advance(task)
            outcome = "failed" if record is None else _in_brief(record)
            console.print(f"{run.key}: {outcome}", highlight=False)

        return run_all(runs, folder, data_dir=data_dir, n_jobs=n_jobs, client=client, on_done=on_done)


def _in_brief(record: dict) -> str:
    forms = {"test_mnll": "MNLL {:.3f}", "coverage90": "coverage {:.2f}", "test_auc": "AUC {:.3f}",
             "cpu_seconds": "{:.0f} CPU s"}  # fmt: skip
    return ", ".join(form.format(record[field]) for field, form in forms.items() if record.get(field) is not None)
