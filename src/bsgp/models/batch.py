"""Minibatches of rows, as densities take them."""

import equinox as eqx
from jaxtyping import Array, Float, Int


class Shard(eqx.Module):
    """One of `count` equal, contiguous parts of a minibatch: the rows of one device."""

    index: Int[Array, ""]
    count: int = eqx.field(static=True)


class Batch(eqx.Module):
    """Rows of the data: inputs and targets, and how much each row counts if they differ in that."""

    X: Float[Array, "B D"]
    y: Float[Array, "B P"]
    shard: Shard | None = None
    """Position of these rows within a minibatch that is split over devices; None for a whole minibatch."""
    weight: Float[Array, " B"] | None = None
    """How many times the log likelihood of each row counts; None: once each."""
    known_variance: Float[Array, "B P"] | None = None
    """Known part of the noise variance of each row and target, which Gaussian noise adds to its own; None: none."""

    def weighted(self, terms: Float[Array, "B _"]) -> Float[Array, "B _"]:
        """Terms of each row, multiplied by the row's weight."""
        return terms if self.weight is None else self.weight[:, None] * terms
