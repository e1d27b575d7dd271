"""Experiments that are grids of runs: what they plan, what they show of whatever is there, and the pages of all."""

import hashlib
import json
import re

import numpy as np
import pytest

from bsgp.cli import main
from bsgp.experiments.experiment import EXPERIMENTS, Choice, Drawing, Sheet, load_experiment
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.gallery import gather, to_markdown, write_figures, write_page
from bsgp.experiments.figures.grid import own_size
from bsgp.experiments.kinds.peers import PEERS
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.experiments.paper.ablation import ABLATION
from bsgp.experiments.paper.objective_by_depth import OBJECTIVE_BY_DEPTH, bootstrap_p_value, paired_p_value
from bsgp.experiments.paper.objectives import OBJECTIVES
from bsgp.experiments.paper.priors import PRIORS
from bsgp.experiments.paper.structured import STRUCTURED
from bsgp.experiments.paper.uci_dgp import UCI_DGP, ranks_by_cell

GRIDS = [PRIORS, ABLATION, OBJECTIVES, OBJECTIVE_BY_DEPTH, UCI_DGP, STRUCTURED]
PLANNED = {
    "banana": (5, "1d72b8a843aa39e2", 5, "26a49d8691ccac07"),
    "priors": (960, "c8273824bf4ed191", 5, "97e6d558c5070405"),
    "ablation": (768, "bf05bc5d55c5a3be", 4, "b190a23cd2cab70e"),
    "objectives": (960, "18677681f5f23183", 5, "31504d3e7b7ea4b9"),
    "objective-by-depth": (640, "ce524654fe352559", 10, "e1bf7ec6354928bd"),
    "uci-dgp": (1024, "11412e82dd936a3e", 16, "be49ecf9d5b843bb"),
    "training-time": (76, "99e02506187608aa", 16, "b8467adf2121b573"),
    "prediction-time": (7, "b0549b918da010aa", 4, "c56f836d3c0ef898"),
    "structured": (80, "2f275a9fef800c58", 4, "3056b94b861bae84"),
    "airline": (4, "d9e94a9d38f32d1c", 4, "69322029f12476fa"),
    "higgs": (3, "37859f88d59ec7bc", 3, "d524a35b0d1c8901"),
    "peers": (160, "e4761f613b25298f", 5, "95a4d9d3960a5cb6"),
}
"""Number of planned runs and a hash of their keys in order, of the full and of the quick form."""


def record(run, mnll=1.0, **fields):
    base = {"dataset": run.dataset, "fold": run.fold, "depth": run.depth, "method": run.method}
    return {"key": run.key, "kind": "uci", **base, "test_mnll": mnll, "test_nrmse": 0.5, "coverage90": 0.9, **fields}


def paper_row(experiment, **fields):
    blank = {
        "method": "bsgp",
        "dataset": "yacht",
        "fold": "0",
        "depth": "1",
        "num_inducing": "100",
        "z_prior": "normal",
    }
    return {"experiment": experiment, **blank, "objective": "", "test_mnll": "2.0", "test_nrmse": "0.1", **fields}


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_plans_are_whole_without_doubles_and_can_be_narrowed(grid):
    runs = grid.plan(Choice())
    keys = [run.key for run in runs]
    assert len(set(keys)) == len(keys)
    assert {run.fold for run in runs} == set(range(8))
    one = runs[0]
    narrow = grid.plan(Choice(datasets=(one.dataset,), folds=(3,), methods=(one.method,), depths=(one.depth,)))
    assert narrow
    assert {(run.dataset, run.fold, run.method, run.depth) for run in narrow} == {
        (one.dataset, 3, one.method, one.depth)
    }
    quick = grid.plan(Choice(quick=True))
    assert 0 < len(quick) <= 20
    assert {run.fold for run in quick} == {0}
    assert all(run.scale < 0.1 and run.num_inducing <= 10 for run in quick)


