"""The runner, the table of results, and the command line."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp.cli import main
from bsgp.cli.common import numbers
from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.engine.runner import read_records, run_all
from bsgp.experiments.engine.worker import ABANDONED
from bsgp.experiments.experiment import kind_of
from bsgp.experiments.figures.authors import authors_mnll, paper_file
from bsgp.experiments.figures.paired_test import holm
from bsgp.experiments.figures.table import (
    HEADER,
    NOT_RUN,
    compare,
    markdown_table,
    row_cells,
    summary,
    to_markdown,
    within_budget,
)
from bsgp.experiments.kinds.uci import UCIRun, settings_of

ROOT = Path(__file__).parents[2]


# -- runner ------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_repeated_and_a_torn_line_is_skipped(toys, tmp_path):
    first, second = toys(0, 1)
    assert run_all([first], tmp_path) == []
    (record,) = read_records(tmp_path)
    assert record["key"] == first.key
    assert {"test_mnll", "version", "commit"} <= record.keys()
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"key": "torn')
    done = []
    assert run_all([first, second], tmp_path, on_done=lambda run, _: done.append(run)) == []
    assert done == [second]
    assert toys.begun() == {first.key: 1, second.key: 1}
    assert [record["fold"] for record in read_records(tmp_path)] == [0, 1]


def test_a_worker_ends_when_its_campaign_is_gone(toys, tmp_path):
    (endless,) = toys(0, seconds=600.0)
    task = json.dumps({"kind": endless.kind, "run": vars(endless), "data_dir": None})
    out, finished = tmp_path / "out.json", tmp_path / "finished.json"
    command = [sys.executable, "-m", "bsgp.experiments.engine.worker", task, str(out), str(finished)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (ABANDONED, "")
    assert not out.exists()
    assert not finished.exists()


def test_a_killed_campaign_continues_where_it_stopped(toys, tmp_path, monkeypatch):
    command = [
        sys.executable, "-m", "bsgp", "bench", "run", "uci", "--datasets", "yacht", "--folds", "0-1",
        "--processes", "1", "--out", str(tmp_path), "--data-dir", str(tmp_path),
    ]  # fmt: skip
    monkeypatch.setenv("TOY_IS_SLOW", "yes")  # so that the second run is still going on when the campaign is killed
    process = subprocess.Popen(command)
    while not read_records(tmp_path) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = read_records(tmp_path)
    assert [record["fold"] for record in first] == [0]
    monkeypatch.delenv("TOY_IS_SLOW")
    subprocess.run(command, check=True)
    records = read_records(tmp_path)
    assert [record["fold"] for record in records] == [0, 1]
    assert records[0] == first[0]
    assert toys.begun()[records[0]["key"]] == 1


# -- table -------------------------------------------------------------------------------------------------------


def record(dataset, fold, mnll, depth=1, **settings):
    run = UCIRun(dataset, fold, depth, **settings)
    scores = {"test_mnll": mnll, "test_nrmse": 0.1, "coverage90": 0.9}
    cost = {"num_inducing": run.num_inducing or 100, "evaluations": round(100 * run.scale), "cpu_seconds": 1.0}
    return {"key": run.key, **asdict(run), **scores, **cost}


def test_the_table_compares_the_same_folds_only():
    authors = {("bsgp", "yacht", 1, fold): float(fold) for fold in range(8)}
    records = [record("yacht", fold, fold - 0.5 - 0.01 * fold) for fold in range(5)]
    (row,) = compare(records, authors)
    assert (row.num_folds, row.authors_mean) == (5, 2.0)
    assert_allclose(row.authors_sd, np.std(np.arange(8)))  # of all their folds
    assert_allclose(row.difference, -0.52)
    assert row.p_value == pytest.approx(2 / 2**5)  # all five differences of one sign
    assert row.verdict == "undecided"  # a smaller mean alone is not better


def test_only_the_corrected_test_calls_a_row_better_or_worse():
    authors = {("bsgp", name, depth, fold): 0.0 for name in UCI for depth in (1, 2) for fold in range(8)}
    records = [record("yacht", fold, -1.0 - fold) for fold in range(8)]
    records += [record("boston", fold, 1.0 + fold) for fold in range(8)]
    (yacht, boston) = compare(records, authors)
    assert (yacht.p_value, yacht.corrected_p_value, yacht.verdict) == (1 / 128, 1 / 64, "better")
    assert boston.verdict == "worse"
    assert "better by the corrected test on yacht of 2" in summary([yacht, boston])[0]
    # other depths and lengths are tests, too
    others = [
        record("yacht", fold, -1.0 - fold, depth, scale=s) for fold in range(8) for depth, s in ((2, 1.0), (1, 2.0))
    ]
    others += [record(name, fold, -1.0 - fold) for fold in range(8) for name in UCI[2:6]]
    rows = compare(records + others, authors)
    assert len(rows) == 8
    assert {row.corrected_p_value for row in rows} == {8 / 128}
    assert {row.verdict for row in rows} == {"undecided"}


def test_holm():
    assert_allclose(np.asarray(holm([0.01, 0.04, 0.03]), float), [0.03, 0.06, 0.06])
    assert holm([None, 0.9, 0.8]) == [None, 1.0, 1.0]
    assert holm([]) == []


def test_shortfalls_and_summary():
    authors = {("bsgp", name, 1, fold): float(fold) for name in ("yacht", "boston", "naval") for fold in (0, 1)}
    records = [record("yacht", f, f - 0.1) for f in (0, 1)] + [record("boston", f, f + 0.4) for f in (0, 1)]
    records += [record("naval", f, f + 0.6) for f in (0, 1)] + [record("protein", 0, 1.0)]
    rows = compare(records, authors)
    assert {row.verdict for row in rows} == {""}  # two folds are no test
    assert [row.dataset for row in rows if row.falls_short] == ["naval"]
    (line,) = summary(rows)
    assert "1 of 3 sets" in line
    assert "naval" in line
    assert "| bsgp | 1 | default | naval | 2 |" in to_markdown(rows)


def test_a_budget_keeps_to_the_recipe_at_its_own_length():
    records = [record("yacht", 0, 1.0), record("yacht", 0, 3.0, scale=2.0), record("yacht", 0, 0.0, scale=0.5)]
    records += [record("yacht", 0, -9.0, recipe="paper"), record("yacht", 0, -9.0, num_inducing=7)]
    records += [record("yacht", 0, -9.0, num_chains=2), record("yacht", 0, -9.0, objective="vfe")]
    records += [record("boston", fold, 5.0, scale=0.5) for fold in (0, 1)]
    (row,) = within_budget(compare(records, {}), 200)
    assert (row.dataset, row.mean, row.evaluations, row.recipe) == ("yacht", 1.0, 100, "default")
    assert within_budget(compare(records, {}), 99) == []


def test_rhat_and_warnings_are_shown_and_null_is_left_out():
    rhats = [(1.0, 1.2), (1.1, 1.4), (None, None), (1.2, 1.9)]
    records = [
        record("yacht", fold, 0.0) | {"rhat_median": median, "rhat_max": worst, "warnings": ["hot"] * fold}
        for fold, (median, worst) in enumerate(rhats)
    ]
    (row,) = compare(records, {})
    cells = dict(zip(HEADER, row_cells(row), strict=True))
    assert (cells["R-hat"], cells["runs with warnings"]) == ("1.10, 1.40", "3 of 4")
    (bare,) = compare([record("yacht", 0, 0.0)], {})
    assert (bare.rhat_max, bare.num_warned) == (None, 0)


def test_a_cell_that_was_not_run_says_so_in_its_place():
    rows = compare([record("boston", 0, 1.0), record("energy", 0, 1.0, depth=2)], {})
    lines = markdown_table(rows, [(1, "naval"), (1, "yacht")]).splitlines()[2:]
    assert [line.split(" | ")[3] for line in lines] == ["yacht", "boston", "naval", "energy"]
    assert [NOT_RUN in line for line in lines] == [True, False, True, False]


OVERRIDDEN = {
    "recipe": "paper",
    "num_inducing": 100,
    "scale": 0.5,
    "full_data_x": True,
    "objective": "vfe",
    "inducing_prior": "strauss-hard",
    "num_chains": 3,
}


@pytest.mark.parametrize("name", ["", *OVERRIDDEN])
def test_settings_are_read_from_the_fields_of_a_record(name):
    run = UCIRun("kin8nm", 3, depth=2, seed=1, **({name: OVERRIDDEN[name]} if name else {}))
    used = asdict(run) | {"key": run.key, "num_inducing": run.num_inducing or 100, "test_mnll": 0.0}
    assert settings_of(used) == run
    later = [field for field in ("objective", "inducing_prior", "num_chains") if field != name]
    assert settings_of({field: value for field, value in used.items() if field not in later}) == run  # an older record


def test_the_recorded_settings_have_the_recorded_keys():
    records = [one for one in read_records(ROOT / "results" / "paper") if kind_of(one) == "uci"]
    assert len(records) > 900
    assert all(settings_of(one).key == one["key"] for one in records)


def test_the_authors_figures_are_read_from_beside_the_data(folder):
    path = paper_file(None, folder)
    if path is None:
        pytest.skip("no paper folder beside the data")
    authors = authors_mnll(path)
    mean = np.mean([authors["bsgp", "boston", 1, fold] for fold in range(8)])
    assert mean == pytest.approx(2.47, abs=0.005)
    mean = np.mean([authors["kiss-gp", "powerplant", 1, fold] for fold in range(4)])
    assert mean == pytest.approx(2.875, abs=0.005)
    assert {method for method, *_ in authors} >= {"svgp", "fitc-svgp", "sghmc-dgp", "ipvi-dgp", "mcmc-svgp", "dkl"}


# -- command line --------------------------------------------------------------------------------------------------


def test_numbers():
    assert numbers("0-3,7", "folds") == [0, 1, 2, 3, 7]
    with pytest.raises(ValueError, match="--folds"):
        numbers("a", "folds")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "run", "uci", "--out", "x", "--datasets", "iris"],
        ["bench", "run", "mnist", "--out", "x"],
        ["bench", "run", "uci", "--out", "x", "--recipe", "mine"],
        ["bench", "run", "uci", "--out", "x", "--folds", "first"],
        ["bench", "run", "uci", "--out", "x", "--chains", "0"],
        ["bench", "table", "nowhere"],
        ["data", "list", "--data-dir", "nowhere"],
        ["data", "list", "--no-such-flag"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bsgp: ")
    assert error.count("\n") == 1


def test_the_table_command_writes_markdown(tmp_path, capsys):
    (tmp_path / "runs.jsonl").write_text(json.dumps(record("yacht", 0, -0.3)) + "\n")
    main(["bench", "table", str(tmp_path), "--markdown", str(tmp_path / "t.md"), "--data-dir", str(tmp_path)])
    assert "yacht" in capsys.readouterr().out
    assert "yacht" in (tmp_path / "t.md").read_text()


def test_the_table_command_keeps_to_a_budget(tmp_path, capsys):
    records = record("yacht", 0, -0.3), record("yacht", 0, -0.5, scale=3.0)
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    main(["bench", "table", str(tmp_path), "--budget", "100", "--data-dir", str(tmp_path)])
    said = capsys.readouterr().out
    assert "-0.300" in said
    assert "-0.500" not in said
    with pytest.raises(SystemExit):
        main(["bench", "table", str(tmp_path), "--budget", "99", "--data-dir", str(tmp_path)])
    assert "--budget" in capsys.readouterr().err
