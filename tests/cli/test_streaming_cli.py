"""`bsgp predict` and `bsgp evaluate` read tables in chunks, and results do not depend on where chunks end."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from unsampled_models import prior_draws

from bsgp.cli import inputs, main
from bsgp.data.tables import chunks as table_chunks
from bsgp.data.tables.columns import from_frame
from bsgp.estimators import BSGPClassifier, BSGPRegressor, load
from bsgp.estimators.prediction_table import prediction_columns
from bsgp.estimators.scoring import INTERVAL, evaluate, evaluate_chunks
from bsgp.posterior.metrics import coverage, error_rate, mean_auc, mnll, rmse

TINY = {"num_inducing": 6, "random_state": 0}
NUM_ROWS = 53
INPUTS = ["a", "b", "kind"]
MODELS = {
    "shallow": (BSGPRegressor, ["y"], {}),
    "both": (BSGPRegressor, ["y", "twice"], {}),
    "deep": (BSGPRegressor, ["y"], {"depth": 2}),
    "two": (BSGPClassifier, ["two"], {}),
    "three": (BSGPClassifier, ["three"], {}),
}


def table(num_rows=NUM_ROWS, seed=0):
    """A table whose text column `kind` looks like numbers in many chunks."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.standard_normal(num_rows), "b": rng.uniform(0, 3, num_rows)})
    frame["kind"] = rng.choice(["1", "2", "x"], num_rows, p=[0.6, 0.35, 0.05])
    frame["y"] = np.sin(2 * frame["a"]) + frame["b"] + 0.3 * rng.standard_normal(num_rows)
    frame["twice"] = 2 * frame["y"] + 100
    frame["two"] = np.where(frame["y"] > 1.5, "1", "low")
    frame["three"] = np.digitize(frame["y"], [1.0, 2.0])
    return frame


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with tables and a model of each kind."""
    folder = tmp_path_factory.mktemp("streaming")
    train = table(120, seed=1)
    for name, (kind, targets, options) in MODELS.items():
        y = train[targets[0]] if len(targets) == 1 else train[targets]
        with prior_draws(10):
            fitted = kind(**TINY, **options).fit(train[INPUTS], y)
        fitted.save(folder / name, about={"ignored": [one for one in train if one not in (*INPUTS, *targets)]})
    table().to_csv(folder / "new.csv", index=False)
    table().sort_values("two").to_csv(folder / "sorted.csv", index=False)
    return folder


@pytest.fixture
def ten_at_a_time(monkeypatch):
    return lambda: monkeypatch.setattr(table_chunks, "CHUNK_ROWS", 10)


def predicted(work, model, source="new.csv"):
    out = work / "out.csv"
    main(["predict", str(work / model), str(work / source), "--out", str(out), "-q"])
    return pd.read_csv(out)


def evaluated(work, capsys, model, source="new.csv"):
    main(["evaluate", str(work / model), str(work / source), "--json"])
    return json.loads(capsys.readouterr().out)


def held_out(model, frame):
    y = frame[list(model.target_names_)].to_numpy()
    return from_frame(frame[INPUTS]), y[:, 0] if y.shape[1] == 1 else y


# -- predicting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["shallow", "both", "two", "three"])
def test_chunks_do_not_change_predictions(work, ten_at_a_time, model):
    whole = predicted(work, model)
    ten_at_a_time()
    chunked = predicted(work, model)
    assert len(chunked) == NUM_ROWS
    pd.testing.assert_frame_equal(chunked, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_those_of_the_estimator(work, model):
    fitted, X = load(work / model), from_frame(table()[INPUTS])
    columns = prediction_columns(fitted, X)
    if isinstance(fitted, BSGPClassifier):
        expected = [*fitted.predict_proba(X).T, fitted.predict(X)]
    else:
        mean, std = fitted.predict(X, return_std=True)
        quantiles = fitted.predict_quantiles(X, (0.05, 0.5, 0.95)).reshape(NUM_ROWS, -1, 3)
        mean, std = mean.reshape(NUM_ROWS, -1), std.reshape(NUM_ROWS, -1)
        targets = range(mean.shape[1])
        expected = [part for at in targets for part in (mean[:, at], std[:, at], *quantiles[:, at].T)]
    for found, wanted in zip(columns.values(), [*expected, fitted.extrapolation(X)], strict=True):
        if wanted.dtype.kind == "f":
            assert_allclose(found, wanted, rtol=1e-9)  # two of them come from one pass of the rows
        else:
            assert (found == wanted).all()


def test_hidden_layers_are_drawn_with_another_key_in_every_chunk(work):
    """Otherwise the first rows of all chunks would share their noise."""
    fitted, X = load(work / "deep"), from_frame(table()[INPUTS])
    first, again, second = (prediction_columns(fitted, X, chunk)["mean"] for chunk in (0, 0, 1))
    assert (first == again).all()
    assert (first != second).all()
    assert_allclose(first, second, atol=0.5)  # a few draws, and so a rough mean


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_folders_of_columnar_files_are_tables(work, capsys, ending):
    folder = work / f"parts-{ending}"
    folder.mkdir()
    for at, part in enumerate(np.array_split(np.arange(NUM_ROWS), 3)):
        one = table().iloc[part]
        one.to_parquet(folder / f"{at}.parquet") if ending == "parquet" else one.to_feather(folder / f"{at}.arrow")
    pd.testing.assert_frame_equal(predicted(work, "shallow", folder.name), predicted(work, "shallow"), rtol=1e-9)
    there = [evaluated(work, capsys, "two", source)["mnll"] for source in (folder.name, "new.csv")]
    assert_allclose(there[0], there[1], rtol=1e-9)


def test_arrow_files_from_fit_to_scores(work, capsys):
    """Arrow stores categories as dictionaries, which stay text even if all of them look like numbers."""
    for name, frame in (("train.arrow", table(120, seed=1)), ("new.feather", table())):
        frame["kind"] = frame["kind"].replace("x", "3").astype("category")
        frame.to_feather(work / name)
    main(["fit", str(work / "train.arrow"), "--target", "y", "--ignore", "twice,two,three", "--stream", "--quiet",
          "--effort", "0.02", "--num-inducing", "6", "--out", str(work / "arrow")])  # fmt: skip
    assert {one.name: one.kind for one in load(work / "arrow").schema_.features}["kind"] == "category"
    assert len(predicted(work, "arrow", "new.feather")) == NUM_ROWS
    scores = evaluated(work, capsys, "arrow", "new.feather")
    assert scores["rmse"] < scores["baselines"]["constant"]["rmse"]


# -- scoring -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_scores_are_those_of_the_estimator(work, model):
    """`score` makes one pass through the draws; the estimators make one call per number."""
    fitted = load(work / model)
    X, y = held_out(fitted, table())
    if isinstance(fitted, BSGPClassifier):
        codes, probability = fitted.codes(y), fitted.predict_proba(X)
        auc = mean_auc(codes, probability)
        expected = {"mnll": -fitted.log_density(X, y).mean(), "error": error_rate(codes[:, None], probability)}
        expected["auc"] = auc
    else:
        low, high = np.moveaxis(fitted.predict_quantiles(X, INTERVAL), -1, 0)
        mean, scale = fitted.predict(X), fitted.target_scale
        expected = {
            "mnll": mnll(fitted.log_density(X, y)),
            "nrmse": rmse(y / scale, mean / scale),
            "rmse": rmse(y, mean),
            "crps": fitted.crps(X, y).mean(),
            "coverage90": coverage(y, low, high),
        }
    found = evaluate(fitted, X, y).scores
    assert list(found) == list(expected)
    assert_allclose(list(found.values()), list(expected.values()), rtol=1e-9)


@pytest.mark.parametrize("model", ["both", "two", "three"])
@pytest.mark.parametrize("source", ["new.csv", "sorted.csv"])
def test_chunks_do_not_change_scores(work, capsys, ten_at_a_time, model, source):
    """Not even if a chunk holds a single class."""
    whole = evaluated(work, capsys, model, source)
    ten_at_a_time()
    chunked = evaluated(work, capsys, model, source)
    assert whole["rows"] == chunked["rows"] == NUM_ROWS
    for name, value in whole.items():
        if name == "baselines":
            for baseline, scores in value.items():
                assert_allclose(list(chunked[name][baseline].values()), list(scores.values()), rtol=1e-9)
        elif name != "crps":  # estimated from other draws in every chunk
            assert_allclose(chunked[name], value, rtol=1e-9)


def test_a_sure_classifier_keeps_its_digits(work):
    """A float32 probability near 1 has few digits left for the log-probability of the other class."""
    fitted = load(work / "two")
    X, y = held_out(fitted, table().assign(a=30.0, b=300.0))
    log_density = fitted.log_density(X, y)
    scores = evaluate_chunks(fitted, [(X.take(slice(0, 20)), y[:20]), (X.take(slice(20, None)), y[20:])]).scores
    assert_allclose(scores["mnll"], -log_density.mean(), rtol=1e-9)


# -- messages ----------------------------------------------------------------------------------------------------


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_errors_name_the_rows_of_their_chunk(work, capsys, ten_at_a_time):
    ten_at_a_time()
    bad = table().astype({"b": object})
    bad.loc[33, "b"] = "many"
    bad.loc[12, "two"] = "medium"
    bad.to_csv(work / "bad.csv", index=False)
    line = refused(capsys, "predict", work / "shallow", work / "bad.csv", "--out", work / "never.csv")
    assert "In rows 31 to 40, counted from 1: `b` must" in line
    assert "row 4" in line
    assert not (work / "never.csv").exists()
    assert not list(work.glob(".*.part"))
    line = refused(capsys, "evaluate", work / "two", work / "bad.csv", "--json")
    assert "In rows 11 to 20" in line
    assert "medium" in line


def test_a_column_is_mentioned_once(work, caplog, ten_at_a_time):
    ten_at_a_time()
    gaps = table()
    gaps.loc[::3, "a"] = np.nan
    gaps.to_csv(work / "gaps.csv", index=False)
    with caplog.at_level(logging.WARNING, "bsgp"):
        main(["predict", str(work / "shallow"), str(work / "gaps.csv"), "--out", str(work / "filled.csv")])
    assert sum("`a`" in record.getMessage() for record in caplog.records) == 1


def test_progress_is_logged_unless_quiet(work, capsys, caplog, monkeypatch, ten_at_a_time):
    ten_at_a_time()
    monkeypatch.setattr(inputs, "PROGRESS_SECONDS", 0.0)
    arguments = ["predict", str(work / "shallow"), str(work / "new.csv"), "--out", str(work / "out.csv")]
    main(arguments)
    assert "Processed 20 rows of new.csv ..." in caplog.messages
    caplog.clear()
    main([*arguments, "--quiet"])
    assert not caplog.messages
    assert capsys.readouterr().out.count("Wrote") == 1


def test_reports_on_very_many_rows_use_a_sample(work, caplog, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_REPORT_ROWS", 40)
    (taken, y), sample_of = inputs.read_test_table(load(work / "two"), work / "new.csv")
    assert (taken.num_rows, len(y)) == (40, 40)
    assert sample_of == f"the {NUM_ROWS} rows in new.csv"
    assert caplog.messages == [f"The report uses a random sample: 40 of {sample_of}."]


def test_columns_of_weights_and_known_noise_are_no_inputs(tmp_path, capsys):
    frame = table(40, seed=4)
    frame["w"], frame["sd"] = np.arange(40) % 4, 0.2
    frame.loc[frame["w"] == 0, "y"] = np.nan  # as if absent
    frame[[*INPUTS, "y", "w", "sd"]].to_csv(tmp_path / "train.csv", index=False)
    fit = ["fit", str(tmp_path / "train.csv"), "--target", "y", "--num-inducing", "6", "-q", "--out"]
    with prior_draws(4):
        main([*fit, str(tmp_path / "model"), "--weights", "w", "--noise-std", "sd"])
    model = load(tmp_path / "model")
    assert set(model.schema_.names) == set(INPUTS)
    assert model.num_rows_ == 30
    assert (model.about_["weights"], model.about_["noise_std"]) == ("w", ["sd"])
    kept = frame[frame["w"] > 0]
    assert model.target_mean[0] == pytest.approx(np.average(kept["y"], weights=kept["w"]))
    main(["predict", str(tmp_path / "model"), str(tmp_path / "train.csv"), "-q", "--out", str(tmp_path / "out.csv")])
    assert len(pd.read_csv(tmp_path / "out.csv")) == 40
    kept[[*INPUTS, "y", "sd"]].to_csv(tmp_path / "test.csv", index=False)
    main(["evaluate", str(tmp_path / "model"), str(tmp_path / "test.csv"), "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "two", "--ignore", "y", "--noise-std", "b"], "`--noise-std` must go with a regression, got a cl"),
        (
            ["--target", "y", "--noise-std", "b", "--stream"],
            "`--noise-std` must have all rows in memory, got rows on d",
        ),
        (["--target", "y", "--weights", "a"], "`a` must hold finite weights of at least zero, got -"),
        (["--target", "y", "--weights", "mass"], "The table must have the columns that you name, got no `mass`"),
    ],
)
def test_odd_columns_of_weights_and_known_noise_are_refused(work, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["fit", str(work / "new.csv"), "-q", "--out", str(tmp_path / "model"), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
