"""The peers experiment: its plan, its tables of complete and incomplete records, and short runs."""

import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.testing import assert_allclose
from scipy.stats import norm

from bsgp.experiments.datasets.folds import fold_rows
from bsgp.experiments.datasets.named import UCI, load_named
from bsgp.experiments.experiment import Choice, Drawing, Sheet, load_experiment, load_kind
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.kinds import peers as peers_kind
from bsgp.experiments.kinds.peers import PEERS, PeerRun, Prediction, fit_peer, run
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.experiments.paper import peers
from bsgp.experiments.paper.peers import FOLDS, PEER_COMPARISON, plan, show

SCIKIT = [name for name in PEERS if name != "ngboost"]


def peer(method, dataset, fold, mnll, seed=0):
    settings = PeerRun(dataset, fold, method, seed)
    return {
        "key": settings.key, "kind": settings.kind, "dataset": dataset, "fold": fold, "method": method, "seed": seed,
        "depth": 1, "test_mnll": mnll, "test_nrmse": abs(mnll), "coverage90": 0.8, "cpu_seconds": 1.0,
    }  # fmt: skip


def ours(dataset, fold, mnll, coverage90=0.9, **settings):
    one = UCIRun(dataset, fold, **settings)
    return {
        "key": one.key, "kind": "uci", "dataset": dataset, "fold": fold, "method": one.method, "seed": one.seed,
        "depth": one.depth, "recipe": one.recipe, "objective": one.objective, "inducing_prior": one.inducing_prior,
        "num_inducing": one.num_inducing or 100,
        "test_mnll": mnll, "test_nrmse": abs(mnll), "coverage90": coverage90, "cpu_seconds": 1.0,
    }  # fmt: skip


def shown(records) -> tuple[Drawing, Sheet, Sheet, Sheet]:
    drawing, *sheets = show(records, Paper())
    assert isinstance(drawing, Drawing)
    FigureCanvasAgg(drawing.figure).draw()  # some faults appear only when a figure is drawn
    mnll, nrmse, coverage = (sheet for sheet in sheets if isinstance(sheet, Sheet))
    return drawing, mnll, nrmse, coverage


def cells(sheet: Sheet) -> dict[tuple[str, str], str]:
    return {
        (row[0], name): text for row in sheet.rows for name, text in zip(sheet.header[1:], row[1:], strict=True)
    }  # fmt: skip


def test_it_is_an_experiment_and_a_kind():
    assert load_experiment("peers") is PEER_COMPARISON
    assert load_kind("peers").Settings is PeerRun


@pytest.mark.parametrize("is_there", [True, False])
def test_the_plan_has_every_set_fold_and_method_that_can_be_run(is_there, monkeypatch):
    monkeypatch.setattr(peers, "has_ngboost", lambda: is_there)
    runs = plan(Choice())
    assert {one.method for one in runs} == set(PEERS if is_there else SCIKIT)
    assert {one.dataset for one in runs} == set(UCI)
    assert {one.fold for one in runs} == set(FOLDS)
    assert len({one.key for one in runs}) == len(runs) == len(UCI) * len(FOLDS) * (4 + is_there)
    quick = plan(Choice(quick=True))
    assert {(one.dataset, one.fold) for one in quick} == {("yacht", 0)}
    assert len(quick) == 4 + is_there


def test_a_choice_narrows_the_plan():
    chosen = plan(Choice(datasets=("naval", "banana"), folds=(5,), methods=("mlp", "bsgp", "ngboost"), seed=3))
    assert chosen == [PeerRun("naval", 5, "mlp", 3), PeerRun("naval", 5, "ngboost", 3)]
    assert plan(Choice(depths=(2,))) == []
    assert plan(Choice(datasets=("banana",))) == []
    assert {one.dataset for one in plan(Choice(datasets=("boston",), quick=True))} == {"boston"}


def test_nothing_is_shown_without_peers():
    assert show([], Paper()) == []
    assert show([ours("yacht", 0, -0.3)], Paper()) == []


def test_tables_and_a_figure_of_the_same_folds():
    records = [peer("mlp", "yacht", fold, 1.0 + fold) for fold in (0, 1)]
    records += [peer("hist-gbm", "yacht", fold, 0.9 + fold) for fold in (0, 1)]
    records += [ours("yacht", fold, -0.5 + fold) for fold in range(4)]
    records += [{"key": "banana/normal/M20/seed0", "kind": "banana", "method": "bsgp", "dataset": "banana"}]
    _, mnll, nrmse, coverage = shown(records)
    assert [row[0] for row in mnll.rows] == ["bsgp", "mlp", "hist-gbm"]
    assert mnll.header == nrmse.header == coverage.header == ("method", "yacht")
    assert cells(mnll)["bsgp", "yacht"] == "0.000 (0.500)"  # only of folds 0 and 1
    assert cells(mnll)["mlp", "yacht"] == "1.500 (0.500)"
    assert mnll.best == {(0, 1)}
    assert coverage.best == {(0, 1)}  # 0.9 is nearer to 0.9 than 0.8 is
    assert "folds 0 and 1" in mnll.caption


