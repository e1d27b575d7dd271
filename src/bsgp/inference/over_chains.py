"""How a function of one chain becomes one of all chains."""

import jax
from jaxtyping import PyTree


def over_chains(function, *stacked: PyTree) -> PyTree:
    """`function` of every chain: one after the other on a CPU, all at once elsewhere.

    On a CPU a batch of chains gains nothing, and batched factorisations can lock up XLA's pool of threads for good
    (seen with jaxlib 0.10.2, two threads, four chains of two layers).
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda at: function(*at), stacked)
    return jax.vmap(function)(*stacked)