def test_plans_are_the_papers():
    assert {(run.inducing_prior, run.num_inducing) for run in PRIORS.plan(Choice(datasets=("kin8nm",)))} == {
        (prior, size)
        for prior in ("normal", "determinantal", "strauss", "uniform", "strauss-hard")
        for size in (10, 50, 100)
    }
    assert {run.method for run in ABLATION.plan(Choice())} == {"svgp", "sghmc-dgp", "bsgp-z-optimised", "bsgp"}
    assert {run.method for run in OBJECTIVES.plan(Choice())} >= {"fitc-svgp", "mcmc-svgp"}
    deep = OBJECTIVE_BY_DEPTH.plan(Choice(datasets=("protein",)))
    assert {(run.objective, run.depth) for run in deep} == {(o, d) for o in ("fitc", "vfe") for d in range(1, 6)}
    assert all(run.depth == 1 for run in UCI_DGP.plan(Choice(methods=("svgp",))))
    assert {run.dataset for run in STRUCTURED.plan(Choice(methods=("kiss-gp",)))} == {"powerplant"}


def test_experiments_share_runs():
    """100 inducing points are the methods' own choice: the same run must not have two keys."""
    shared = {run.key for run in ABLATION.plan(Choice())} & {run.key for run in UCI_DGP.plan(Choice())}
    assert any(key.startswith("svgp/") for key in shared)
    assert any(key.startswith("bsgp/default/yacht") for key in shared)
    assert not any(key.startswith("bsgp/default/kin8nm") for key in shared)  # its own is 128 there


def test_a_methods_own_size_is_that_of_its_recipe():
    assert own_size(UCIRun("yacht", 0)) == own_size(UCIRun("concrete", 0)) == 100
    assert own_size(UCIRun("kin8nm", 0)) == own_size(UCIRun("protein", 0, method="bsgp-z-optimised")) == 128
    assert own_size(UCIRun("kin8nm", 0, depth=2)) == own_size(UCIRun("kin8nm", 0, method="svgp")) == 100


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_a_figure_shows_ours_beside_theirs_and_what_is_missing(grid):
    runs = grid.plan(Choice(folds=(0, 1)))
    some = [record(run, mnll=float(run.fold)) for run in runs[:3]]
    foreign = [{"key": "prediction-time/x", "kind": "prediction-time"}, record(runs[-1], key="something else")]
    shown = grid.show([*some, *foreign], Paper())
    drawing = next(piece for piece in shown if isinstance(piece, Drawing))
    assert f"{len(some)} of " in drawing.caption
    sheet = next(piece for piece in shown if isinstance(piece, Sheet))
    cells = [row[4] for row in sheet.rows if row[4] != "not run"]
    assert cells
    assert sum(int(row[3]) for row in sheet.rows) == len(some)
    assert any(row[4] == "not run" for row in sheet.rows)
    assert all(isinstance(piece, Drawing | Sheet) for piece in grid.show([], Paper()))


def test_theirs_are_compared_on_our_folds():
    (first, second, *_) = PRIORS.plan(Choice(datasets=("yacht",), folds=(0, 1)))
    paper = Paper([paper_row("priors", fold=str(fold), num_inducing="10", test_mnll=str(fold)) for fold in range(4)])
    sheet = PRIORS.show([record(first, 3.0), record(second, 4.0)], paper)[1]
    row = next(row for row in sheet.rows if row[:3] == ("yacht", "10", "normal"))
    assert row[3:] == ("2", "3.500 (0.500)", "0.500 (0.500)", "+3.000", "1.500 (1.118)")


def test_quick_runs_are_shown_where_there_are_no_others():
    run = PRIORS.plan(Choice(quick=True))[0]
    sheet = PRIORS.show([record(run, 7.0)], Paper())[1]
    assert any("7.000" in row[4] for row in sheet.rows)
    full = PRIORS.plan(Choice())[0]
    sheet = PRIORS.show([record(run, 7.0), record(full, 8.0)], Paper())[1]
    assert not any("7.000" in row[4] for row in sheet.rows)


def test_p_values_say_which_objective_is_better():
    worse = {fold: 1.0 + 0.01 * fold for fold in range(8)}
    better = {fold: 0.5 + 0.02 * fold for fold in range(8)}
    assert paired_p_value(better, worse) == pytest.approx(1 / 2**8)
    assert paired_p_value(worse, better) == pytest.approx(1.0)
    assert bootstrap_p_value(better, worse) < 0.05 < bootstrap_p_value(worse, better)
    few = {fold: worse[fold] for fold in range(4)}
    assert paired_p_value(few, worse) is None
    assert bootstrap_p_value(few, worse) is None


