"""Our results beside the authors', fold by fold: rows of numbers first, then a terminal table or Markdown."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.experiment import kind_of
from bsgp.experiments.figures.paired_test import holm, paired_p_value
from bsgp.experiments.kinds.uci import UCIRun, settings_of

AuthorsKey = tuple[str, str, int, int]
"""Method, data set, depth, fold."""
SIGNIFICANCE = 0.05
"""Corrected p-value below which two methods differ."""


@dataclass(frozen=True)
class Row:
    """One cell of the paper's table: our mean over the folds that were run, and the authors' over the same folds."""

    settings: UCIRun
    """Settings that all its runs share, with fold and seed set to zero."""
    recipe: str
    """Label of the recipe and of the settings that override it."""
    num_folds: int
    evaluations: int
    """Largest number of gradient evaluations of any run."""
    cpu_seconds: float
    mean: float
    sd: float
    nrmse: float
    coverage90: float
    authors_mean: float | None
    authors_sd: float | None
    """Standard deviation over all folds of the authors, also those that we did not run: a fixed yardstick."""
    difference: float | None
    p_value: float | None
    """p-value of a paired Wilcoxon signed-rank test over folds. None with fewer than five folds."""
    rhat_median: float | None
    """Median over runs of the median R-hat over test rows. None if no run has one."""
    rhat_max: float | None
    """Median over runs of the largest R-hat over test rows. None if no run has one."""
    num_warned: int
    """Number of runs that carried warnings."""
    corrected_p_value: float | None = None
    """The p-value after Holm's correction over all tested cells with these settings, of any set, depth and length."""

    @property
    def dataset(self) -> str:
        return self.settings.dataset

    @property
    def depth(self) -> int:
        return self.settings.depth

    @property
    def method(self) -> str:
        return self.settings.method

    @property
    def is_default(self) -> bool:
        """Whether nothing but the length of the runs differs from the default recipe."""
        return replace(self.settings, scale=1.0) == UCIRun(self.dataset, 0, self.depth, self.method)

    @property
    def is_plain(self) -> bool:
        """Whether the runs follow the default recipe at its own length."""
        return self.is_default and self.settings.scale == 1.0

    @property
    def verdict(self) -> str:
        """`better` or `worse` if the paired test says so after Holm's correction, `undecided` if it does not.

        Empty without a test.
        """
        if self.difference is None or self.corrected_p_value is None:
            return ""
        if self.corrected_p_value >= SIGNIFICANCE:
            return "undecided"
        return "better" if self.difference < 0 else "worse"

    @property
    def shortfall(self) -> float | None:
        """Our mean minus theirs in their standard deviations."""
        return None if self.difference is None or not self.authors_sd else self.difference / self.authors_sd

    @property
    def falls_short(self) -> bool:
        """Whether our mean is above theirs by more than one of their standard deviations."""
        return self.shortfall is not None and self.shortfall > 1.0


def compare(records: Iterable[dict], authors: dict[AuthorsKey, float]) -> list[Row]:
    """One row for every combination of settings among the records of `uci` runs."""
    groups: dict[UCIRun, list[dict]] = defaultdict(list)
    for record in (record for record in records if kind_of(record) == UCIRun.kind):
        groups[replace(settings_of(record), fold=0, seed=0)].append(record)
    rows = [_row(settings, group, authors) for settings, group in groups.items()]
    return sorted(_with_corrected_p_values(rows), key=_order)


def _with_corrected_p_values(rows: list[Row]) -> Iterator[Row]:
    """Correct for the number of cells. Depths, lengths and numbers of chains of the same settings are one family."""
    families: dict[UCIRun, list[Row]] = defaultdict(list)
    for row in rows:
        families[replace(row.settings, dataset="", depth=1, scale=1.0, num_chains=1)].append(row)
    for family in families.values():
        for row, p_value in zip(family, holm([row.p_value for row in family]), strict=True):
            yield replace(row, corrected_p_value=p_value)


