"""Training time and prediction time: plans, figures of made-up records, and one short run."""

import io
from dataclasses import asdict

import numpy as np
import pytest

from bsgp.experiments.experiment import Choice, Drawing, Sheet
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.kinds import prediction_time
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.experiments.paper.prediction_time import PREDICTION_TIME
from bsgp.experiments.paper.training_time import TRAINING_TIME

BOTH = pytest.mark.parametrize("experiment", [TRAINING_TIME, PREDICTION_TIME], ids=["training", "prediction"])


def made_up(run) -> dict:
    """A record like that of a run. Longer runs score better."""
    record = {"key": run.key, "kind": run.kind, **asdict(run), "num_inducing": run.num_inducing or 100}
    record |= {"evaluations": 100, "cpu_seconds": 10.0 * run.scale, "test_mnll": -run.scale}
    if run.kind == "prediction-time":
        draws = (8, 16) if run.method == "bsgp" else (1,)
        points = [{"num_draws": n, "prediction_seconds": 0.1 * n, "test_mnll": 2.0 - 0.01 * n} for n in draws]
        record |= {"points": points, "num_test": 50}
    return record


FOREIGN = [
    made_up(UCIRun("naval", 0, 2)),  # another depth
    made_up(UCIRun("yacht", 0)),
    made_up(UCIRun("naval", 0, inducing_prior="strauss")),
    made_up(UCIRun("naval", 3)),  # another experiment has it on a fold without a curve
    {"key": "banana/1", "kind": "banana"},
    {"key": "airline/1", "kind": "classification", "method": "bsgp", "dataset": "airline", "fold": None, "seed": 0},
]


def shown(experiment, records, paper=Paper()) -> tuple[Drawing, Sheet]:
    drawing, sheet = experiment.show(records, paper)
    assert isinstance(drawing, Drawing)
    assert isinstance(sheet, Sheet)
    drawing.figure.savefig(io.BytesIO(), format="svg")  # some faults appear only when a figure is saved
    return drawing, sheet


def num_points(axes) -> list[int]:
    return [len(line.get_xdata()) for line in axes.lines]


def authors(dataset, method, depth, num_inducing=100):
    rows = [(0, 0.0, 9.0, 4), (250, 50.0, -1.0, 4), (500, 100.0, -2.0, 4), (750, 150.0, 50.0, 1)]
    names = "step", "elapsed_s", "test_mnll", "runs"
    what = {"dataset": dataset, "model": method, "depth": str(depth), "num_inducing": str(num_inducing)}
    return [what | {name: str(value) for name, value in zip(names, row, strict=True)} for row in rows]


@BOTH
def test_a_plan_has_keys_of_its_own_and_a_quick_form(experiment):
    keys = [run.key for run in experiment.plan(Choice())]
    assert len(set(keys)) == len(keys)
    quick = experiment.plan(Choice(quick=True))
    assert 0 < len(quick) < len(keys)
    assert all(run.scale <= 1 / 32 and run.num_inducing <= 40 for run in quick)
    assert not {run.key for run in quick} & set(keys)


@BOTH
def test_a_choice_narrows_a_plan(experiment):
    chosen = experiment.plan(Choice(folds=(2, 3), methods=("svgp",), seed=5))
    assert {(run.fold, run.method, run.seed) for run in chosen} == {(2, "svgp", 5), (3, "svgp", 5)}
    assert {run.depth for run in experiment.plan(Choice(depths=(2,), methods=("bsgp",)))} == {2}
    assert experiment.plan(Choice(methods=("dkl",))) == []


def test_training_takes_every_method_for_as_long_as_it_is_worth():
    runs = TRAINING_TIME.plan(Choice())
    assert {run.fold for run in runs} == {0}
    assert {(run.dataset, run.depth) for run in runs if run.method != "svgp"} == {("naval", 1), ("kin8nm", 2)}
    assert {run.depth for run in runs if run.method == "svgp"} == {1}
    longest = {}
    for run in runs:
        longest[run.method, run.num_inducing] = run.scale  # short runs come first
    assert longest == {
        ("bsgp", None): 1.0, ("sghmc-dgp", None): 1.0, ("ipvi-dgp", None): 1.0,
        ("svgp", None): 1.0, ("svgp", 500): 0.5, ("svgp", 1_000): 0.125,
    }  # fmt: skip
    assert {run.dataset for run in TRAINING_TIME.plan(Choice(datasets=("naval",)))} == {"naval"}
    assert TRAINING_TIME.plan(Choice(datasets=("yacht",))) == []


