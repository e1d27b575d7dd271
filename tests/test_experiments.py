"""Recipes, the runner and the table, on data small enough for seconds."""

import json
import signal
import subprocess
import sys
import time

import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp import Plan
from bsgp.cli import main
from bsgp.cli.common import numbers
from bsgp.experiments.paper import authors_mnll, paper_file
from bsgp.experiments.runner import read_records, run_all
from bsgp.experiments.table import compare, summary, to_markdown, within
from bsgp.experiments.uci import UCIRun
from bsgp.experiments.worker import ABANDONED
from bsgp.likelihoods import Bernoulli, gaussian
from bsgp.recipes import RECIPES, Recipe, default_recipe, fit, paper_recipe, scaled


def sine(rng, num_rows=60):
    X = rng.standard_normal((num_rows, 2))
    return X, np.sin(2 * X[:, :1]) + 0.1 * rng.standard_normal((num_rows, 1))


def brief(recipe: Recipe) -> Recipe:
    """A recipe cut down to what a test can afford."""
    return scaled(recipe, num_inducing=8, scale=0.01)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("depth", [1, 2])
def test_every_recipe_fits_and_predicts(name, depth, rng):
    X, y = sine(rng)
    recipe = RECIPES[name](len(X), 2, 1, depth)
    posterior, _, run = fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe=brief(recipe), depth=depth)
    assert np.isfinite(posterior.log_density(X, y, jr.key(1))).all()
    assert run.evaluations > 0


@pytest.mark.parametrize(("depth", "budget"), [(1, 21_000), (2, 42_000), (5, 42_000)])
def test_the_default_recipe_stays_within_a_tenth_of_the_authors_cost_and_deep_within_a_fifth(depth, budget):
    for num_rows in (50, 1_000, 1_001, 10**7):
        recipe = default_recipe(num_rows, 8, 1, depth)
        assert recipe.plan.evaluations <= budget
        assert recipe.num_inducing <= num_rows


def test_the_paper_recipe_counts_as_the_authors_did():
    plan = paper_recipe(500, 8, 1, 1).plan
    assert (plan.burn_in, plan.num_draws, plan.thinning, plan.step_size) == (210_000, 256, 32, 0.01)
    assert plan.burn_in // plan.optimise_every == 10_000


def test_the_paper_recipe_optimises_the_noise_and_keeps_it_for_the_draws(rng):
    X, y = sine(rng)
    recipe = brief(paper_recipe(len(X), 2, 1, 1))
    posterior, _, run = fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe=recipe)
    noise = np.asarray(posterior.model.likelihood.noise_variance)
    assert np.ptp(noise) == 0
    assert noise.ravel()[0] < 0.9  # it began at 1
    assert run.evaluations > recipe.plan.evaluations  # Adam's count, too


def test_the_paper_recipe_has_one_noise_for_all_targets(rng):
    X, y = sine(rng)
    y = np.concatenate([y, -2 * y], axis=1)
    posterior, *_ = fit(X, y, gaussian(2, X.dtype), jr.key(0), recipe=brief(paper_recipe(len(X), 2, 2, 1)))
    assert posterior.model.likelihood.noise_variance.shape[-1] == 1
    assert posterior.predict(X, jr.key(1)).variance.shape == y.shape
    assert np.isfinite(posterior.quantiles(X, [0.1], jr.key(2))).all()


def test_a_likelihood_without_a_conditional_is_fitted_without_an_anchor(rng):
    X, y = sine(rng)
    posterior, *_ = fit(X, (y > 0).astype(float), Bernoulli(), jr.key(0), recipe=brief(default_recipe(60, 2, 1, 1)))
    probability = posterior.predict(X, jr.key(1)).mean
    assert ((probability > 0) & (probability < 1)).all()


def test_fit_refuses_what_does_not_fit(rng):
    X, y = sine(rng)
    with pytest.raises(ValueError, match="two-dimensional"):
        fit(X, y.ravel(), gaussian(1, X.dtype), jr.key(0))
    with pytest.raises(ValueError, match="rows"):
        fit(X, y[:-1], gaussian(1, X.dtype), jr.key(0))
    with pytest.raises(ValueError, match="recipe"):
        fit(X, y, gaussian(1, X.dtype), jr.key(0), recipe="grandmother's")


def test_scaling_keeps_draws():
    recipe = scaled(default_recipe(500, 2, 1, 1), num_inducing=10, scale=2.0)
    assert recipe.plan.num_draws == Plan().num_draws
    assert recipe.plan.thinning == 2 * default_recipe(500, 2, 1, 1).plan.thinning
    assert recipe.num_inducing == 10


# -- runner ------------------------------------------------------------------------------------------------------


QUICK = UCIRun("yacht", 0, num_inducing=5, scale=0.02, num_chains=2)