def _by_method_and_recipe(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    families: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        families[row.method, row.recipe].append(row)
    return families


def _order(row: Row) -> tuple:
    place = UCI.index(row.dataset) if row.dataset in UCI else len(UCI)
    return row.depth, row.method, row.recipe, place, row.dataset


def _row(settings: UCIRun, group: list[dict], authors: dict[AuthorsKey, float]) -> Row:
    cell = settings.method, settings.dataset, settings.depth
    ours = np.asarray([record["test_mnll"] for record in group])
    keys = [(*cell, record["fold"]) for record in group]
    theirs = np.asarray([authors[key] for key in keys]) if all(key in authors for key in keys) else None
    all_theirs = np.asarray([mnll for key, mnll in authors.items() if key[:3] == cell])

    def average(field: str) -> float:
        return float(np.mean([record[field] for record in group]))

    def median(field: str) -> float | None:
        known = [record[field] for record in group if record.get(field) is not None and np.isfinite(record[field])]
        return float(np.median(known)) if known else None

    return Row(
        settings=settings,
        recipe=" ".join([settings.recipe, *settings.overrides]),
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
        p_value=None if theirs is None else paired_p_value(ours - theirs),
        rhat_median=median("rhat_median"),
        rhat_max=median("rhat_max"),
        num_warned=sum(bool(record.get("warnings")) for record in group),
    )


def within_budget(rows: list[Row], budget: int) -> list[Row]:
    """Rows of the default recipe at its own length that keep to a budget of evaluations.

    Runs of other lengths never fill in: all rows of a depth and size follow one recipe.
    """
    return [row for row in rows if row.is_plain and row.evaluations <= budget]


HEADER = (
    "method", "depth", "recipe", "data set", "folds", "evaluations", "CPU s", "MNLL (sd)", "authors (sd)", "difference",
    "in their sd", "p", "p (Holm)", "test says", "R-hat", "runs with warnings", "nRMSE", "90% coverage",
)  # fmt: skip
NOT_RUN = "not run"


def row_cells(row: Row) -> tuple[str, ...]:
    """Formatted cells of a row, in the order of `HEADER`."""

    def optional(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    theirs = "" if row.authors_mean is None else f"{row.authors_mean:.3f} ({row.authors_sd:.3f})"
    return (
        row.method, str(row.depth), row.recipe, row.dataset, str(row.num_folds), f"{row.evaluations:,}",
        f"{row.cpu_seconds:.0f}", f"{row.mean:.3f} ({row.sd:.3f})", theirs, optional(row.difference, "+.3f"),
        optional(row.shortfall, "+.1f"), optional(row.p_value, ".3f"), optional(row.corrected_p_value, ".3f"),
        row.verdict, rhat_text(row), f"{row.num_warned} of {row.num_folds}", f"{row.nrmse:.3f}",
        f"{row.coverage90:.3f}",
    )  # fmt: skip


def rhat_text(row: Row) -> str:
    """R-hat of the median test row and of the worst one."""
    return "" if row.rhat_median is None or row.rhat_max is None else f"{row.rhat_median:.2f}, {row.rhat_max:.2f}"


def summary(rows: list[Row]) -> list[str]:
    """One sentence per method, recipe and depth: where our mean is at most the authors', and what the test says."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.depth, row.method, row.recipe].append(row)
    return [
        f"{method} ({recipe}), depth {depth}: {_summary(group)}" for (depth, method, recipe), group in groups.items()
    ]


def _summary(rows: list[Row]) -> str:
    compared = [row for row in rows if row.difference is not None]
    lower = sum(row.difference <= 0 for row in compared if row.difference is not None)
    tested = [row for row in compared if row.corrected_p_value is not None]
    better = [row.dataset for row in tested if row.verdict == "better"]
    test = f"better by the corrected test on {', '.join(better) or 'none'} of {len(tested)}" if tested else "no test"
    short = [row.dataset for row in compared if row.falls_short]
    coverage = np.mean([row.coverage90 for row in rows])
    return (
        f"mean MNLL at most the authors' on {lower} of {len(compared)} sets; {test}; "
        f"above theirs by more than one of their standard deviations on {', '.join(short) or 'none'}; "
        f"90% intervals cover {coverage:.1%} on average."
    )


def to_markdown(rows: list[Row]) -> str:
    """Markdown of one table per method and recipe, each with its summary."""
    parts = []
    for (method, recipe), group in _by_method_and_recipe(rows).items():
        notes = [f"- {line}" for line in summary(group)]
        parts.append("\n".join([f"### {method}, {recipe} recipe", "", markdown_table(group), "", *notes]))
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: list[Row], missing: Iterable[tuple[int, str]] = ()) -> str:
    """Markdown of one table. `missing` names cells, by depth and data set, that say that they were not run."""
    cells = [(_order(row), row_cells(row)) for row in rows]
    for depth, dataset in missing:
        first = rows[0]
        blank = {"method": first.method, "depth": str(depth), "recipe": first.recipe, "data set": dataset}
        blank |= {"folds": "0", "MNLL (sd)": NOT_RUN}
        place = depth, first.method, first.recipe, UCI.index(dataset), dataset
        cells.append((place, tuple(blank.get(name, "") for name in HEADER)))
    head = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join([*head, *("| " + " | ".join(one) + " |" for _, one in sorted(cells))])


def to_terminal(rows: list[Row]):
    """Table that rich prints."""
    from rich.table import Table

    table = Table(
        *HEADER,
        caption="MNLL: lower is better; theirs over the same folds (their sd over all). p: paired Wilcoxon over folds, "
        "then after Holm's correction. R-hat: of the median test row and of the worst, each the median over runs.",
    )
    for row in rows:
        is_bad = row.verdict == "worse" or row.falls_short
        table.add_row(*row_cells(row), style="green" if row.verdict == "better" else "red" if is_bad else None)
    return table
