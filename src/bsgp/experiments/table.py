"""Our figures beside the authors', fold by fold: plain rows first, then a terminal table or Markdown."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bsgp.data.named import UCI
from bsgp.experiments.experiment import kind_of

Key = tuple[str, str, int, int]
"""Method, data set, depth, fold."""


@dataclass(frozen=True)
class Row:
    """One cell of the paper's table: means over the folds that were run, the authors' over the same folds."""

    dataset: str
    depth: int
    method: str
    recipe: str
    num_folds: int
    evaluations: int
    """The most of any run."""
    cpu_seconds: float
    mean: float
    sd: float
    nrmse: float
    coverage90: float
    authors_mean: float | None
    authors_sd: float | None
    """Over every fold of theirs, run by us or not: the yardstick must not shrink with the folds we have."""
    difference: float | None
    p_value: float | None
    """Paired Wilcoxon signed-rank test over folds; None with fewer than five."""

    @property
    def verdict(self) -> str:
        """`better` is a mean at or below theirs, `close` one within one of their standard deviations."""
        if self.difference is None or self.authors_sd is None:
            return ""
        return "better" if self.difference <= 0 else "close" if self.difference <= self.authors_sd else "worse"


def compare(records: Iterable[dict], authors: dict[Key, float]) -> list[Row]:
    """A row for every method, recipe, data set and depth among the records."""
    groups: dict[tuple[int, str, str, str], list[dict]] = defaultdict(list)
    for record in (record for record in records if kind_of(record) == "uci"):
        groups[record["depth"], record["method"], _variant(record), record["dataset"]].append(record)

    return sorted((_row(key, group, authors) for key, group in groups.items()), key=_order)


def _order(row: Row) -> tuple:
    place = UCI.index(row.dataset) if row.dataset in UCI else len(UCI)
    return row.depth, row.method, row.recipe, place, row.dataset


def _variant(record: dict) -> str:
    """The recipe, and what of it was overridden: the middle of a run's key says it."""
    extras = record["key"].split("/")[6:]
    return " ".join([record["recipe"], *extras])


def _row(key: tuple[int, str, str, str], group: list[dict], authors: dict[Key, float]) -> Row:
    depth, method, variant, dataset = key
    ours = np.asarray([record["test_mnll"] for record in group])
    keys = [(method, dataset, depth, record["fold"]) for record in group]
    theirs = np.asarray([authors[key] for key in keys]) if all(key in authors for key in keys) else None
    all_theirs = np.asarray([mnll for key, mnll in authors.items() if key[:3] == (method, dataset, depth)])

    def average(field: str) -> float:
        return float(np.mean([record[field] for record in group]))

    return Row(
        dataset=dataset,
        depth=depth,
        method=method,
        recipe=variant,
        num_folds=len(group),
        evaluations=max(record["evaluations"] for record in group),
        cpu_seconds=average("cpu_seconds"),
        mean=float(ours.mean()),
        sd=float(ours.std()),
        nrmse=average("test_nrmse"),
        coverage90=average("coverage90"),
        authors_mean=None if theirs is None else float(theirs.mean()),
        authors_sd=None if theirs is None else float(all_theirs.std()),
        difference=None if theirs is None else float(ours.mean() - theirs.mean()),
        p_value=None if theirs is None else _paired_p_value(ours - theirs),
    )


def within(rows: list[Row], budget: int) -> list[Row]:
    """A row for each cell: the default recipe's with the most folds, and of these the longest, within a budget.

    It is chosen by what was run and never by how it came out.
    """
    cells: dict[tuple[int, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if re.fullmatch(r"default( x[\d.]+)?", row.recipe) and row.evaluations <= budget:
            cells[row.depth, row.method, row.dataset].append(row)
    chosen = [max(group, key=lambda row: (row.num_folds, row.evaluations)) for group in cells.values()]
    return sorted((replace(row, recipe=f"default, up to {budget:,}") for row in chosen), key=_order)


def _paired_p_value(differences: np.ndarray) -> float | None:
    from scipy.stats import wilcoxon

    if differences.size < 5 or not differences.any():
        return None
    result: Any = wilcoxon(differences)  # SciPy's annotations do not know its attributes
    return float(result.pvalue)


HEADER = (
    "method", "depth", "recipe", "data set", "folds", "evaluations", "CPU s", "MNLL (sd)", "authors (sd)", "difference",
    "p", "", "nRMSE", "90% coverage",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """What is printed of a row, in the order of `HEADER`."""

    def optional(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    theirs = "" if row.authors_mean is None else f"{row.authors_mean:.3f} ({row.authors_sd:.3f})"
    return (
        row.method, str(row.depth), row.recipe, row.dataset, str(row.num_folds), f"{row.evaluations:,}",
        f"{row.cpu_seconds:.0f}", f"{row.mean:.3f} ({row.sd:.3f})", theirs, optional(row.difference, "+.3f"),
        optional(row.p_value, ".3f"), row.verdict, f"{row.nrmse:.3f}", f"{row.coverage90:.3f}",
    )  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    """One sentence per method, recipe and depth: on how many sets the mean is at most the authors'."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.depth, row.method, row.recipe].append(row)
    lines = []
    for (depth, method, recipe), group in groups.items():
        compared = [row for row in group if row.difference is not None]
        better = sum(row.verdict == "better" for row in compared)
        worse = [row.dataset for row in compared if row.verdict == "worse"]
        coverage = np.mean([row.coverage90 for row in group])
        lines.append(
            f"{method} ({recipe}), depth {depth}: mean MNLL at most the authors' on {better} of {len(compared)} sets; "
            f"worse by more than one of their standard deviations on {', '.join(worse) or 'none'}; "
            f"90% intervals cover {coverage:.1%} on average."
        )
    return lines


def to_markdown(rows: list[Row]) -> str:
    """The table and its summary, one table per method and recipe."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.method, row.recipe].append(row)
    parts = []
    for (method, recipe), group in groups.items():
        head = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
        body = ["| " + " | ".join(cells(row)) + " |" for row in group]
        notes = [f"- {line}" for line in summary(group)]
        parts.append("\n".join([f"### {method}, {recipe} recipe", "", *head, *body, "", *notes]))
    return "\n\n".join(parts) + "\n"


def to_terminal(rows: list[Row]):
    """A table for rich to print."""
    from rich.table import Table

    table = Table(
        *HEADER,
        caption="MNLL: lower is better; theirs over the same folds (their sd over all). p: paired Wilcoxon over folds.",
    )
    colours = {"better": "green", "worse": "red"}
    for row in rows:
        table.add_row(*cells(row), style=colours.get(row.verdict))
    return table
