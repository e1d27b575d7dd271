"""The warm start by L-BFGS."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import tiny_target

from bsgp import Plan, sample
from bsgp.inference.anchor import Anchor
from bsgp.inference.lbfgs import descend

PLAN = Plan(adam_steps=0, lbfgs_steps=60, burn_in=40, num_draws=4, thinning=5, chunk=10)


def integrated_target():
    target, X, y = tiny_target()
    return tiny_target(anchor=Anchor(jnp.asarray(X), jnp.asarray(y))) if target.anchor is None else (target, X, y)


def test_it_ends_where_the_slope_is_nothing():
    target, X, y = integrated_target()
    data = target.all_rows(X, y)
    found = descend(target, target.start(), data, 200, lambda: False)
    slope = jax.grad(lambda position: target.log_joint(position, data, jr.key(0)) / target.num_counted)(found.position)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) < 1e-3
    assert (np.diff(found.energy) <= 1e-12).all()
    assert len(found.energy) <= found.num_evaluations


def test_it_stops_when_it_is_late():
    target, X, y = integrated_target()
    found = descend(target, target.start(), target.all_rows(X, y), 200, lambda: True)
    assert len(found.energy) == 1


def test_it_gets_as_low_as_adam_with_a_fraction_of_the_gradients(getkey):
    target, X, y = integrated_target()
    key = getkey()
    quick = sample(target, X, y, key, plan=PLAN, num_chains=2).history
    slow = Plan(adam_steps=600, burn_in=40, num_draws=4, thinning=5, chunk=10)
    adam = sample(target, X, y, jr.clone(key), plan=slow, num_chains=2).history
    assert (
        quick.energy["warm start"][:, -1] < adam.energy["warm start"][:, -1] + 0.05
    ).all()  # the nearest mode may be another
    assert quick.evaluations < 0.3 * adam.evaluations


def test_minibatches_are_refused(getkey):
    target, X, y = tiny_target()
    with pytest.raises(ValueError, match=r"`lbfgs_steps` must go with exact gradients.* Use `adam_steps`"):
        sample(target, X, y, getkey(), plan=PLAN)
    with pytest.raises(ValueError, match="by Adam or by L-BFGS"):
        Plan(adam_steps=10, lbfgs_steps=10)
