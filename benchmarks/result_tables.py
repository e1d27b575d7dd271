"""The tables of README.md and docs/results.md, written anew from results/paper between their marks.

    .venv/bin/python benchmarks/result_tables.py

The authors' figures come from the folder `paper` beside the one that `BSGP_DATA` or ../shared/data names.
"""

from pathlib import Path

from bsgp.experiments.paper import authors_mnll, paper_file
from bsgp.experiments.runner import read_records
from bsgp.experiments.table import Row, compare, to_markdown, within

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "paper"
BUDGETS = (21_000, 42_000)
"""A tenth of the authors' gradient evaluations, and a fifth."""
COST = "evaluations (theirs: 228,192)"
OTHER_RECIPES = ("default M100", "paper fullx")


def readme_table(rows: list[Row]) -> str:
    """The larger budget, one row for each cell."""
    head = [f"| layers | data set | folds | bsgp | authors | {COST} |", "|---|---|---:|---:|---:|---:|"]
    return "\n".join([*head, *(_readme_row(row) for row in within(rows, BUDGETS[-1]) if row.depth <= 3)])


def _readme_row(row: Row) -> str:
    ours = f"**{row.mean:.3f}**" if row.verdict == "better" else f"{row.mean:.3f}"
    theirs = f"{row.authors_mean:.3f}"
    return f"| {row.depth} | {row.dataset} | {row.num_folds} | {ours} | {theirs} | {row.evaluations:,} |"


def results_tables(rows: list[Row]) -> str:
    """Both budgets, and the runs with other settings that the page speaks of."""
    chosen = [row for budget in reversed(BUDGETS) for row in within(rows, budget)]
    return to_markdown(chosen + [row for row in rows if row.recipe in OTHER_RECIPES]).strip()


TABLES = {ROOT / "README.md": readme_table, ROOT / "docs" / "results.md": results_tables}


def written_anew(page: Path, rows: list[Row]) -> str:
    """The text of a page, with its table as the records have it now."""
    before, rest = page.read_text().split("<!-- results -->\n")
    _, after = rest.split("<!-- /results -->\n")
    return f"{before}<!-- results -->\n{TABLES[page](rows)}\n<!-- /results -->\n{after}"


def our_rows() -> list[Row] | None:
    """Those of bsgp beside the authors'; None where these are not at hand."""
    path = paper_file(None, None)
    if path is None:
        return None
    return compare([one for one in read_records(RUNS) if one.get("method") == "bsgp"], authors_mnll(path))


if __name__ == "__main__":
    found = our_rows()
    if found is None:
        raise SystemExit("The authors' results.csv must lie beside the data folder, got none. Set BSGP_PAPER.")
    for page in TABLES:
        page.write_text(written_anew(page, found))
