"""Where chains and optimisations start."""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, PyTree

from bsgp.inference.exact_target import ExactTarget
from bsgp.inference.sghmc import normal_like
from bsgp.inference.target import Target

START_SPREAD = 0.1
"""Standard deviation of what is added to each chain's start, so that chains start apart."""


@eqx.filter_jit
def scattered_starts(target: Target | ExactTarget, key: Array, num_chains: int, spread: float = START_SPREAD) -> PyTree:
    """The model's position once per chain, each moved at random by a standard deviation of `spread`."""
    start = target.start()

    def scatter(chain_key):
        return jax.tree.map(lambda x, z: x + spread * z, start, normal_like(chain_key, start))

    return jax.vmap(scatter)(jr.split(key, num_chains))