def test_a_run_is_recorded_resumed_and_survives_a_torn_line(tmp_path, folder):
    assert run_all([QUICK], tmp_path, data_dir=folder) == []
    (record,) = read_records(tmp_path)
    assert record["key"] == QUICK.key
    for field in ("test_mnll", "train_mnll", "test_nrmse", "coverage90", "rhat_max", "cpu_seconds", "commit"):
        assert field in record
    assert np.isfinite(record["test_mnll"])
    assert 700 < record["evaluations"] < 1_000  # of both chains
    done = []
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"key": "torn')
    run_all([QUICK], tmp_path, data_dir=folder, on_done=lambda *one: done.append(one))
    assert done == []
    assert len(read_records(tmp_path)) == 1


def test_a_failing_run_is_tried_twice_and_recorded(tmp_path):
    failed = run_all([QUICK], tmp_path / "runs", data_dir=tmp_path)
    assert failed == [QUICK]
    (failure,) = (json.loads(line) for line in (tmp_path / "runs" / "failures.jsonl").read_text().splitlines())
    assert "no such file" in failure["error"]


def test_a_worker_ends_when_its_campaign_is_gone(tmp_path, folder):
    # A whole run, not a quick one: the thread that watches the parent must win against it on a busy machine.
    task = json.dumps({"kind": "uci", "run": {"dataset": "yacht", "fold": 0}, "data_dir": str(folder)})
    out, kept = tmp_path / "out.json", tmp_path / "kept.json"
    command = [sys.executable, "-m", "bsgp.experiments.worker", task, str(out), str(kept)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (ABANDONED, "")
    assert not out.exists()
    assert not kept.exists()


def test_a_killed_campaign_goes_on_where_it_stopped(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("BSGP_CACHE", str(tmp_path / "compiled"))  # for the second run of the same shape
    command = [
        sys.executable, "-m", "bsgp", "bench", "run", "uci", "--datasets", "yacht", "--folds", "0-1", "--scale", "0.02",
        "--num-inducing", "5", "--processes", "1", "--out", str(tmp_path), "--data-dir", str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(command)
    while not read_records(tmp_path) and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = read_records(tmp_path)
    assert len(first) >= 1
    subprocess.run(command, check=True)
    records = read_records(tmp_path)
    assert sorted(record["fold"] for record in records) == [0, 1]
    assert records[0] == first[0]


# -- table -------------------------------------------------------------------------------------------------------


def record(dataset, fold, mnll, depth=1, **settings):
    run = UCIRun(dataset, fold, depth, **settings)
    return {
        "key": run.key, "dataset": dataset, "fold": fold, "depth": depth, "method": "bsgp", "recipe": run.recipe,
        "test_mnll": mnll, "test_nrmse": 0.1, "coverage90": 0.9, "evaluations": round(100 * run.scale),
        "cpu_seconds": 1.0,
    }  # fmt: skip


def test_the_table_compares_the_same_folds_only():
    authors = {("bsgp", "yacht", 1, fold): float(fold) for fold in range(8)}
    records = [record("yacht", fold, fold - 0.5 - 0.01 * fold) for fold in range(5)]
    (row,) = compare(records, authors)
    assert (row.num_folds, row.authors_mean) == (5, 2.0)
    assert_allclose(row.authors_sd, np.std(np.arange(8)))  # of all their folds
    assert_allclose(row.difference, -0.52)
    assert row.p_value == pytest.approx(2 / 2**5)  # all five differences of one sign
    assert row.verdict == "better"


def test_verdicts_and_summary():
    authors = {("bsgp", name, 1, fold): float(fold) for name in ("yacht", "boston", "naval") for fold in (0, 1)}
    records = [record("yacht", f, f - 0.1) for f in (0, 1)] + [record("boston", f, f + 0.4) for f in (0, 1)]
    records += [record("naval", f, f + 0.6) for f in (0, 1)] + [record("protein", 0, 1.0)]
    rows = compare(records, authors)
    assert {row.dataset: row.verdict for row in rows} == {
        "yacht": "better", "boston": "close", "naval": "worse", "protein": ""
    }  # fmt: skip
    (line,) = summary(rows)
    assert "1 of 3 sets" in line
    assert "naval" in line
    assert "| bsgp | 1 | default | naval | 2 |" in to_markdown(rows)


def test_a_budget_chooses_by_folds_and_length_and_not_by_figures():
    records = [record("yacht", 0, 1.0), record("yacht", 0, 3.0, scale=2.0), record("yacht", 0, 0.0, scale=4.0)]
    records += [record("yacht", 0, -9.0, recipe="paper"), record("yacht", 0, -9.0, num_inducing=7)]
    records += [record("boston", fold, 5.0, scale=0.5) for fold in (0, 1)] + [record("boston", 0, 1.0)]
    rows = {row.dataset: row for row in within(compare(records, {}), 200)}
    assert (rows["yacht"].mean, rows["yacht"].evaluations) == (3.0, 200)  # the longest that fits, though it is worse
    assert (rows["boston"].mean, rows["boston"].num_folds) == (5.0, 2)
    assert {row.recipe for row in rows.values()} == {"default, up to 200"}
    assert within(compare(records, {}), 49) == []


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
