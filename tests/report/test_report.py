"""The report: its content is complete, its numbers are right, hostile names do no harm, and a browser shows it."""

import base64
import copy
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas as pd
import pytest
from unsampled_models import prior_draws

from bsgp.cli import inputs, main
from bsgp.data.encoding.feature import Feature
from bsgp.data.tables.columns import from_frame
from bsgp.estimators import BSGPClassifier, BSGPRegressor, load
from bsgp.estimators.scoring import evaluate
from bsgp.models.kernels import AbstractKernel, Linear
from bsgp.posterior.posterior import Posterior, evenly_spaced
from bsgp.report import figures, page, write, write_report
from bsgp.report.chains import chain_plots
from bsgp.report.effects import MAX_DRAWS, _input_values, partial_effects, relevance
from bsgp.report.extrapolation import measure_extrapolation
from bsgp.report.outcomes import outcomes
from bsgp.report.quality import (
    COVERAGE_LEVELS,
    RegressionFit,
    TargetFit,
    _confusion,
    _coverage_remark,
    _reliability,
    measure,
)
from bsgp.report.scores import METRICS, baseline_remarks, headline, score_rows
from bsgp.report.text import clean, digits, duration, listed, number

SCRIPT = "<script>alert(1)</script>"
BREAKOUT = '"><img src=x onerror=alert(1)>'
MATHS = r"$\frac$ {{ 7*7 }} `tick"
LONG = "long " + 300 * "x"
EMOJI, CJK = "age \N{GRINNING FACE}\N{ZERO WIDTH JOINER}", "\u5e74\u9f62\u202e\x07\x00"
SECTIONS = (
    "summary",
    "metrics",
    "calibration",
    "predictions",
    "extrapolation",
    "relevance",
    "effects",
    "convergence",
    "settings",
)
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "div", "p", "h1", "h2", "h3", "nav", "a", "main",
    "section", "dl", "dt", "dd", "ul", "li", "code", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
    "img", "figcaption", "footer",
}  # fmt: skip
TINY: dict[str, Any] = {"num_inducing": 8, "random_state": 0}
NUM_TRAIN = 60


class Page(HTMLParser):
    """Tags with their attributes, and the text that a reader sees."""

    def __init__(self, path):
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._inside = ""
        self.feed(self.html)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside != "style":
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    @property
    def pictures(self):
        """The SVGs, as text."""
        prefix = "data:image/svg+xml;base64,"
        sources = [image["src"] for image in self.all("img")]
        assert all(source.startswith(prefix) for source in sources)
        return [base64.b64decode(source.removeprefix(prefix)).decode("utf-8") for source in sources]


