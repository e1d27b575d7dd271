"""Fits from rows on disk are those from memory if they see the same minibatches, and as good if they do not."""

import jax
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import regression, tiny_target

import bsgp
from bsgp import BSGPClassifier, BSGPRegressor, Options, Plan, fit_method, open_store, sample
from bsgp.data.store.minibatches import Minibatches
from bsgp.data.store.sources import AbstractStream, AbstractStreamedSource, Rows, as_source
from bsgp.data.tables.files import read_table
from bsgp.data.tables.write import write_table
from bsgp.inference.batches import MemoryBatches, StreamedBatches
from bsgp.inference.target import ALL_OPTIMISED
from bsgp.methods.ipvi_dgp import ImplicitPlan, fit_implicit
from bsgp.methods.svgp import VariationalPlan, fit_variational
from bsgp.models.batch import Batch
from bsgp.models.likelihoods.gaussian_noise import gaussian

PLAN = Plan(adam_steps=40, burn_in=40, num_draws=4, thinning=5, batch_size=10, chunk=20)


class Stream(AbstractStream):
    """The minibatches that a fit from memory sees."""

    def __init__(self, X, y, batch_size, seed):
        self._rows, self._size, self._seed, self.batch_size = Rows(X, y), batch_size, seed, batch_size

    def read(self, first_batch, num_batches):
        minibatches = Minibatches(len(self._rows.X), self._size, self._seed)
        minibatches.skip(first_batch)
        rows = minibatches.take(num_batches)
        return Rows(self._rows.X[rows], self._rows.y[rows])


class OnDisk(AbstractStreamedSource):
    def __init__(self, X, y):
        self._rows = Rows(X, y)
        self.num_rows, self.num_inputs = X.shape
        self.num_targets = y.shape[1]
        self.fingerprint_ = as_source(X, y).fingerprint

    @property
    def fingerprint(self):
        return self.fingerprint_

    def some_rows(self, count, seed):
        return as_source(*self._rows[:2]).some_rows(count, seed)

    def stream(self, batch_size, seed, share=(0, 1)):
        assert share == (0, 1)  # one device
        return Stream(*self._rows[:2], batch_size, seed)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A regression and a classification in one file."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 400))
    y = np.sin(2 * a) + b + 0.1 * rng.normal(size=400)
    kind = np.array(["left", "right"])[(y > 0).astype(int)]
    path = tmp_path_factory.mktemp("table") / "t.csv"
    write_table(path, {"a": 100 + 5 * a, "b": b, "kind": kind, "y": 3 * y + 7})
    return path


def test_the_same_minibatches_give_the_same_draws(getkey):
    target, X, y = tiny_target()
    key = getkey()
    held = sample(target, X, y, key, plan=PLAN, num_chains=2)
    streamed = sample(target, OnDisk(X, y), None, jax.random.clone(key), plan=PLAN, num_chains=2)
    for one, other in zip(jax.tree.leaves(held.model), jax.tree.leaves(streamed.model), strict=True):
        assert_allclose(one, other, rtol=1e-6)


def test_a_stream_reads_ahead_what_comes_next():
    X, y = np.arange(60.0).reshape(30, 2), np.arange(30.0)[:, None]
    feed, plain = (
        StreamedBatches(OnDisk(X, y), 10, [1, 2]),
        MemoryBatches(Batch(*map(jax.numpy.asarray, (X, y))), 10, [1, 2]),
    )
    try:
        for count in (3, 3, 2, 4):  # what was read ahead fits, or does not
            rows = np.asarray(plain.take(count).rows)
            given = feed.take(count)
            assert given.data is None
            assert_array_equal(given.rows.X, X[rows])
            assert_array_equal(given.rows.y, y[rows])
        feed.keep([1])
        plain.keep([1])
        rows = np.asarray(plain.take(2, times=2).rows)
        assert_array_equal(feed.take(2, times=2).rows.X, X[rows])
    finally:
        feed.close()


@pytest.mark.parametrize(
    ("fit", "plan"),
    [
        (fit_implicit, ImplicitPlan(num_steps=20, batch_size=10, width=4, num_moments=100)),
        (fit_variational, VariationalPlan(num_steps=20, batch_size=10)),
    ],
    ids=["ipvi-dgp", "svgp"],
)
def test_the_same_minibatches_give_the_same_optimum(fit, plan):
    target, X, y = tiny_target(treatment=ALL_OPTIMISED)
    held, streamed = (fit(target, *rows, jr.key(0), plan=plan) for rows in ((X, y), (OnDisk(X, y), None)))
    assert_allclose(held.history.energy["optimise"], streamed.history.energy["optimise"], rtol=1e-8)
    for one, other in zip(
        jax.tree.leaves(held.posterior.model), jax.tree.leaves(streamed.posterior.model), strict=True
    ):
        assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_a_method_by_name_streams():
    X, y = regression(60, 2)
    options = Options(num_inducing=5, effort=0.02)
    fitted = fit_method("svgp", OnDisk(X, y), None, gaussian(1, X.dtype), jr.key(0), options=options)
    assert np.corrcoef(fitted.posterior.predict(X, jr.key(1)).mean[:, 0], y[:, 0])[0, 1] > 0.7


def test_methods_that_need_all_rows_say_so():
    source = OnDisk(np.zeros((9, 2)), np.zeros((9, 1)))
    with pytest.raises(ValueError, match="`exact-gp` must have all rows in memory, got a source on disk"):
        fit_method("exact-gp", source, None, gaussian(1, np.float64), jr.key(0))
    target, *_ = tiny_target()
    with pytest.raises(ValueError, match="The source must have 30 rows"):
        sample(target, source, None, jr.key(0))


def test_a_regressor_learns_from_a_store_as_from_a_table(table, tmp_path):
    store = open_store(table, targets=["y"], ignore=["kind"], cache=tmp_path)
    whole = read_table(table)
    X, y = whole.select(["a", "b"]), whole.columns["y"].values
    settings = {"num_inducing": 20, "effort": 0.1, "random_state": 0}
    held, streamed = BSGPRegressor(**settings).fit(X, y), BSGPRegressor(**settings).fit(store)
    scores = [-np.mean(model.log_density(X, y)) for model in (held, streamed)]
    assert abs(scores[0] - scores[1]) < 0.1
    assert scores[1] < 0.6  # noise of 0.3 has 0.2, and a constant 2.3
    assert streamed.target_names_ == ("y",)
    assert set(streamed.baselines_) == set(held.baselines_)
    streamed.save(tmp_path / "model")
    assert_array_equal(bsgp.load(tmp_path / "model").predict(X), streamed.predict(X))


def test_a_classifier_learns_from_a_store_and_keeps_its_labels(table, tmp_path):
    store = open_store(table, targets=["kind"], ignore=["y"], cache=tmp_path)
    model = BSGPClassifier(num_inducing=10, effort=0.02, random_state=0).fit(store)
    assert list(model.classes_) == ["left", "right"]
    whole = read_table(table)
    assert np.mean(model.predict(whole.select(["a", "b"])) == whole.columns["kind"].values) > 0.8
    with pytest.raises(ValueError, match=r"BSGPRegressor must have a source for regression, got one for class"):
        BSGPRegressor().fit(store)
