"""Anchored coordinates of u are a change of variables: same density, same model, other numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from bsgp import Batch, Target, init_deep_gp
from bsgp.inference.anchor import Anchor
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import gaussian


def problem(depth, num_targets=1, num_rows=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((num_rows, 3))
    y = np.stack([np.sin(X[:, 0] + p) + 0.1 * rng.standard_normal(num_rows) for p in range(num_targets)], axis=1)
    model = init_deep_gp(
        X, gaussian(num_targets, X.dtype, 0.1), jr.key(seed), num_targets=num_targets, num_inducing=6, depth=depth
    )
    return model, X, y


def anchored_and_plain(depth, num_anchor, objective, num_targets=1):
    model, X, y = problem(depth, num_targets)
    anchor = Anchor(jnp.asarray(X[:num_anchor]), jnp.asarray(y[:num_anchor]))
    plain = Target(model, len(X), objective=objective)
    return Target(model, len(X), objective=objective, anchor=anchor), plain, X, y


def scatter(position, key):
    leaves, tree = jax.tree.flatten(position)
    keys = jr.split(key, len(leaves))
    return tree.unflatten([x + 0.3 * jr.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])


SIZES = [(1, 30, 1), (1, 30, 2), (1, 12, 2), (2, 30, 1), (2, 10, 2)]
"""Layers, anchor rows and targets."""


@pytest.mark.parametrize(
    ("objective", "size"),
    [*((one, size) for one in ("fitc", "vfe") for size in SIZES), ("tighter-vfe", SIZES[4])],
)
def test_the_density_is_that_of_the_plain_coordinates(objective, size, getkey):
    depth, num_anchor, num_targets = size
    anchored, plain, X, y = anchored_and_plain(depth, num_anchor, objective, num_targets)
    batch, key = Batch(jnp.asarray(X), jnp.asarray(y)), getkey()
    position = scatter(anchored.start(), getkey())
    model, log_det = anchored.constrain(position)
    _, plain_log_det = plain.constrain(plain.unconstrain(model))
    # the same hidden draws for the batch: they come first among the rows that pass
    expected = _log_joint_with_draws_of(plain, anchored, model, batch, key) + log_det - plain_log_det
    assert_allclose(anchored.log_joint(position, batch, jr.clone(key)), expected, rtol=1e-9)


def _log_joint_with_draws_of(plain, anchored, model, batch, key):
    """The plain log joint at `model`, with the hidden draws that the anchored target makes from `key`."""
    if model.depth == 1:
        return plain.log_joint(plain.unconstrain(model), batch, key)
    num_rows = batch.X.shape[0]
    hidden = model.hidden(jnp.concatenate([batch.X, anchored.anchor.X]), key, num_drawn=num_rows)[:num_rows]
    f = model.layers[-1].conditional(hidden)
    _, log_det = plain.constrain(plain.unconstrain(model))
    return plain.log_prior(model) + log_det + jnp.sum(plain.objective.row_terms(model.likelihood)(batch.y, f))


def test_coordinates_go_and_come_back(getkey):
    anchored, *_ = anchored_and_plain(2, 10, "fitc")
    position = scatter(anchored.start(), getkey())
    back = anchored.unconstrain(anchored.constrain(position)[0])
    for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(position), strict=True):
        assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)


def test_the_evidence_is_that_of_the_fitc_gp(getkey):
    """u integrated out: y ~ N(0, A^T A + diag(left + noise)), from SciPy."""
    anchored, _, X, y = anchored_and_plain(1, 30, "fitc")
    model = anchored.model
    A, left = model.layers[0].whitened(jnp.asarray(X))
    A = np.concatenate(A)
    covariance = A.T @ A + np.diag(np.asarray(left) + float(model.likelihood.noise_variance[0]))
    evidence = anchored.anchor.conditional(model, len(X), anchored.objective).log_evidence
    assert_allclose(evidence, multivariate_normal(cov=covariance).logpdf(y[:, 0]), rtol=1e-8)


def test_all_anchor_rows_make_xi_independent_of_the_rest(getkey):
    anchored, _, X, y = anchored_and_plain(1, 30, "fitc")
    assert anchored.integrates_u
    batch, position = Batch(jnp.asarray(X), jnp.asarray(y)), scatter(anchored.start(), getkey())
    xi = position.layers[-1].V
    slope = jax.grad(lambda p: anchored.log_joint(p, batch, jr.key(0)))(position)
    assert_allclose(slope.layers[-1].V, -xi, rtol=1e-9)


def test_a_minibatch_is_unbiased(getkey):
    anchored, _, X, y = anchored_and_plain(1, 12, "fitc")
    position = scatter(anchored.start(), getkey())
    halves = [Batch(jnp.asarray(X[rows]), jnp.asarray(y[rows])) for rows in (slice(0, 15), slice(15, 30))]
    whole = Batch(jnp.asarray(X), jnp.asarray(y))
    means = np.mean([anchored.log_joint(position, half, getkey()) for half in halves])
    assert_allclose(means, anchored.log_joint(position, whole, getkey()), rtol=1e-10)


def test_what_has_no_conditional_is_refused():
    model, X, y = problem(2)
    with pytest.raises(ValueError, match="anchor"):
        Target(model, len(X), anchor=Anchor(jnp.asarray(X), jnp.asarray(y)), treatment={"u": "optimise"})
    classes = eqx.tree_at(lambda m: m.likelihood, model, Bernoulli())
    with pytest.raises(ValueError, match="Bernoulli"):
        Target(classes, len(X), anchor=Anchor(jnp.asarray(X), jnp.asarray(y)))