def mixed_table(num_rows=100):
    """A table with every kind of column, under hostile names."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=num_rows)
    level = rng.choice([SCRIPT, CJK, "plain"], num_rows)
    flag = rng.random(num_rows) < 0.5
    holes = np.where(rng.random(num_rows) < 0.2, np.nan, rng.gamma(2.0, 1e5, num_rows))
    frame = pd.DataFrame({MATHS: x, BREAKOUT: level, EMOJI: flag, LONG: holes, "constant": 1.0})
    return frame, np.sin(2.0 * x) + (level == "plain") + 0.1 * rng.normal(size=num_rows)


@pytest.fixture(scope="module")
def regression():
    frame, y = mixed_table()
    with prior_draws(80):
        model = BSGPRegressor(**TINY).fit(frame[:NUM_TRAIN], y[:NUM_TRAIN])
    model.target_names_ = (SCRIPT,)
    return model, (from_frame(frame[NUM_TRAIN:]), y[NUM_TRAIN:])


@pytest.fixture(scope="module")
def classification():
    frame, y = mixed_table()
    labels = np.array([BREAKOUT, CJK, MATHS])[np.digitize(y, [0.0, 0.8])]
    with prior_draws(10):
        model = BSGPClassifier(**TINY).fit(frame[:NUM_TRAIN], labels[:NUM_TRAIN])
    return model, (from_frame(frame[NUM_TRAIN:]), labels[NUM_TRAIN:])


@pytest.fixture(scope="module")
def deep():
    """Two targets, two layers, two chains."""
    frame, y = mixed_table()
    Y = np.stack([y, 1e6 * frame[MATHS].to_numpy()], axis=1)
    with prior_draws(10):
        model = BSGPRegressor(depth=2, num_chains=2, **TINY).fit(frame[:NUM_TRAIN], Y[:NUM_TRAIN])
    return model, (from_frame(frame[NUM_TRAIN:]), Y[NUM_TRAIN:])


@pytest.fixture(scope="module")
def regression_page(regression, tmp_path_factory):
    path = tmp_path_factory.mktemp("regression") / "report.html"
    assert write_report(regression[0], path, regression[1]) == path
    return path


@pytest.fixture(scope="module")
def class_page(classification, tmp_path_factory):
    return write_report(classification[0], tmp_path_factory.mktemp("classes") / "report.html", classification[1])


@pytest.fixture(scope="module")
def deep_page(deep, tmp_path_factory):
    return write_report(deep[0], tmp_path_factory.mktemp("deep") / "report.html", deep[1])


@pytest.fixture(params=["regression_page", "class_page", "deep_page"])
def any_page(request):
    return request.getfixturevalue(request.param)


# -- what is on the page ---------------------------------------------------------------------------------------


def test_sections_come_in_order(any_page):
    found = Page(any_page)
    assert [name for name in found.ids if name in SECTIONS] == list(SECTIONS)
    assert found.all("html")[0]["lang"] == "en"
    assert len(found.all("main")) == len(found.all("h1")) == 1
    assert any(meta.get("name") == "viewport" for meta in found.all("meta"))
    assert all(len(image["alt"]) > 20 for image in found.all("img"))


def test_headline_verdict_and_scores(regression, regression_page):
    model, held_out = regression
    text = Page(regression_page).text
    assert model.diagnostics_.verdict.replace("`", "") in text
    assert f"Sampling: {model.diagnostics_.grade}" in text
    for key, value in evaluate(model, *held_out).scores.items():
        assert METRICS[key].label in text
        assert METRICS[key].show(value) in text
    assert all(name in text for name in evaluate(model, *held_out).baselines)
    assert "On 40 test rows the RMSE is" in text
    assert "only 40 rows" in text
    assert "is left out: constant" in text
    assert "filled with the median" in text


def test_confusion_table_counts_every_row(classification, class_page):
    cells = re.search(r'<table class="confusion">(.*?)</table>', class_page.read_text("utf-8"), re.S)
    assert cells is not None
    assert sum(int(count) for count in re.findall(r"<td[^>]*>(\d+)</td>", cells[1])) == classification[1][0].num_rows


def test_rows_far_outside_the_data_are_counted_and_their_errors_compared(regression, monkeypatch):
    model, (X, y) = regression
    scores, trained = np.where(np.arange(40) < 12, 0.7, np.linspace(0.0, 0.19, 40)), np.linspace(0.0, 0.2, 60)
    monkeypatch.setattr(BSGPRegressor, "extrapolation", lambda *_: scores)
    monkeypatch.setattr(Posterior, "extrapolation", lambda *_: trained)
    found = measure_extrapolation(model, X, y)
    errors = (model.predict(X) - y) ** 2
    far, near = (number(float(np.sqrt(one.mean()))) for one in (errors[:12], errors[12:]))
    assert found.text == (
        "30.0% of the test rows score higher than all of 60 training rows: they extrapolate. About 1.6% would if test "
        f"rows were like training rows. The RMSE is {far} there, and {near} elsewhere."
    )
    assert sum(band.num_rows for band in found.bands) == 40
    assert (found.bands[-1].label, found.bands[-1].num_rows, found.bands[-1].values[0]) == ("0.5 to 1", 12, far)
    assert found.share_tested.sum() == pytest.approx(1.0)
    assert found.share_trained.sum() == pytest.approx(1.0)
    monkeypatch.setattr(BSGPRegressor, "extrapolation", lambda *_: np.full(40, 0.1))
    assert measure_extrapolation(model, X, y).text.endswith("60 training rows: none extrapolates.")


def test_deep_report_says_whose_lengthscales(deep_page):
    text = Page(deep_page).text
    assert "in the first of 2 layers" in text
    assert "standard deviations from their training means" in text
    assert "standard deviations" in "".join(Page(deep_page).pictures)


def test_report_without_test_table(regression, tmp_path):
    model = copy.copy(regression[0])
    model.likelihood_power = 0.5
    found = Page(write_report(model, tmp_path / "new folder" / "report.html"))
    assert "likelihood to the power of 0.5" in found.text
    assert "No test table was given: pass --test" in found.text
    assert not {"calibration", "predictions", "extrapolation"} & set(found.ids)
    assert set(found.ids) > {"metrics", "relevance", "effects", "convergence", "settings"}


def test_loaded_model_has_the_same_report(regression, regression_page, tmp_path):
    model, held_out = regression
    model.save(tmp_path / "model", about={})
    again = write_report(load(tmp_path / "model"), tmp_path / "report.html", held_out)
    assert again.read_bytes() == regression_page.read_bytes()


def test_source_is_named(regression, tmp_path):
    regression[0].save(tmp_path / "model", about={"source": f"a&b {SCRIPT}.csv", "ignored": ["id"]})
    text = Page(write_report(load(tmp_path / "model"), tmp_path / "report.html")).text
    assert f"60 rows of a&b {SCRIPT}.csv" in text
    assert "Ignored as requested: id." in text


def test_only_settings_that_were_changed_are_listed(regression_page):
    settings = Page(regression_page).text.partition("Versions")[0].rpartition("Settings")[2]
    assert "".join(settings.split()) == "num_inducing8random_state0Allothersettingshavetheirdefaultvalues."


def test_the_page_says_that_its_test_rows_are_a_sample(regression, regression_page, tmp_path, monkeypatch):
    frame, y = mixed_table()
    frame.assign(**{SCRIPT: y}).to_parquet(tmp_path / "a&b.parquet")
    regression[0].save(tmp_path / "model", about={})
    monkeypatch.setattr(inputs, "MAX_REPORT_ROWS", 40)
    main(["report", str(tmp_path / "model"), "--test", str(tmp_path / "a&b.parquet"), "--quiet"])
    text = Page(tmp_path / "model" / "report.html").text
    assert "On 40 test rows" in text
    assert text.count("The scores are computed on a random sample: 40 of the 100 rows in a&b.parquet.") == 2
    assert "random sample" not in Page(regression_page).text


# -- hostile names ---------------------------------------------------------------------------------------------


def test_names_are_text_and_nothing_else(any_page):
    found = Page(any_page)
    assert {tag for tag, _ in found.tags} <= TAGS
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert not [one for one in found.all("img") if not one["src"].startswith("data:")]
    assert SCRIPT in found.text
    assert BREAKOUT in found.text
    assert MATHS in found.text, "neither a template nor mathtext nor code"
    assert LONG not in found.html
    assert "long xxx" in found.text
    assert not set("\x00\x07\u202e\u200d") & set(found.html)
    assert "\u5e74\u9f62" in found.text
    assert "\N{GRINNING FACE}" in found.text


def test_pictures_are_inert_and_whole(any_page):
    pictures = Page(any_page).pictures
    assert len(pictures) >= 9
    drawn = ""
    for svg in pictures:
        root = ElementTree.fromstring(svg)
        names = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert not names & {"script", "image", "foreignObject", "a", "iframe", "animate", "set"}
        drawn += "".join(root.itertext())
    assert r"$\frac$" in drawn, "a dollar is a dollar"
    assert "\u5e74\u9f62" in drawn
    assert "\N{GRINNING FACE}" in drawn


def test_nothing_is_referred_to_outside(any_page):
    found = Page(any_page)
    policy = [one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    references = [value for _, one in found.tags for key, value in one.items() if key in ("src", "href", "srcset")]
    assert all(value.startswith(("data:image/svg+xml;base64,", "#")) for value in references)
    assert {value[1:] for value in references if value.startswith("#")} <= set(found.ids)
    style = "".join(re.findall(r"<style>(.*?)</style>", found.html, re.S))
    assert "url(" not in style
    assert "@import" not in style
    for svg in found.pictures:
        inside = re.findall(r'(?:href|src)="([^"]*)"', svg) + re.findall(r"url\(([^)]*)\)", svg)
        assert all(value.strip("'\"").startswith("#") for value in inside)
        assert "<!DOCTYPE" not in svg


def test_drawing_leaves_matplotlib_as_it_was(regression):
    import matplotlib

    before = dict(matplotlib.rcParams)
    matplotlib.rcParams["text.usetex"] = True  # a user's own settings
    try:
        figures.energy_trace(regression[0].energy_)
        assert matplotlib.rcParams["text.usetex"]
    finally:
        matplotlib.rcParams["text.usetex"] = before["text.usetex"]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a\n b\tc", "a b c"), ("a\x00b\ud800c\uffff", "a\ufffdb\ufffdc\ufffd"), ("x" * 200, "x" * 79 + "…"), (3, "3")],
)
def test_clean_names(name, expected):
    assert clean(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`a<b` is left out", "<code>a&lt;b</code> is left out"),
        ("`a`b` is <left> out", "`a`b` is &lt;left&gt; out"),
        ("none", "none"),
    ],
)
def test_ticked_text_is_code_and_escaped(text, expected):
    assert str(page.ticked(text)) == expected


def test_numbers_as_people_write_them():
    assert [number(v) for v in (0.0, 1964.0, 123456.7, 0.12345, 1e-9, np.nan)] == [
        "0", "1964", "123,457", "0.1235", "1e-09", "\N{EN DASH}",
    ]  # fmt: skip
    assert [digits(v) for v in (13.5, 9496.2, -0.5)] == ["13.50", "9,496", "-0.5000"]
    assert [duration(v) for v in (3.21, 59.0, 125.0, 7260.0)] == ["3.2 s", "59 s", "2 min 5 s", "2 h 1 min"]
    assert listed(range(10), most=2) == "0, 1 and 8 more"


# -- the numbers -----------------------------------------------------------------------------------------------


def test_calibration_agrees_with_the_scores(regression):
    model, held_out = regression
    found = measure(model, *held_out)
    assert isinstance(found.detail, RegressionFit)
    (target,) = found.detail.targets
    assert target.pit_counts.sum() == held_out[0].num_rows
    assert target.coverage[np.argmin(np.abs(COVERAGE_LEVELS - 0.9))] == pytest.approx(
        evaluate(model, *held_out).scores["coverage90"]
    )
    inside = (target.actual >= target.low) & (target.actual <= target.high)
    assert inside.mean() == pytest.approx(evaluate(model, *held_out).scores["coverage90"])
    np.testing.assert_array_equal(target.actual, held_out[1])
    np.testing.assert_allclose(target.predicted, model.predict(held_out[0]))


def test_relevance_is_variance_over_squared_lengthscale(regression):
    model = regression[0]
    found = relevance(model)
    assert found is not None
    assert set(found.columns) == set(model.schema_.names)
    assert (np.diff(found.median) <= 0).all()
    assert (found.low <= found.median).all()
    assert (found.median <= found.high).all()

    spread = model.background_.var(axis=0)
    weights = spread / np.asarray(model.posterior_.model.layers[0].kernel.lengthscales)[0] ** 2
    ours = weights[:, model.schema_.columns_of(BREAKOUT)].sum(axis=1) / weights.sum(axis=1)
    assert found.median[found.columns.index(BREAKOUT)] == pytest.approx(np.median(ours))


def test_partial_effects_are_averages_of_predictions(regression):
    model = regression[0]
    schema, background = model.schema_, model.background_
    posterior = model.posterior_.subset(MAX_DRAWS)
    assert posterior.num_draws == MAX_DRAWS
    rows = background[evenly_spaced(len(background), 40)]
    effects = partial_effects(model, schema.names)
    assert [effect.name for effect in effects] == [clean(name) for name in schema.names]
    levels = (None, schema.features[1].categories, (False, True), None)
    for name, effect, some in zip(schema.names, effects, levels, strict=True):
        values = some or tuple(effect.grid)
        assert len(values) == len(effect.lines[0].mean)
        for k in (0, len(values) - 1):
            changed = rows.copy()
            changed[:, schema.columns_of(name)] = schema.encode_values(name, values[k : k + 1])
            mean = posterior.predict(changed, jr.key(3)).mean
            expected = model._units.inverse(mean).mean()
            assert effect.lines[0].mean[k] == pytest.approx(expected)
            assert effect.lines[0].low[k] <= effect.lines[0].high[k]
    feature = schema.features[3]  # the one with missing values
    assert feature.has_missing
    assert ((effects[3].seen >= feature.low) & (effects[3].seen <= feature.high)).all()


def test_grid_of_a_column_that_hardly_varies():
    feature = Feature("x", "number", mean=0.02, scale=0.14, low=0.0, high=0.0)
    found = _input_values(feature, np.array([[-0.143], [7.0]]))
    assert (np.diff(found.values) > 0).all()
    assert found.values[0] < feature.mean < found.values[-1]
    assert len(found.seen) == 1


def test_rare_categories_are_not_drawn():
    names = tuple(f"{k:02d}" for k in range(20))
    feature = Feature("x", "category", names, tuple((20.0 - k) / 210.0 for k in range(20)))
    found = _input_values(feature, np.zeros((2, 20)))
    assert found.levels == names[:12]
    assert found.num_more == 8


class Unknown(AbstractKernel):
    """A user's own kernel, whose slopes are anyone's guess."""

    def __call__(self, X, X2):
        return X @ X2.T

    def diag(self, X):
        return jnp.sum(X * X, axis=1)


def test_relevance_needs_a_kernel_that_bsgp_knows(regression):
    model = copy.copy(regression[0])
    layer = model.posterior_.model.layers[0]
    model.posterior_ = eqx.tree_at(lambda p: p.model.layers[0].kernel, model.posterior_, Unknown())
    assert relevance(model) is None
    slopes = jnp.zeros_like(layer.kernel.lengthscales).at[:, :, 0].set(2.0)
    kernel = jax.vmap(jax.vmap(Linear))(slopes, layer.kernel.variance)
    model.posterior_ = eqx.tree_at(lambda p: p.model.layers[0].kernel, regression[0].posterior_, kernel)
    found = relevance(model)
    assert found is not None
    assert (found.columns[0], found.median[0]) == (model.schema_.names[0], 1.0)


def test_traces_have_every_draw_and_phases_come_in_order(deep):
    model = copy.copy(deep[0])
    model.energy_ = dict(sorted(model.energy_.items()))  # the order of a saved model
    found = chain_plots(model)
    assert [trace.values.shape for trace in found.traces] == 3 * [(2, model.posterior_.num_draws)]
    assert list(found.energy) == ["warm start", "burn-in", "draws"]


def test_which_outputs_are_drawn():
    model = BSGPClassifier()
    model.classes_ = np.array([False, True])
    assert outcomes(model, np.zeros(1)).label == "probability of True"
    model.classes_ = np.arange(6)
    assert outcomes(model, np.eye(6)[4]).which == (4,)
    model.classes_ = np.arange(3)
    assert outcomes(model, np.zeros(3)).names == ("0", "1", "2")


def test_many_classes_are_confused_in_a_small_table():
    rng = np.random.default_rng(0)
    actual, predicted = rng.integers(0, 30, (2, 500))
    found = _confusion(tuple(str(k) for k in range(30)), actual, predicted)
    assert len(found.labels) == 12
    assert found.labels[-1] == "19 others"
    assert found.counts.sum() == 500


def test_reliability_of_perfect_and_of_extreme_probabilities():
    predicted = np.array([0.0, 1.0, 0.55, 0.55])
    found = _reliability("it", predicted, np.array([False, True, True, False]))
    np.testing.assert_allclose(found.observed, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(found.predicted, [0.0, 0.55, 1.0])
    assert found.counts.sum() == 4
    assert (found.low <= found.observed).all()
    assert (found.observed <= found.high).all()


def test_remarks_speak_up_only_beyond_chance():
    assert _coverage_remark(0.87, 100).is_good
    narrow, wide = _coverage_remark(0.8, 500), _coverage_remark(0.97, 500)
    assert not narrow.is_good
    assert "too narrow" in narrow.text
    assert not wide.is_good
    assert "too wide" in wide.text


def test_remarks_and_headline_name_the_better_baseline():
    ours, constant, linear = ({"mnll": m, "error": e, "auc": 0.5} for m, e in ((0.5, 0.2), (0.7, 0.3), (0.4, 0.1)))
    (likelihood, error) = baseline_remarks(ours, {"constant": constant, "linear": linear})
    assert "worse than the linear baseline in MNLL" in likelihood.text
    assert "20.0% against 10.0%" in error.text
    assert not baseline_remarks(linear, {"constant": constant, "ours": ours})
    said = headline(ours, {"constant": constant, "linear": linear}, 1, single=True)
    assert said.startswith("On 1 test row the error rate is 20.0%, 100% above the 10.0%")


def test_best_scores_are_marked_by_their_own_sense():
    first = {"mnll": -1.0, "rmse": 2.0, "coverage90": 0.95, "auc": np.nan}
    second = {"mnll": 0.5, "rmse": 2.0, "coverage90": 0.80, "auc": 0.7}
    rows = score_rows({"first": first, "second": second})
    assert rows[0].best == (True, True, True, False)
    assert rows[1].best == (False, True, False, True)


def test_drawing_survives_odd_arrays():
    nothing = np.empty(0)
    target = TargetFit("y", np.zeros(10, int), (0.0, 0.0), COVERAGE_LEVELS, *4 * (np.full(1, 3e7),), densities=())
    assert figures.pit_histogram(target)
    assert figures.predicted_against_actual(target)
    assert figures.energy_trace({"draws": np.full((1, 3), np.nan)})
    assert figures.true_class_histogram(nothing, 2)


# -- files -----------------------------------------------------------------------------------------------------


def test_failure_leaves_nothing_behind(regression, tmp_path, monkeypatch):
    model = regression[0]
    old = tmp_path / "report.html"
    old.write_text("old")

    def fail(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(page, "render", fail)
        with pytest.raises(OSError, match="no space"):
            write_report(model, tmp_path / "new" / "report.html")
    with monkeypatch.context() as patch:
        patch.setattr(write.os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            write_report(model, old)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert old.read_text() == "old"


def test_path_must_be_a_file(regression, tmp_path):
    with pytest.raises(ValueError, match="must be a file"):
        write_report(regression[0], tmp_path)


# -- a real browser --------------------------------------------------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HARNESS = """<!doctype html><meta charset="utf-8">
<iframe src="{page}" width="390" height="844" style="border: 0"></iframe><pre></pre>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, images = [...page.images];
  document.querySelector("pre").textContent = JSON.stringify({{
    images: images.length,
    broken: images.filter(one => !one.complete || !one.naturalWidth).map(one => one.alt),
    width: page.documentElement.scrollWidth,
    scripts: page.scripts.length,
  }});
}});
</script>"""


def browse(path, folder):
    """Opens a page 390 pixels wide. Returns what it shows, errors on the console and the requests that it made."""
    harness, net_log = folder / "harness.html", folder / "net.json"
    harness.write_text(HARNESS.format(page=path.as_uri()))
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files", "--virtual-time-budget=10000",
            "--enable-logging=stderr", f"--log-net-log={net_log}", "--dump-dom", harness.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    shown = re.search(r"<pre>({.*?})</pre>", done.stdout)
    assert shown is not None, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    requests = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
    # requests of the browser itself have no origin
    urls = {one["url"] for one in requests if one.get("initiator", "not an origin") != "not an origin"}
    return json.loads(shown[1]), complaints, urls


@pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")
def test_browser_shows_it_on_a_phone_and_asks_nobody(any_page, tmp_path):
    shown, complaints, urls = browse(any_page, tmp_path)
    assert shown["images"] == len(Page(any_page).pictures)
    assert shown["broken"] == []
    assert shown["width"] <= 390
    assert shown["scripts"] == 0
    assert complaints == []
    assert urls == set()


@pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")
def test_browser_would_have_noticed(tmp_path):
    """Runs the same checks on a bad page, which must fail all of them."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<img src="http://tracker.invalid/x.png" alt="a"><div style="width: 900px">w</div><script>oops()</script>'
    )
    shown, complaints, urls = browse(bad, tmp_path)
    assert shown["broken"] == ["a"]
    assert shown["width"] > 390
    assert shown["scripts"] == 1
    assert complaints
    assert urls == {"http://tracker.invalid/x.png"}