def test_prediction_takes_larger_svgp_for_shorter():
    runs = PREDICTION_TIME.plan(Choice())
    assert {run.dataset for run in runs} == {"protein"}
    assert [run.depth for run in runs if run.method == "bsgp"] == [1, 2]
    sizes = {run.num_inducing: run.scale for run in runs if run.method == "svgp"}
    assert sizes == {100: 1.0, 250: 1.0, 500: 0.5, 1_000: 0.125, 2_000: 0.0625}


@BOTH
@pytest.mark.parametrize("records", [[], FOREIGN[1:3] + FOREIGN[4:]], ids=["none", "foreign"])
def test_nothing_is_shown_of_nothing(experiment, records):
    assert experiment.show(records, Paper()) == []


def test_training_is_drawn_with_a_line_per_method_and_size():
    records = [made_up(run) for run in TRAINING_TIME.plan(Choice())]
    paper = Paper(times=[*authors("naval", "bsgp", 1), *authors("naval", "svgp", 1, 1_000), *authors("naval", "x", 1)])
    drawing, sheet = shown(TRAINING_TIME, [*FOREIGN, *records], paper)
    naval, kin8nm = drawing.figure.axes
    assert (len(naval.lines), len(kin8nm.lines)) == (6 + 2, 6)
    assert naval.get_ylim()[1] < 8.0  # the authors' first steps are cut off
    assert num_points(naval)[:2] == [2, 2]  # without second zero, and without the end at which few runs are left
    assert len(sheet.rows) == len(records)
    assert {row[5] for row in sheet.rows} == {"1"}  # fold 3 has no curve
    assert {sheet.rows[row][:5] for row, _ in sheet.best} == {
        ("naval", "bsgp", "1", "100", "1"),
        ("kin8nm", "bsgp", "2", "100", "1"),
    }


def test_training_is_drawn_as_far_as_it_is_run():
    runs = TRAINING_TIME.plan(Choice(datasets=("naval",), methods=("bsgp", "svgp")))
    drawing, sheet = shown(TRAINING_TIME, [made_up(run) for run in runs if run.scale <= 1 / 32])
    (axes,) = drawing.figure.axes
    assert len(axes.lines) == 4
    assert len(sheet.rows) == 8
    broken = made_up(runs[0]) | {"test_mnll": float("nan")}  # a run that went wrong
    drawing, sheet = shown(TRAINING_TIME, [broken])
    assert not sheet.best


def test_training_is_averaged_over_folds_that_have_the_same_runs():
    choice = Choice(folds=(0, 1), datasets=("kin8nm",), methods=("bsgp",))
    records = [made_up(run) for run in TRAINING_TIME.plan(choice)]
    records += [made_up(UCIRun("kin8nm", 2, 2))]
    drawing, sheet = shown(TRAINING_TIME, records)
    assert "folds 0, 1" in drawing.caption
    assert {row[5] for row in sheet.rows} == {"2"}


def test_prediction_is_drawn_with_a_line_per_model():
    records = [made_up(run) for run in PREDICTION_TIME.plan(Choice())]
    drawing, sheet = shown(PREDICTION_TIME, [*FOREIGN, *records])
    (axes,) = drawing.figure.axes
    assert num_points(axes) == [2, 2, 5]
    assert {text.get_text() for text in axes.texts} >= {"8", "16", "M = 100", "M = 2,000"}
    assert len(sheet.rows) == 9
    assert "released no data" in drawing.caption


def test_prediction_is_drawn_as_far_as_it_is_run():
    records = [made_up(run) for run in PREDICTION_TIME.plan(Choice(methods=("svgp",)))[:2]]
    drawing, sheet = shown(PREDICTION_TIME, records)
    assert len(drawing.figure.axes[0].lines) == 1
    assert len(sheet.rows) == 2


@BOTH
def test_quick_runs_are_shown_only_where_there_are_no_others(experiment):
    quick = [made_up(run) for run in experiment.plan(Choice(quick=True))]
    drawing, sheet = shown(experiment, quick)
    assert "quick form" in drawing.caption
    whole = [made_up(run) for run in experiment.plan(Choice())]
    drawing, both = shown(experiment, quick + whole)
    assert "quick form" not in drawing.caption
    assert not set(sheet.rows) & set(both.rows)


def test_predictions_are_timed(folder, monkeypatch):
    monkeypatch.setattr(prediction_time, "NUM_DRAWS", (8, 256))  # each is compiled for
    settings = prediction_time.PredictionTimeRun("bsgp", num_inducing=5, dataset="yacht", scale=0.01)
    record = prediction_time.run(settings, str(folder))
    assert (record["method"], record["num_inducing"], record["num_test"]) == ("bsgp", 5, 62)
    assert [point["num_draws"] for point in record["points"]] == [8, 256]
    for point in record["points"]:
        assert np.isfinite([point["prediction_seconds"], point["test_mnll"]]).all()
        assert point["prediction_seconds"] >= 0