def test_ranks_are_over_cells_that_all_have():
    values = {
        "a": {("x", 0): 1.0, ("x", 1): 1.0, ("y", 0): 5.0},
        "b": {("x", 0): 2.0, ("x", 1): 0.0},
        "c": {("z", 9): 0.0},
        "never run": {},
    }
    ranks, num_cells = ranks_by_cell(values)
    assert num_cells == 2
    assert ranks == {"a": [1.0, 2.0], "b": [2.0, 1.0]}
    assert ranks_by_cell({"a": {("x", 0): 1.0}}) == ({}, 0)


# -- all of them together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_planned_keys_do_not_change(name):
    """Finished runs are found by their keys: a plan with other keys would repeat them."""
    methods = tuple(PEERS) if name == "peers" else None  # its plan depends on the installed packages
    expected = []
    for quick in (False, True):
        keys = [run.key for run in load_experiment(name).plan(Choice(methods=methods, quick=quick))]
        expected += [len(keys), hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]]
    assert tuple(expected) == PLANNED[name]


def test_every_experiment_has_a_plan_and_a_quick_one():
    for name in EXPERIMENTS:
        experiment = load_experiment(name)
        assert experiment.name == name
        assert experiment.about.endswith(".")
        full, quick = experiment.plan(Choice()), experiment.plan(Choice(quick=True))
        assert len(full) >= len(quick) > 0
        if name != "peers":  # its full runs on a small set are quick
            assert {run.key for run in full}.isdisjoint(run.key for run in quick)


def test_pages_hold_every_figure_and_table(tmp_path):
    runs = ABLATION.plan(Choice(datasets=("yacht",), folds=(0,)))
    shown = gather([record(run) for run in runs], Paper(), "RUNS", ["ablation", "higgs"])
    assert [experiment.name for experiment in shown] == ["ablation"]
    index = write_figures(shown, tmp_path / "figures")
    text = index.read_text()
    for picture in re.findall(r"\]\((.+?\.png)\)", text):
        assert (tmp_path / "figures" / picture).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / picture).with_suffix(".svg").read_text().startswith("<svg")
    assert f"{len(runs)} of 768 runs are finished" in text
    assert "bsgp bench run ablation --out RUNS" in text
    assert to_markdown(shown) == text
    page = write_page(shown, tmp_path / "page.html").read_text()
    assert page.count('<img src="data:image/svg+xml') == text.count(".png)")
    assert "<script" not in page
    assert "http" not in re.sub(r"data:image/svg\+xml;base64,[^\"]+", "", page).replace("http-equiv", "")


def test_from_the_command_line(tmp_path, folder, capsys, monkeypatch):
    """A quick run in a worker, its figures and page, and the table of a folder with several kinds of runs."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # in the worker, too
    where = ["--data-dir", str(folder)]
    main(["bench", "run", "ablation", "--quick", "--methods", "svgp", "--out", str(tmp_path), *where])
    (done,) = (json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines())
    assert (done["kind"], done["method"]) == ("uci", "svgp")
    assert np.isfinite([done[name] for name in ("test_mnll", "train_mnll", "test_nrmse", "noise_variance")]).all()
    assert {"key", "coverage90", "rhat_max", "evaluations", "cpu_seconds", "version", "commit"} <= done.keys()
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"key": "banana/normal", "kind": "banana"}) + "\n")
    main(["bench", "figures", str(tmp_path), "--experiments", "ablation", *where])
    assert (tmp_path / "figures" / "ablation.png").exists()
    assert "scores mean nothing" in (tmp_path / "figures" / "index.md").read_text()
    main(["bench", "report", str(tmp_path), "--experiments", "ablation", *where])
    assert "ablation" in (tmp_path / "report.html").read_text()
    main(["bench", "table", str(tmp_path), *where])
    main(["bench", "list"])
    said = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "grandmother", "--out", "X"], "experiment"),
        (["run", "priors", "--out", "X", "--scale", "2"], "must come with `uci`"),
        (["run", "priors", "--out", "X", "--methods", "dkl"], "must have the chosen runs"),
        (["run", "priors", "--out", "X", "--datasets", "mars"], "--datasets"),
        (["run", "uci", "--out", "X", "--datasets", "banana"], "--datasets"),
        (["run", "uci", "--out", "X", "--methods", "mlp"], "--methods"),
        (["figures", "X"], "got none"),
    ],
)
def test_refusals(arguments, words, tmp_path, folder, capsys):
    arguments = [str(tmp_path / "runs") if part == "X" else part for part in arguments]
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments, "--data-dir", str(folder)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
