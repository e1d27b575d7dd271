"""Parts that figures against time share: records of a plan's runs, and a logarithmic axis of seconds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.experiment import Choice, RunSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_PANEL_WIDTH, CURVE_PANEL_HEIGHT = 4.4, 3.4  # inches
QUICK_NOTE = "This is the quick form: it shows that everything works, and its scores mean nothing. "
"""Start of the caption of a figure of quick runs."""
Planner = Callable[[Choice], Sequence[RunSettings]]
RecordsByRun = dict[Any, list[dict]]
"""Records of each run, one for every fold and seed. The key is the run with fold and seed set to zero."""


def find_runs(plan: Planner, records: Sequence[dict], datasets: Iterable[str]) -> tuple[dict[str, RecordsByRun], bool]:
    """Records of a plan's runs by data set, and whether they are quick runs.

    Quick runs are used only if there are no others.
    """
    for quick in (False, True):
        each = {name: _on_the_same_folds(plan, records, Choice(datasets=(name,), quick=quick)) for name in datasets}
        if any(each.values()):
            return {name: found for name, found in each.items() if found}, quick
    return {}, False


def _on_the_same_folds(plan: Planner, records: Sequence[dict], choice: Choice) -> RecordsByRun:
    """Records on those folds and seeds that have the most runs of the plan, and the same ones.

    Other experiments share some of the runs, on further folds.
    """
    by_key = {record.get("key"): record for record in records}
    pairs = {(record.get("fold"), record.get("seed")) for record in records}
    finished: list[dict[Any, dict]] = []
    for fold, seed in sorted(pair for pair in pairs if None not in pair):  # some kinds of runs have no folds
        runs: Sequence[Any] = plan(replace(choice, folds=(fold,), seed=seed))
        finished.append({replace(run, fold=0, seed=0): by_key[run.key] for run in runs if run.key in by_key})
    most = max(finished, key=len, default={})
    return {run: [each[run] for each in finished if each.keys() == most.keys()] for run in most}


def folds_text(found: dict[str, RecordsByRun]) -> str:
    """Folds that are drawn, for a caption."""
    folds = sorted({record["fold"] for runs in found.values() for group in runs.values() for record in group})
    return f"{'fold' if len(folds) == 1 else 'the mean of folds'} {', '.join(map(str, folds))}"


def mean_of(records: Sequence[dict], field: str) -> float:
    """Mean of a field over records."""
    return float(np.mean([record[field] for record in records]))


def set_seconds_axis(axes: "Axes") -> None:
    """Make x a logarithmic axis of seconds with plain numbers, since the style has no mathematics. Call it last."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 3.0) if high > 30 * low else (1.0, 2.0, 3.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
