"""Scales of noise that vary with the inputs, kept within a range of one another.

A scale that could be as small as it likes would find target values that repeat, such as zeros, and put an infinite
density on them. So every scale is `scale * exp(bounded(g))`: what one row gains by a narrow scale is limited by how
wide the scale must be elsewhere, in whatever units y has.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array


def bounded(g: Array, range_of_scales: float) -> Array:
    """`g` for small g, and never beyond half the log of `range_of_scales` on either side."""
    limit = 0.5 * math.log(range_of_scales)
    return limit * jnp.tanh(g / limit)
