"""The banana experiment: its plan, its figure from records of any state, and a toy run."""

import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bsgp.experiments.banana import BINS, HEADER, Settings, nearest_neighbour, plan, run, show
from bsgp.experiments.experiment import Choice, Drawing, Sheet, load_experiment, load_kind
from bsgp.experiments.paper import Paper
from bsgp.experiments.uci import UCIRun
from bsgp.inducing import INDUCING_PRIORS


def record(prior="normal", probability=None, in_view=0.5, **settings):
    """As a run leaves it in the results."""
    one = Settings(prior, **settings)
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, (40, 2)).round(3)
    across = np.tile(np.linspace(0, 1, BINS), (BINS, 1))
    return {
        "key": one.key, "kind": one.kind, "inducing_prior": prior, "num_inducing": one.num_inducing,
        "seed": one.seed, "scale": one.scale, "num_train": 40, "num_test": 100, "num_draws": 8, "evaluations": 10,
        "test_error": 0.125, "test_mnll": 0.25, "test_auc": 0.95, "extent": [-2.5, 2.5, -3.0, 3.0],
        "probability": (across if probability is None else np.full((BINS, BINS), probability)).tolist(),
        "inducing_counts": rng.integers(0, 3, (BINS, BINS)).tolist(), "nearest_neighbour": 0.5,
        "nearest_neighbour_in_view": 0.4 if in_view else None, "share_in_view": in_view,
        "points": points.tolist(), "labels": (points[:, 0] > 0).astype(int).tolist(),
    }  # fmt: skip


def shown(records) -> tuple[Drawing, Sheet]:
    drawing, sheet = show(records, Paper())
    assert isinstance(drawing, Drawing)
    assert isinstance(sheet, Sheet)
    FigureCanvasAgg(drawing.figure).draw()  # what is wrong in a figure shows when it is drawn
    return drawing, sheet


FOREIGN = {"key": UCIRun("yacht", 0).key, "dataset": "yacht", "fold": 0, "method": "bsgp", "test_mnll": -0.3}


def test_it_is_an_experiment_and_a_kind():
    assert load_experiment("banana").plan is plan
    assert load_kind("banana").Settings is Settings


def test_the_plan_has_every_prior_once():
    runs = plan(Choice())
    assert [one.inducing_prior for one in runs] == list(INDUCING_PRIORS)
    quick = plan(Choice(quick=True))
    assert all(one.scale <= 0.05 for one in quick)
    assert len({one.key for one in [*runs, *quick, *plan(Choice(seed=1))]}) == 3 * len(INDUCING_PRIORS)


@pytest.mark.parametrize("choice", [{"datasets": ("yacht",)}, {"methods": ("svgp",)}, {"depths": (2, 3)}])
def test_a_choice_without_it_gives_no_runs(choice):
    assert plan(Choice(**choice)) == []


def test_a_choice_with_it_gives_all_runs():
    chosen = Choice(datasets=("yacht", "banana"), methods=("bsgp",), depths=(1,), folds=(0,))
    assert plan(chosen) == plan(Choice())


def test_nothing_is_shown_of_nothing():
    assert show([], Paper()) == []
    assert show([FOREIGN], Paper()) == []


def test_a_figure_with_a_column_for_each_prior_and_a_table():
    records = [FOREIGN, *(record(prior) for prior in INDUCING_PRIORS), record("normal", scale=0.05)]
    drawing, sheet = shown(records)
    assert len(drawing.figure.axes) == 2 * len(INDUCING_PRIORS) + 1  # and the colour bar
    assert "same chain" in drawing.caption
    assert "trial" not in drawing.caption
    assert len(sheet.rows) == len(INDUCING_PRIORS)
    assert all(len(row) == len(sheet.header) == len(HEADER) for row in sheet.rows)
    assert sheet.rows[0][:4] == ("Normal", "0.1250", "0.2500", "0.9500")


def test_priors_that_were_not_run_are_named_and_unknown_ones_shown():
    drawing, sheet = shown([record("strauss"), record("of tomorrow")])
    assert len(drawing.figure.axes) == 2 * 2 + 1
    assert [row[0] for row in sheet.rows[:2]] == ["Strauss", "of tomorrow"]
    assert {row[1] for row in sheet.rows[2:]} == {"not run"}
    assert all(len(row) == len(sheet.header) for row in sheet.rows)


def test_runs_of_different_settings_do_not_stand_side_by_side():
    quick = [record(prior, scale=0.05) for prior in INDUCING_PRIORS]
    drawing, _ = shown(quick)
    assert "trial" in drawing.caption
    drawing, _ = shown([*quick, record("uniform")])  # the full run, although it is alone
    assert len(drawing.figure.axes) == 3


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
def test_a_classifier_without_a_boundary_and_inducing_inputs_that_are_all_gone(probability):
    empty = record(probability=probability, in_view=0.0) | {"inducing_counts": np.zeros((BINS, BINS), int).tolist()}
    _, sheet = shown([empty])
    assert sheet.rows[0][5] == ""


def test_nearest_neighbours():
    Z = np.asarray([[[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]])
    everyone = np.ones((1, 3), bool)
    far = np.sqrt(3.0**2 + 3.0**2)
    assert nearest_neighbour(Z, everyone) == pytest.approx((1.0 + 1.0 + far) / 3)
    assert nearest_neighbour(Z, np.asarray([[True, True, False]])) == pytest.approx(5.0)
    assert nearest_neighbour(Z, np.asarray([[True, False, False]])) is None


def test_a_toy_run_is_sensible_and_can_be_shown(folder):
    settings = Settings("strauss", num_inducing=5, scale=0.01)
    found = run(settings, str(folder))
    assert (found["num_train"], found["num_test"], len(found["points"])) == (400, 4_900, 400)
    assert 0 < found["test_error"] < 0.5
    assert 0.6 < found["test_auc"] <= 1
    assert 0 < found["test_mnll"] < np.log(2)
    probability, counts = np.asarray(found["probability"]), np.asarray(found["inducing_counts"])
    assert probability.shape == counts.shape == (BINS, BINS)
    assert ((probability >= 0) & (probability <= 1)).all()
    assert counts.sum() == round(found["share_in_view"] * found["num_draws"] * 5)
    assert found["nearest_neighbour"] > 0
    assert found["evaluations"] > 0
    shown([json.loads(json.dumps({"key": settings.key, "kind": settings.kind, **found}))])
