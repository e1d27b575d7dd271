"""Writes the tables of results in README.md, docs/results.md and docs/methods.md from results/paper, at their marks.

    .venv/bin/python benchmarks/result_tables.py [--data-dir FOLDER]

The authors' results come from the folder `paper` beside the data folder, which `--data-dir` or the environment variable
BSGP_DATA names, or from the folder that BSGP_PAPER names.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.engine.runner import read_records
from bsgp.experiments.figures.authors import authors_mnll, paper_file
from bsgp.experiments.figures.table import NOT_RUN, Row, compare, markdown_table, rhat_text, summary, to_markdown
from bsgp.experiments.kinds.uci import UCIRun

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "paper"
DEPTHS = (1, 2, 3)
"""Depths at which the tables have every data set, also those that were not run."""
LEAST_SCALE = 0.5
"""Share of the recipe's updates below which a run belongs to the figure of training time."""
COST = "evaluations (theirs: 228,192)"


def readme_table(rows: list[Row]) -> str:
    """Table of bsgp at the recipe's own length, one row for each cell. No cell is bold: see `Row.verdict`."""
    head = [
        f"| layers | data set | folds | bsgp | authors | p (Holm) | R-hat | runs with warnings | {COST} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = {(row.depth, row.dataset): row for row in rows if row.method == "bsgp" and row.is_plain}
    lines = [_readme_row(depth, name, found.get((depth, name))) for depth in DEPTHS for name in UCI]
    return "\n".join([*head, *lines])


def _readme_row(depth: int, dataset: str, row: Row | None) -> str:
    if row is None:
        return f"| {depth} | {dataset} | 0 | {NOT_RUN} | | | | | |"
    ours = f"**{row.mean:.3f}**" if row.verdict == "better" else f"{row.mean:.3f}"
    p_value = "" if row.corrected_p_value is None else f"{row.corrected_p_value:.2f}"
    cells = (
        str(depth), dataset, str(row.num_folds), ours, f"{row.authors_mean:.3f}", p_value, rhat_text(row),
        f"{row.num_warned} of {row.num_folds}", f"{row.evaluations:,}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def results_tables(rows: list[Row]) -> str:
    """Table of bsgp at the recipe's own length; apart from it, other lengths and settings that the page discusses."""
    ours = [row for row in rows if row.method == "bsgp"]
    plain = [row for row in ours if row.is_plain]
    run = {(row.depth, row.dataset) for row in plain}
    missing = [(depth, name) for depth in DEPTHS for name in UCI if (depth, name) not in run]
    notes = "\n".join(f"- {line}" for line in summary(plain))
    parts = [
        f"### bsgp, default recipe at its own length\n\n{markdown_table(plain, missing)}\n\n{notes}",
        f"### Other lengths and numbers of chains\n\n{markdown_table([row for row in ours if _has_other_length(row)])}",
        to_markdown([row for row in ours if _is_discussed(row.settings)]).strip(),
    ]
    return "\n\n".join(parts)


def _has_other_length(row: Row) -> bool:
    """Whether only length and number of chains differ from the default. Runs of training time are left out."""
    run = row.settings
    is_default = replace(run, scale=1.0, num_chains=1) == UCIRun(run.dataset, 0, run.depth)
    return is_default and not row.is_plain and run.scale >= LEAST_SCALE


def methods_tables(rows: list[Row]) -> str:
    """Tables of the other methods with their default recipe at full length, and the cells that fall short."""
    others = [row for row in rows if row.method != "bsgp" and row.is_plain]
    return f"{shortfalls(others)}\n\n{to_markdown(others).strip()}"


def shortfalls(rows: list[Row]) -> str:
    """Two sentences: the cells whose mean is above the authors' by more than one standard deviation, and by less."""
    above = [row for row in rows if row.difference is not None and row.difference > 0]
    far, near = [row for row in above if row.falls_short], [row for row in above if not row.falls_short]
    compared = sum(row.difference is not None for row in rows)
    return (
        f"Of {compared} cells, {len(far)} are above the authors' mean by more than one of their standard deviations: "
        f"{_listed(far)}.\n\n{len(near)} more are above it by less: {_listed(near)}."
    )


def _listed(rows: list[Row]) -> str:
    return "; ".join(_cell_name(row) for row in rows) or "none"


def _cell_name(row: Row) -> str:
    layers = "one layer" if row.depth == 1 else f"{row.depth} layers"
    folds = "one fold" if row.num_folds == 1 else f"{row.num_folds} folds"
    return f"{row.method} on {row.dataset} ({layers}, {folds}: {row.shortfall:+.1f} sd)"


def _is_discussed(run: UCIRun) -> bool:
    """Whether a run has 100 inducing points by choice, or all of the authors' settings."""
    plain = UCIRun(run.dataset, 0, run.depth)
    return run in (replace(plain, num_inducing=100), replace(plain, recipe="paper", full_data_x=True))


TABLES = {
    ROOT / "README.md": readme_table,
    ROOT / "docs" / "results.md": results_tables,
    ROOT / "docs" / "methods.md": methods_tables,
}


def with_new_table(page: Path, rows: list[Row]) -> str:
    """Text of a page with its table made from the records."""
    return replace_between(page.read_text(), "results", TABLES[page](rows))


def replace_between(text: str, mark: str, content: str) -> str:
    """A page with new content between the lines `<!-- mark -->` and `<!-- /mark -->`."""
    first, last = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    before, rest = text.split(first)
    _, after = rest.split(last)
    return f"{before}{first}{content}\n{last}{after}"


def our_rows(data_dir: str | Path | None = None) -> list[Row] | None:
    """Rows of all our runs beside the authors' results. None if those are not available."""
    path = paper_file(None, data_dir)
    if path is None:
        return None
    return compare(read_records(RUNS), authors_mnll(path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    found = our_rows(parser.parse_args().data_dir)
    if found is None:
        raise SystemExit(
            "The authors' results.csv must be in `paper` beside the data folder, got none. "
            "Pass --data-dir, or set BSGP_DATA or BSGP_PAPER."
        )
    for page in TABLES:
        page.write_text(with_new_table(page, found))
