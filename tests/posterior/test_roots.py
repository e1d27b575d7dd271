import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import ndtr
from numpy.testing import assert_allclose
from scipy.stats import norm

from bsgp.posterior.roots import find_root

LEVELS = jnp.asarray([1e-6, 0.05, 0.5, 0.95, 1.0 - 1e-6])


def counted(function):
    """The function, and a list that grows with each evaluation."""
    calls = []

    def wrapper(y):
        jax.debug.callback(lambda: calls.append(1))
        return function(y)

    return wrapper, calls


@pytest.mark.parametrize("guess", [-39.0, 0.0, 12.0])
def test_smooth_roots_are_found_from_any_guess(guess):
    low, high = jnp.full(5, -40.0), jnp.full(5, 40.0)
    found = find_root(lambda y: ndtr(y) - LEVELS, low, high, guess=jnp.full(5, guess))
    assert_allclose(found, norm.ppf(LEVELS), atol=1e-8)


def test_a_good_guess_takes_a_quarter_of_the_steps_of_bisection():
    function, calls = counted(lambda y: 0.5 * ndtr(y) + 0.5 * ndtr((y - 3.0) / 0.1) - LEVELS)
    ends = jnp.full(5, -40.0), jnp.full(5, 40.0)
    found = find_root(function, *ends, guess=jnp.asarray([-4.0, 0.0, 1.0, 3.0, 4.0]))
    jax.effects_barrier()
    assert_allclose(function(found), 0.0, atol=1e-9)
    assert len(calls) < 24


def test_the_place_of_a_step_is_found():
    places = jnp.asarray([-1.25, 0.0, 7.0])
    found = find_root(lambda y: jnp.where(y >= places, 0.3, -0.2), jnp.full(3, -40.0), jnp.full(3, 40.0), jnp.zeros(3))
    assert_allclose(found, places, atol=1e-9)


def test_single_precision_ends():
    low, high = jnp.full(3, -40.0, jnp.float32), jnp.full(3, 40.0, jnp.float32)
    levels = np.asarray([0.05, 0.5, 0.95], np.float32)
    found = find_root(lambda y: ndtr(y) - levels, low, high, guess=jnp.zeros(3, jnp.float32))
    assert_allclose(found, norm.ppf(levels), atol=1e-4)
