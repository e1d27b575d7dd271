"""What figures against time share: the records of a plan's runs, and an axis of seconds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.experiment import Choice, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_WIDTH, PANEL_HEIGHT = 4.4, 3.4  # inches
Found = dict[Any, list[dict]]
"""Records by run, whose fold and seed are set to zero: one record for each fold and seed."""


def find_runs(
    plan: Callable[[Choice], Sequence[Run]], records: Sequence[dict], datasets: Iterable[str]
) -> tuple[dict[str, Found], bool]:
    """Records of a plan's own runs by data set, and whether they are of its quick form.

    Quick runs are taken only where there are no others at all.
    """
    for quick in (False, True):
        each = {name: _on_the_same_folds(plan, records, Choice(datasets=(name,), quick=quick)) for name in datasets}
        if any(each.values()):
            return {name: found for name, found in each.items() if found}, quick
    return {}, False


def _on_the_same_folds(plan: Callable[[Choice], Sequence[Run]], records: Sequence[dict], choice: Choice) -> Found:
    """Only of folds with the most runs, and these the same: other experiments share some of the runs on other folds."""
    by_key = {record.get("key"): record for record in records}
    places = {(record.get("fold"), record.get("seed")) for record in records}
    tried = [place for place in places if None not in place]  # records of other kinds may have neither
    done: list[dict[Any, dict]] = []
    for fold, seed in sorted(tried):
        runs: Sequence[Any] = plan(replace(choice, folds=(fold,), seed=seed))
        done.append({replace(run, fold=0, seed=0): by_key[run.key] for run in runs if run.key in by_key})
    most = max(done, key=len, default={})
    return {run: [each[run] for each in done if each.keys() == most.keys()] for run in most}


def in_folds(found: dict[str, Found]) -> str:
    """Which folds are drawn, for a caption."""
    folds = sorted({record["fold"] for runs in found.values() for group in runs.values() for record in group})
    return f"{'fold' if len(folds) == 1 else 'the mean of folds'} {', '.join(map(str, folds))}"


def mean_of(records: Sequence[dict], field: str) -> float:
    return float(np.mean([record[field] for record in records]))


def second_axis(axes: "Axes") -> None:
    """Seconds along x on a log scale, in plain numbers, as the style has no mathematics; after all is drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 3.0) if high > 30 * low else (1.0, 2.0, 3.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
