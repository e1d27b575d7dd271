"""What `bsgp demo` shows."""

import numpy as np
import pytest

from bsgp.cli import main
from bsgp.data.files import read_table
from bsgp.demos.banana import draw_figure, fit_priors, generated_banana, load_banana
from bsgp.demos.tables import EXAMPLES, split_example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_tables_are_left_as_files(example, tmp_path):
    parts = split_example(example, tmp_path)
    for name, (X, y) in zip(("train", "test"), parts, strict=True):
        table = read_table(tmp_path / f"{example.name}-{name}.csv")
        assert table.num_rows == X.num_rows == len(y)
        assert set(table.columns) == {*X.columns, example.target}


def test_the_tables_demo_says_where_the_reports_lie(tmp_path, capsys):
    main(["demo", "--effort", "0.005", "--out", str(tmp_path / "demo")])
    printed = capsys.readouterr().out
    for example in EXAMPLES:
        assert (tmp_path / "demo" / example.name / "report.html").exists()
        assert example.title in printed
    assert printed.count("linear") == printed.count("constant") == len(EXAMPLES)


def test_banana_from_the_folder_and_without_it(folder, tmp_path, monkeypatch):
    assert load_banana(folder).X.shape == (400, 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BSGP_DATA", raising=False)
    data = load_banana()
    assert "generated" in data.source
    assert np.bincount(data.y).tolist() == [200, 200]
    with pytest.raises(ValueError, match="must lie"):
        load_banana(tmp_path)


def test_banana_figure(tmp_path):
    data = generated_banana()
    fits = fit_priors(data, effort=0.02)
    assert list(fits) == ["normal", "determinantal", "strauss", "uniform"]
    assert fits["normal"].score(data.X, data.y) > 0.7
    path = draw_figure(data, fits, tmp_path / "figures" / "banana.png")
    assert path.stat().st_size > 20_000
    assert path.with_suffix(".pdf").exists()
