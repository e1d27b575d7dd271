"""The examples of `bsgp demo`."""

from dataclasses import asdict

import numpy as np
import pytest

import bsgp.experiments.paper.banana as banana
from bsgp.cli import main
from bsgp.data.tables.files import read_table
from bsgp.demos import tables
from bsgp.demos.tables import EXAMPLES, split_example
from bsgp.experiments.kinds.banana import generate_rows, load_or_generate_rows


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_tables_are_written_as_files(example, tmp_path):
    parts = split_example(example, tmp_path)
    for name, (X, y) in zip(("train", "test"), parts, strict=True):
        table = read_table(tmp_path / f"{example.name}-{name}.csv")
        assert table.num_rows == X.num_rows == len(y)
        assert set(table.columns) == {*X.columns, example.target}


def test_the_tables_demo_prints_scores_and_the_paths_of_the_reports(tmp_path, capsys, monkeypatch):
    write_report, written = tables.write_report, []

    def write_first_report(model, path, held_out):
        """Write a real report of the first table only: reports have their own tests."""
        written.append(path)
        return write_report(model, path, held_out) if len(written) == 1 else write_placeholder(path)

    def write_placeholder(path):
        path.write_text("a report")
        return path

    monkeypatch.setattr(tables, "write_report", write_first_report)
    monkeypatch.setattr(tables, "NUM_ROWS", 60)
    main(["demo", "--effort", "0.005", "--out", str(tmp_path / "demo")])
    printed = capsys.readouterr().out
    for example in EXAMPLES:
        assert (tmp_path / "demo" / example.name / "report.html").exists()
        assert example.title in printed
    assert printed.count("linear") == printed.count("constant") == len(EXAMPLES)


def test_banana_rows_come_from_the_folder_or_are_generated(folder, tmp_path, monkeypatch):
    rows, origin = load_or_generate_rows(folder)
    assert (rows.X.shape, rows.X_test.shape) == ((400, 2), (4_900, 2))
    assert "banana data" in origin
    monkeypatch.delenv("BSGP_DATA", raising=False)
    rows, origin = load_or_generate_rows(None)
    assert "generated" in origin
    assert "BSGP_DATA" in origin
    assert np.bincount(rows.y[:, 0].astype(int)).tolist() == [200, 200]
    with pytest.raises(ValueError, match="must be at"):
        load_or_generate_rows(tmp_path)


def test_the_banana_demo_draws_the_experiments_own_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("BSGP_DATA", raising=False)
    records = []

    def fit_once(settings, rows, report):
        """The first prior is fitted, the others have the same record: each prior compiles for itself."""
        records.append(records[0] | asdict(settings) if records else fit_rows(settings, rows, report))
        return records[-1]

    fit_rows = banana.fit_rows
    monkeypatch.setattr(banana, "fit_rows", fit_once)
    main(["demo", "banana", "--effort", "0.02", "--out", str(tmp_path / "figures")])
    printed = capsys.readouterr().out
    path = tmp_path / "figures" / "banana.png"
    assert "generated" in printed
    assert str(path) in printed
    assert [record["inducing_prior"] for record in records] == ["normal", "determinantal", "strauss", "uniform"]
    assert records[0]["test_error"] < 0.3
    assert records[0]["scale"] == 0.02
    assert np.allclose(records[0]["points"], generate_rows().X / generate_rows().X.std(axis=0), atol=0.2)
    assert path.stat().st_size > 20_000
    assert path.with_suffix(".pdf").exists()
