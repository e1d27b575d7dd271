"""Minibatches of rows, as densities take them."""

import equinox as eqx
from jaxtyping import Array, Float, Int


class Shard(eqx.Module):
    """One of `count` equal, contiguous parts of a minibatch: the rows of one device."""

    index: Int[Array, ""]
    count: int = eqx.field(static=True)


class Batch(eqx.Module):
    """Rows of the data: inputs and targets."""

    X: Float[Array, "B D"]
    y: Float[Array, "B P"]
    shard: Shard | None = None
    """Position of these rows within a minibatch that is split over devices; None for a whole minibatch."""