def test_missing_runs_are_named_and_cannot_win():
    records = [peer("mlp", "yacht", 0, -9.0), *(peer("hist-gbm", "yacht", fold, 1.0) for fold in (0, 1))]
    records += [peer("sklearn-gp", "naval", 0, -5.0), *(ours("yacht", fold, 0.5) for fold in (0, 1))]
    _, mnll, *_ = shown(records)
    assert mnll.header == ("method", "yacht", "naval")
    found = cells(mnll)
    assert found["mlp", "yacht"] == "-9.000 (0.000), 1 of 2 folds"
    assert found["bsgp", "naval"] == found["mlp", "naval"] == "not run"
    assert mnll.best == {(0, 1)}  # none on naval, where one method was run alone


def test_bsgp_is_the_run_with_default_settings_if_there_is_one():
    others = [
        ours("yacht", 0, 9.0, num_inducing=10), ours("yacht", 0, 9.0, depth=2), ours("yacht", 0, 9.0, recipe="paper"),
        ours("yacht", 0, 9.0, method="svgp"), ours("yacht", 0, 9.0, objective="vfe"), ours("yacht", 0, 9.0, seed=1),
        ours("yacht", 0, 9.0, inducing_prior="strauss"),
    ]  # fmt: skip
    records = [peer("mlp", "yacht", 0, 1.0), others[0], ours("yacht", 0, 0.25), *others[1:]]
    older = [{k: v for k, v in one.items() if k not in ("kind", "objective", "inducing_prior")} for one in records[2:3]]
    for given in (records, [records[0], *older, *others]):
        _, mnll, *_ = shown(given)
        assert cells(mnll)["bsgp", "yacht"] == "0.250 (0.000)"
        assert "other settings" not in mnll.caption
    _, mnll, *_ = shown([records[0], others[0]])
    assert cells(mnll)["bsgp", "yacht"] == "9.000 (0.000)"
    assert "other settings on yacht (M10)" in mnll.caption


def test_a_method_far_off_is_a_number_at_the_edge():
    levels = {"sklearn-gp": 0.9, "mlp": 1.0, "hist-gbm": 1.1, "hist-gbm-quantile": 1e6}
    records = [peer(method, "boston", fold, level + 0.1 * fold) for method, level in levels.items() for fold in FOLDS]
    drawing, *_ = shown(records)
    (panel,) = drawing.figure.axes
    assert panel.get_xlim()[1] < 2
    assert [text.get_text() for text in panel.texts] == ["1000000.15"]


def test_a_normal_has_its_density_and_its_interval():
    mean, y = np.asarray([0.0, 1.0]), np.asarray([0.5, -1.0])
    prediction = Prediction.normal(mean, 2.0)
    assert_allclose(prediction.log_density(y), norm.logpdf(y, mean, 2.0))
    assert_allclose(prediction.high, norm.ppf(0.95, mean, 2.0))
    assert_allclose(prediction.low, norm.ppf(0.05, mean, 2.0))


@pytest.mark.parametrize("method", SCIKIT)
def test_predictions_of_a_line_with_noise(method, rng):
    X = rng.standard_normal((300, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(300)
    prediction = fit_peer(method, X[:200], y[:200], 0)(X[200:])
    assert all(part.shape == (100,) for part in prediction)
    assert np.sqrt(np.mean((prediction.mean - y[200:]) ** 2)) < 0.5
    assert 0.15 < np.mean(prediction.sd) < 0.6
    assert 0.6 < np.mean((prediction.low <= y[200:]) & (y[200:] <= prediction.high)) <= 1


def test_without_its_package_ngboost_says_what_to_install(monkeypatch, folder):
    monkeypatch.setattr(peers_kind, "has_ngboost", lambda: False)
    with pytest.raises(ValueError, match=r"bsgp\[peers\]"):
        run(PeerRun("yacht", 0, "ngboost"), str(folder))


@pytest.mark.parametrize("method", ["mlp", "hist-gbm"])
def test_a_run_on_yacht(method, folder):
    settings = PeerRun("yacht", 0, method)
    record = run(settings, str(folder))
    assert (record["dataset"], record["fold"], record["method"], record["depth"]) == ("yacht", 0, method, 1)
    assert record["test_nrmse"] < 0.5  # a constant has about 1
    assert record["test_mnll"] < 3.5  # and 4 here
    assert 0.7 < record["coverage90"] <= 1
    assert record["cpu_seconds"] >= 0
    shown([json.loads(json.dumps({"key": settings.key, "kind": settings.kind, **record}))])


def test_two_targets_have_a_model_each_and_scores_are_those_of_uci_runs(folder, monkeypatch):
    fitted = []

    def fit_constant(X, y, seed):
        fitted.append((X.shape, y.shape))
        return lambda X: Prediction.normal(np.full(len(X), y.mean()), y.std())

    monkeypatch.setitem(PEERS, "mlp", fit_constant)
    record = run(PeerRun("energy", 0, "mlp"), str(folder))
    assert fitted == [((614, 8), (614,))] * 2
    data = load_named("energy", folder)
    train, test = fold_rows(768, 0)
    mean, sd = data.y[train].mean(axis=0), data.y[train].std(axis=0)
    assert_allclose(record["test_mnll"], -np.mean(norm.logpdf(data.y[test], mean, sd)))
    assert_allclose(record["test_nrmse"], np.sqrt(np.mean(((data.y[test] - mean) / sd) ** 2)))
    assert_allclose(record["coverage90"], np.mean(np.abs(data.y[test] - mean) < norm.ppf(0.95) * sd))
