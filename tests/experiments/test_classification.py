"""The two large classification experiments: plans, a short run, and figures and tables of made-up records."""

import json

import jax
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from bsgp.experiments.experiment import Choice, Drawing, Sheet, load_experiment, load_kind
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.kinds.classification import (
    ClassificationRun,
    LoadedRows,
    _agreement,
    hold_out,
    load_rows,
    run,
)
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.experiments.paper.airline_and_higgs import AIRLINE, HIGGS
from bsgp.posterior.statistics import rhat

EXPERIMENTS = {"airline": AIRLINE, "higgs": HIGGS}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_an_experiment_and_a_kind(name):
    assert load_experiment(name) is EXPERIMENTS[name]
    assert load_kind("classification").Settings is ClassificationRun


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans(name):
    plan = EXPERIMENTS[name].plan
    whole, quick = plan(Choice(seed=3)), plan(Choice(quick=True))
    assert {one.method: one.num_chains for one in whole} == {"bsgp": 4, "svgp": 1, "sghmc-dgp": 1}
    assert all((one.dataset, one.seed, one.max_rows) == (name, 3, None) for one in whole)
    # bsgp has a longer warm start and burn-in, and on higgs draws twice as far apart
    far = {"airline": 640, "higgs": 1_280}[name]
    assert {one.method: (one.scale, one.thinning) for one in whole if one.likelihood_power == 1.0} == {
        "bsgp": (5.0, far),
        "svgp": (1.0, None),
        "sghmc-dgp": (1.0, 640),
    }
    assert all(one.max_rows == 20_000 and one.scale <= 0.02 and one.num_chains <= 2 for one in quick)
    # on airline bsgp is run a second time, with a power of the likelihood
    powered = [one for one in (*whole, *quick) if one.likelihood_power != 1.0]
    assert [one.method for one in powered] == (["bsgp", "bsgp"] if name == "airline" else [])
    assert [(one.scale, one.thinning) for one in powered] == ([(5.0, 1_280), (0.02, None)] if powered else [])
    keys = [one.key for one in (*whole, *quick)]
    assert len(set(keys)) == len(keys)
    assert [one.method for one in plan(Choice(methods=("svgp", "dkl")))] == ["svgp"]
    assert len(plan(Choice(datasets=(name, "yacht"), depths=(1, 2)))) == len(whole)
    assert list(plan(Choice(datasets=("yacht",)))) == list(plan(Choice(depths=(2,)))) == []


def test_every_setting_is_in_the_key():
    changed = {
        "method": "svgp",
        "seed": 1,
        "num_chains": 2,
        "num_inducing": 5,
        "scale": 2.0,
        "max_rows": 9,
        "thinning": 7,
        "likelihood_power": 0.5,
    }
    keys = {ClassificationRun("higgs", **{name: value}).key for name, value in changed.items()}
    assert len(keys | {ClassificationRun("higgs").key, ClassificationRun("airline").key}) == len(changed) + 2


def test_a_tenth_is_held_out_and_the_rest_standardised(rng):
    X = (5.0 + 3.0 * rng.standard_normal((500, 2))).astype(np.float32)
    y = np.arange(500, dtype=np.float32)[:, None]  # names the rows
    held = hold_out(LoadedRows(X, y, "staged"), "higgs", seed=1)
    assert (len(held.X), len(held.X_test)) == (450, 50)
    assert_array_equal(np.sort(np.concatenate([held.y, held.y_test])[:, 0]), y[:, 0])
    assert held.X.dtype == held.X_test.dtype == np.float32
    assert_allclose(held.X.mean(axis=0), 0.0, atol=1e-5)
    assert_allclose(held.X.std(axis=0), 1.0, atol=1e-5)
    again = hold_out(LoadedRows(X, y, "staged"), "higgs", seed=1)
    assert_array_equal(again.y_test, held.y_test)
    assert not np.array_equal(hold_out(LoadedRows(X, y, "staged"), "higgs", seed=2).y_test, held.y_test)
    few = hold_out(LoadedRows(X, y, "staged"), "higgs", seed=1, max_rows=100)
    assert (len(few.X), len(few.X_test)) == (90, 10)


def test_100_000_flights_are_held_out():
    X = np.random.default_rng(0).standard_normal((1_100_000, 1)).astype(np.float32)
    assert len(hold_out(LoadedRows(X, X, "staged"), "airline", seed=0).X_test) == 100_000
    assert len(hold_out(LoadedRows(X, X, "staged"), "higgs", seed=0).X_test) == 110_000


