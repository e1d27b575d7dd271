"""A row of weight w is w rows, and known noise adds to the learned one: the log joint, its gradient, its evidence."""

from contextlib import closing
from itertools import product

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from problems import regression, shallow
from scipy.stats import multivariate_normal, norm

from bsgp import Batch, Target, init_deep_gp, open_store
from bsgp.data.store.sources import ArraySource
from bsgp.inference.anchor import Anchor
from bsgp.inference.batches import batch_at, batch_of, open_batches
from bsgp.models import deep_gp
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import gaussian

NUM_ROWS = 12
WEIGHT = np.tile([1.0, 3.0], NUM_ROWS // 2)
"""Any even number of rows from the start has the same share of the rows and of the weight."""
COPIES = np.repeat(np.arange(NUM_ROWS), WEIGHT.astype(int))


def table(num_targets=2):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((NUM_ROWS, 2))
    y = np.stack([np.sin(X[:, 0] + p) + 0.1 * rng.standard_normal(NUM_ROWS) for p in range(num_targets)], axis=1)
    return X, y, rng.uniform(0.01, 0.5, y.shape)


def model_of(X, depth, likelihood=None):
    likelihood = gaussian(2, X.dtype, 0.1) if likelihood is None else likelihood
    return init_deep_gp(X, likelihood, jr.key(0), num_targets=2, num_inducing=4, depth=depth)


def scatter(position, seed=1):
    leaves, tree = jax.tree.flatten(position)
    rng = np.random.default_rng(seed)
    return tree.unflatten([leaf + jnp.asarray(0.3 * rng.standard_normal(leaf.shape)) for leaf in leaves])


def target_and_batch(model, parts, num_anchor, objective):
    """A target with the first `num_anchor` rows as anchors, and all rows as a batch; `parts` as in `Rows`."""
    X, y, weight, known = (None if part is None else jnp.asarray(part) for part in parts)
    anchor = None
    if num_anchor:
        anchor = Anchor(*(None if part is None else part[:num_anchor] for part in (X, y, weight, known)))
    total = None if weight is None else float(weight.sum())
    target = Target(model, len(X), objective=objective, total_weight=total, anchor=anchor)
    return target, Batch(X, y, None, weight, known)


def copies_share_their_hidden_draws(monkeypatch):
    noise = np.random.default_rng(2).standard_normal((NUM_ROWS, 2))
    rows = {NUM_ROWS: np.arange(NUM_ROWS), len(COPIES): COPIES}
    monkeypatch.setattr(deep_gp, "_row_noise", lambda key, shape, dtype, shard: jnp.asarray(noise[rows[shape[0]]]))


QUICK_CASES = {(1, NUM_ROWS, True, "vfe")}
ALL_CASES = sorted(product((1, 2), (0, 6, NUM_ROWS), (False, True), ("fitc", "vfe")))


@pytest.mark.parametrize(
    ("depth", "num_anchor", "has_known_noise", "objective"),
    [pytest.param(*case, marks=[] if case in QUICK_CASES else pytest.mark.slow) for case in ALL_CASES],
)
def test_integer_weights_are_repeated_rows(depth, num_anchor, has_known_noise, objective, monkeypatch, getkey):
    copies_share_their_hidden_draws(monkeypatch)
    X, y, known = table()
    known = known if has_known_noise else None
    model = model_of(X, depth)
    repeated = X[COPIES], y[COPIES], None, None if known is None else known[COPIES]
    weighted, weighted_batch = target_and_batch(model, (X, y, WEIGHT, known), num_anchor, objective)
    plain, plain_batch = target_and_batch(model, repeated, 2 * num_anchor, objective)
    assert weighted.integrates_u == plain.integrates_u == (depth == 1 and num_anchor == NUM_ROWS)
    assert weighted.num_counted == plain.num_counted
    position, key = scatter(weighted.start()), getkey()
    got, slope = jax.value_and_grad(weighted.log_joint)(position, weighted_batch, key)
    want, plain_slope = jax.value_and_grad(plain.log_joint)(position, plain_batch, jr.clone(key))
    assert_allclose(got, want, rtol=1e-10)
    for one, other in zip(jax.tree.leaves(slope), jax.tree.leaves(plain_slope), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-10 * np.abs(other).max())


@pytest.mark.slow
def test_a_weight_raises_each_row_to_a_power_for_classes_too(getkey):
    X, y, _ = table(1)
    labels, weight = (y > 0).astype(float), np.random.default_rng(3).uniform(0.2, 2.5, NUM_ROWS)
    model = model_of(X, 1, Bernoulli())
    target, batch = target_and_batch(model, (X, labels, weight, None), 0, "fitc")
    position, key = scatter(target.start()), getkey()
    once = Target(model, NUM_ROWS).log_likelihood(target.constrain(position)[0], Batch(batch.X, batch.y), key)
    prior = target.log_joint(position, Batch(batch.X, batch.y, None, 0.0 * batch.weight), jr.clone(key))
    want = prior + float(np.sum(weight * np.asarray(once)))
    assert_allclose(target.log_joint(position, batch, jr.clone(key)), want, rtol=1e-12)


@pytest.mark.parametrize("num_anchor", [0, 6])
def test_minibatches_of_weighted_rows_are_unbiased(num_anchor, getkey):
    X, y, known = table()
    weight = np.random.default_rng(3).uniform(0.2, 2.5, NUM_ROWS)
    target, batch = target_and_batch(model_of(X, 1), (X, y, weight, known), num_anchor, "fitc")
    position, key = scatter(target.start()), getkey()
    parts = [jax.tree.map(lambda rows, at=at: rows[at], batch) for at in np.split(np.arange(NUM_ROWS), 3)]
    each = [target.log_joint(position, part, jr.clone(key)) for part in parts]
    assert_allclose(np.mean(each), target.log_joint(position, batch, key), rtol=1e-12)


def test_with_z_at_x_the_evidence_is_the_exact_gp_with_a_noise_of_each_row():
    """log N(y; 0, K + diag(s_n^2 + noise)), from SciPy, and the factor that a weight leaves."""
    X, y = regression(25)
    rng = np.random.default_rng(4)
    known, weight = rng.uniform(0.05, 0.6, (25, 1)), rng.uniform(0.3, 3.0, 25)
    model = shallow(X, jitter=1e-12)
    variance = known[:, 0] + float(model.likelihood.noise_variance[0])
    K = np.asarray(model.layers[0].kernel(jnp.asarray(X), jnp.asarray(X)))

    def evidence(weight):
        target, _ = target_and_batch(model, (X, y, weight, known), 25, "fitc")
        return target.anchor.log_evidence(model, target.scaled_to, target.objective)

    assert_allclose(evidence(None), multivariate_normal(cov=K + np.diag(variance)).logpdf(y[:, 0]), rtol=1e-5)
    # N(y; f, v)^w = N(y; f, v / w) times what does not depend on f
    left = weight * norm.logpdf(0, 0, np.sqrt(variance)) - norm.logpdf(0, 0, np.sqrt(variance / weight))
    want = multivariate_normal(cov=K + np.diag(variance / weight)).logpdf(y[:, 0]) + left.sum()
    assert_allclose(evidence(weight), want, rtol=1e-5)


def test_rows_without_weights_or_known_noise_compile_the_same_program():
    """The arguments are absent, not ones and zeros: the program has no operation for them."""
    X, y, _ = table()
    target, batch = target_and_batch(model_of(X, 1), (X, y, None, None), NUM_ROWS, "fitc")
    assert len(jax.tree.leaves(batch)) == 2
    assert len(jax.tree.leaves(target.anchor)) == 2
    position = target.start()
    plain = jax.make_jaxpr(lambda p, b: target.log_joint(p, b, jr.key(0)))(position, batch)
    weighted, weighted_batch = target_and_batch(target.model, (X, y, WEIGHT, None), NUM_ROWS, "fitc")
    longer = jax.make_jaxpr(lambda p, b: weighted.log_joint(p, b, jr.key(0)))(position, weighted_batch)
    assert len(longer.eqns) > len(plain.eqns)


def test_a_source_and_its_target_must_agree_about_weights():
    X, y, _ = table()
    target = Target(model_of(X, 1), NUM_ROWS)
    with pytest.raises(ValueError, match="total weight None, got 24"):
        target.data_of(ArraySource(X, y, WEIGHT))
    with pytest.raises(ValueError, match="`weight` must be above zero in every row, got 0"):
        ArraySource(X, y, 0.0 * WEIGHT)
    weighted = Target(model_of(X, 1), NUM_ROWS, total_weight=24.0, power=0.5)
    assert weighted.num_counted == 12.0
    assert_allclose(weighted.data_of(ArraySource(X, y, WEIGHT)).weight, WEIGHT)


def test_streamed_minibatches_of_weighted_rows_are_unbiased(tmp_path, getkey):
    """Over an epoch their mean is the log joint of all rows, as a table in memory gives it."""
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal(24), rng.uniform(0.2, 2.5, 24)
    pd.DataFrame({"x": x, "y": np.sin(x), "w": weight}).to_csv(tmp_path / "table.csv", index=False)
    store = open_store(tmp_path / "table.csv", targets=["y"], weights="w", cache=tmp_path / "cache")
    rows = store.some_rows(24, 0)
    model = init_deep_gp(rows.X.astype(float), gaussian(1, float, 0.1), jr.key(0), num_inducing=4)
    target = Target(model, 24, total_weight=store.total_weight)
    with closing(open_batches(target.data_of(store), 6, [0])) as batches:
        epoch = batches.take(4).rows
    position, key = scatter(target.start()), getkey()
    parts = [batch_at(None, jax.tree.map(lambda rows, at=at: rows[0, at], epoch), float) for at in range(4)]
    whole = batch_of(jax.tree.map(lambda rows: jnp.asarray(rows, float), rows))
    means = np.mean([target.log_joint(position, part, jr.clone(key)) for part in parts])
    assert_allclose(means, target.log_joint(position, whole, key), rtol=1e-10)
