"""`run_all` with a progress bar."""

import os
from collections.abc import Sequence
from typing import Any

from bsgp.experiments.engine.runner import collect_finished, run_all
from bsgp.experiments.experiment import RunSettings


def run_with_progress(
    runs: Sequence[RunSettings],
    folder: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None,
    n_jobs: int,
    client: Any = None,
) -> list[RunSettings]:
    """Call `run_all` and print one line per finished run, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    finished = collect_finished(folder)
    done = sum(run.key in finished for run in runs)
    if done:
        console.print(f"{done} of {len(runs)} runs are already finished.")
    columns = TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=len(runs), completed=done)

        def on_done(run: RunSettings, record: dict | None) -> None:
            bar.advance(task)
            outcome = "failed" if record is None else _scores_text(record)
            console.print(f"{run.key}: {outcome}", highlight=False)

        return run_all(runs, folder, data_dir=data_dir, n_jobs=n_jobs, client=client, on_done=on_done)


def _scores_text(record: dict) -> str:
    """The scores of a record that fit in a line."""
    forms = {"test_mnll": "MNLL {:.3f}", "coverage90": "coverage {:.2f}", "test_auc": "AUC {:.3f}",
             "cpu_seconds": "{:.0f} CPU s"}  # fmt: skip
    return ", ".join(form.format(record[field]) for field, form in forms.items() if record.get(field) is not None)
