"""Roots of increasing functions, many at a time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

MAX_STEPS = 64
TOLERANCE = 1e-12
"""Width of the last bracket, relative to the first, where the precision of numbers allows it."""


class _Bracket(NamedTuple):
    """The two ends of a bracket and the point before; `share` says where in it to look next."""

    new: Array
    other: Array
    old: Array
    at_new: Array
    at_other: Array
    at_old: Array
    share: Array
    step: Array


def find_root(function: Callable[[Array], Array], low: Array, high: Array, guess: Array) -> Array:
    """Where an elementwise increasing `function` crosses zero between `low` and `high`, by Chandrupatla's method.

    It interpolates where the function is smooth and bisects where it is not, so that steps are found, too.
    """
    width = high - low
    least = jnp.maximum(TOLERANCE, 4.0 * float(jnp.finfo(low.dtype).eps)) * width

    def is_open(at: _Bracket):
        wide = (jnp.abs(at.new - at.other) > least) & (at.at_new != 0.0)
        return jnp.any(wide) & (at.step < MAX_STEPS)

    # the ends are on either side whatever the function is there, which need not be computed
    below, above = -jnp.ones_like(low), jnp.ones_like(low)
    share = jnp.clip((guess - low) / width, 0.01, 0.99)
    start = _Bracket(low, high, high, below, above, above, share, jnp.asarray(0))
    found = jax.lax.while_loop(is_open, lambda at: _narrowed(function, at, least), start)
    return jnp.where(found.at_new == 0.0, found.new, 0.5 * (found.new + found.other))


def _narrowed(function: Callable[[Array], Array], at: _Bracket, least: Array) -> _Bracket:
    point = at.new + at.share * (at.other - at.new)
    value = function(point)
    is_same_side = jnp.sign(value) == jnp.sign(at.at_new)
    old, at_old = jnp.where(is_same_side, at.new, at.other), jnp.where(is_same_side, at.at_new, at.at_other)
    other, at_other = jnp.where(is_same_side, at.other, at.new), jnp.where(is_same_side, at.at_other, at.at_new)
    share = _inverse_quadratic(point, other, old, value, at_other, at_old)
    margin = jnp.minimum(least / jnp.maximum(jnp.abs(other - point), least), 0.5)
    return _Bracket(point, other, old, value, at_other, at_old, jnp.clip(share, margin, 1.0 - margin), at.step + 1)


def _inverse_quadratic(new, other, old, at_new, at_other, at_old) -> Array:
    """Share of the way from `new` to `other` where a parabola through three points crosses zero, or a half."""
    xi = (new - other) / _not_zero(old - other)
    phi = (at_new - at_other) / _not_zero(at_old - at_other)
    is_smooth = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi) & (at_old != at_other) & (at_old != at_new)
    first = at_new / _not_zero(at_other - at_new) * at_old / _not_zero(at_other - at_old)
    second = (old - new) / _not_zero(other - new) * at_new / _not_zero(at_old - at_new)
    third = at_other / _not_zero(at_old - at_other)
    return jnp.where(is_smooth, first + second * third, 0.5)


def _not_zero(value: Array) -> Array:
    return jnp.where(value == 0.0, 1.0, value)
