"""The banana experiment: its plan, its figure of complete and incomplete records, and a short run."""

import json

import jax.random as jr
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial import cKDTree
from sklearn.metrics import log_loss, roc_auc_score

from bsgp.experiments.datasets.named import load_named
from bsgp.experiments.experiment import Choice, Drawing, Sheet, load_experiment, load_kind
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.kinds.banana import BINS, BananaRun, nearest_neighbour, run
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.experiments.paper.banana import BANANA, HEADER, plan, show
from bsgp.models.inducing_priors import INDUCING_PRIORS


def record(prior="normal", probability=None, in_view=0.5, **settings):
    """A record like that of a run."""
    one = BananaRun(prior, **settings)
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
    FigureCanvasAgg(drawing.figure).draw()  # some faults appear only when a figure is drawn
    return drawing, sheet


FOREIGN = {"key": UCIRun("yacht", 0).key, "dataset": "yacht", "fold": 0, "method": "bsgp", "test_mnll": -0.3}


def test_it_is_an_experiment_and_a_kind():
    assert load_experiment("banana") is BANANA
    assert load_kind("banana").Settings is BananaRun


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
def test_a_classifier_without_a_boundary_and_without_inducing_inputs_in_view(probability):
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


def test_the_record_of_a_short_run_follows_from_its_posterior(folder, fitted):
    settings = BananaRun("strauss", num_inducing=5, scale=0.01)
    found = json.loads(json.dumps(run(settings, str(folder))))
    data, (fit,) = load_named("banana", folder), fitted
    is_classic = data.other["gp400"] == 1
    mean, sd = data.X[is_classic].mean(axis=0), data.X[is_classic].std(axis=0)
    X, X_test, y_test = (data.X[is_classic] - mean) / sd, (data.X[~is_classic] - mean) / sd, data.y[~is_classic, 0]
    assert (found["num_train"], found["num_test"]) == (400, 4_900)
    assert found["evaluations"] == fit.history.evaluations
    assert_allclose(found["points"], X, atol=1e-3)
    assert_array_equal(found["labels"], data.y[is_classic, 0])

    def probability(rows):  # one layer draws nothing for a prediction, so any key gives the same
        return np.asarray(fit.posterior.predict(rows, jr.key(9)).mean)[:, 0]

    p = probability(X_test)
    assert_allclose(found["test_error"], np.mean((p > 0.5) != y_test))
    assert_allclose(found["test_mnll"], log_loss(y_test, p))
    assert_allclose(found["test_auc"], roc_auc_score(y_test, p))
    left, right, bottom, top = found["extent"]
    assert_allclose([left, top], [X[:, 0].min() - 0.15 * np.ptp(X[:, 0]), X[:, 1].max() + 0.15 * np.ptp(X[:, 1])])
    across, up = (low + (high - low) * (np.arange(BINS) + 0.5) / BINS for low, high in ((left, right), (bottom, top)))
    corner = np.asarray([[across[i], up[j]] for j in (0, 7) for i in range(BINS)])  # two rows of the picture
    assert_allclose(np.asarray(found["probability"])[[0, 7]].ravel(), probability(corner), atol=5.1e-4)

    Z = np.asarray(fit.posterior.model.layers[0].Z).reshape(-1, 5, 2)
    x, y = Z.reshape(-1, 2).T
    is_inside = (left <= x) & (x <= right) & (bottom <= y) & (y <= top)
    assert found["num_draws"] == len(Z)
    assert_allclose(found["share_in_view"], is_inside.mean())
    counts = np.asarray(found["inducing_counts"])
    assert counts.sum() == is_inside.sum()
    in_column = is_inside & (x >= left + 20 / BINS * (right - left)) & (x < left + 21 / BINS * (right - left))
    assert counts[:, 20].sum() == in_column.sum()
    assert_allclose(found["nearest_neighbour"], np.mean([cKDTree(one).query(one, 2)[0][:, 1] for one in Z]))
    shown([{"key": settings.key, "kind": settings.kind, **found}])