def test_the_record_of_a_short_run_follows_from_its_posterior(folder, fitted):
    settings = ClassificationRun("higgs", num_chains=2, num_inducing=5, scale=0.005, max_rows=600)
    record = json.loads(json.dumps(run(settings, str(folder))))
    held = hold_out(load_rows("higgs", str(folder)), "higgs", settings.seed, settings.max_rows)
    (fit,) = fitted
    # one layer draws nothing for a prediction, so any key gives the same probabilities
    with jax.enable_x64(False):
        draws = np.asarray(fit.posterior.predictive_draws(held.X_test, jr.key(9)).mean[..., 0], np.float64)
    probability, label = draws.mean(axis=(0, 1)), held.y_test[:, 0]
    assert (record["num_train"], record["num_test"], record["num_rows"]) == (540, 60, 54_422)
    assert (record["source"], record["num_inducing"], record["num_draws"]) == ("staged", 5, 128)
    assert record["evaluations"] == fit.history.evaluations
    assert record["cpu_seconds"] > 0
    assert_allclose(record["test_error"], np.mean((probability > 0.5) != label))
    assert_allclose(record["test_mnll"], log_loss(label, probability), rtol=1e-4)
    assert_allclose(record["test_auc"], roc_auc_score(label, probability))
    assert_allclose(record["test_brier"], brier_score_loss(label, probability), rtol=1e-4)
    by_row = rhat(draws[:, :, np.ptp(draws, axis=1).min(axis=0) > 0])
    assert record["rhat_rows"] == len(by_row)
    assert_allclose([record["rhat_median"], record["rhat_mean"]], [np.median(by_row), np.mean(by_row)], rtol=1e-2)
    assert 0 < record["ess_min"] <= record["ess_median"]
    assert len({trace["test_row"] for trace in record["traces"]}) == 3
    for trace in record["traces"]:
        assert trace["label"] == label[trace["test_row"]]
        assert_allclose(trace["draws"], draws[:, :, trace["test_row"]], atol=2e-4)
        assert_allclose(trace["mean"], probability[trace["test_row"]], atol=2e-4)
    sheet, drawing = HIGGS.show([{"key": settings.key, "kind": settings.kind, **record}], Paper())
    assert isinstance(sheet, Sheet)
    assert isinstance(drawing, Drawing)


def test_a_method_without_chains_has_no_traces(folder):
    record = run(ClassificationRun("higgs", "svgp", num_inducing=5, scale=0.001, max_rows=300), str(folder))
    assert np.isfinite(record["test_mnll"])
    assert "rhat_mean" not in record
    sheet, *drawings = HIGGS.show([{"kind": "classification", **record}], Paper())
    assert drawings == []
    assert isinstance(sheet, Sheet)


def test_certain_rows_have_no_rhat_and_far_ones_no_trace(rng):
    draws = 0.02 * rng.standard_normal((4, 100, 12)) + np.linspace(0.15, 0.85, 12)[None, None]
    draws[:, :, 0] = 1.0  # certain in every draw
    draws[:, :, 6] = 0.5 + 1e-9 * rng.standard_normal((4, 100))  # far from all data
    found = _agreement(draws, np.ones(12), np.arange(12))
    assert found["rhat_rows"] == 11
    assert 0.99 < found["rhat_median"] <= found["rhat_max"] < 1.1
    assert [trace["test_row"] for trace in found["traces"]] == [1, 5, 10]
    assert _agreement(np.ones((2, 50, 3)), np.ones(3), np.arange(3)) == {}


# -- figures and tables ------------------------------------------------------------------------------------------


def made_up(dataset="airline", method="bsgp", mnll=0.6, source="staged", **changes):
    settings = ClassificationRun(dataset, method, **{"num_chains": 4 if method == "bsgp" else 1, **changes})
    record = {
        "key": settings.key, "kind": settings.kind, **vars(settings), "source": source, "num_rows": 1_272_746,
        "num_train": 1_172_746, "num_test": 100_000, "num_draws": 30, "evaluations": 20_384, "cpu_seconds": 321.4,
        "test_error": mnll / 2, "test_mnll": mnll, "test_auc": 1.3 - mnll, "test_brier": 0.2,
    }  # fmt: skip
    if method == "svgp":
        return record
    draws = np.random.default_rng(0).normal(0.5, 0.02, (3, settings.num_chains, 30)).round(4)
    traces = [
        {"test_row": 1_000 * i, "label": i % 2, "mean": 0.5, "rhat": 1.01, "draws": one.tolist()}
        for i, one in enumerate(draws)
    ]
    figures = {"rhat_mean": 1.012, "rhat_sd": 0.02, "rhat_q90": 1.034, "rhat_max": 1.1, "rhat_median": 1.01}
    return {**record, **figures, "ess_median": 200.0, "ess_min": 50.0, "traces": traces}


def test_nothing_is_shown_of_nothing():
    foreign = [
        {"key": UCIRun("yacht", 0).key, "dataset": "yacht", "test_mnll": 0.1},
        {"kind": "banana", "key": "banana"},
        made_up("higgs"),
    ]
    assert AIRLINE.show([], Paper()) == []
    assert AIRLINE.show(foreign, Paper()) == []
    assert len(HIGGS.show(foreign, Paper())) == 2


def test_ours_stands_beside_the_papers():
    records = [
        made_up(method="sghmc-dgp", mnll=0.63),
        {"key": "yacht", "dataset": "yacht", "test_mnll": 0.1},
        made_up(mnll=0.58),
        made_up("higgs", mnll=0.1),
    ]
    sheet, drawing = AIRLINE.show(records, Paper())
    assert isinstance(sheet, Sheet)
    assert isinstance(drawing, Drawing)
    assert [row[:2] for row in sheet.rows] == [
        ("bsgp", "4 chains, M = 100, seed 0"),
        ("sghmc-dgp", "1 chain, M = 100, seed 0"),
        ("svgp", "not run"),
    ]
    assert all(len(row) == len(sheet.header) for row in sheet.rows)
    bsgp = dict(zip(sheet.header, sheet.rows[0], strict=True))
    assert (bsgp["error"], bsgp["MNLL"], bsgp["AUC"]) == ("29.00%", "0.580", "0.720")
    assert (bsgp["R-hat"], bsgp["R-hat, 90%"], bsgp["evaluations"]) == ("1.012 (0.020)", "1.034", "4 x 20,384")
    assert (bsgp["paper: error"], bsgp["paper: MNLL"], bsgp["paper: AUC"]) == ("30.46%", "0.580", "0.749")
    assert {sheet.header[column] for row, column in sheet.best if row == 0} == {"error", "MNLL", "AUC"}
    assert len(sheet.best) == 3
    assert "six other BTS extracts" in sheet.caption
    assert "original" not in sheet.caption
    assert [len(axes.lines) for axes in drawing.figure.axes] == [4, 4, 4]
    assert "4 chains" in drawing.caption


def test_captions_say_which_rows():
    (sheet, _) = HIGGS.show([made_up("higgs")], Paper())
    assert "54,422 of the 11 million" in sheet.caption
    (sheet, _) = HIGGS.show([made_up("higgs", source="original")], Paper())
    assert "54,422" not in sheet.caption
    assert "all 11 million" in sheet.caption


def test_a_power_of_the_likelihood_is_told():
    powered = made_up(mnll=0.59, likelihood_power=0.125)
    before = made_up(mnll=0.58)
    del before["likelihood_power"]  # as older records
    sheet, plain, tempered = AIRLINE.show([powered, before], Paper())
    assert isinstance(sheet, Sheet)
    assert [row[1] for row in sheet.rows[:2]] == [
        "4 chains, M = 100, seed 0",
        "4 chains, M = 100, seed 0, likelihood to the power of 0.125",
    ]
    assert [one.name for one in (plain, tempered)] == ["airline-traces", "airline-traces-power"]
    assert "power of 0.125" in tempered.caption
    assert "power" not in plain.caption


def test_quick_runs_come_last_and_are_never_the_best():
    records = [
        made_up(method="svgp", mnll=0.1, max_rows=20_000, scale=0.02),
        made_up(method="svgp", mnll=0.7),
        made_up(mnll=0.6),
    ]
    (sheet, _) = AIRLINE.show(records, Paper())
    assert isinstance(sheet, Sheet)
    assert [row[0] for row in sheet.rows] == ["bsgp", "svgp", "svgp", "sghmc-dgp"]
    assert {row for row, _ in sheet.best} == {0}
    assert "mean nothing" in sheet.caption
