"""A warm start by L-BFGS, for targets whose gradients are exact: a tenth of the evaluations that Adam needs."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from bsgp.inference.target import Target
from bsgp.models.batch import Batch

MEMORY = 20
"""Pairs of steps and gradient differences that the Hessian is approximated from."""


@eqx.filter_jit
def _energy_and_slope(target: Target, position: PyTree, data: Batch) -> tuple[Array, PyTree]:
    """Energy per row and its gradient."""
    no_key = jr.key(0)  # one layer with u integrated out draws nothing

    def energy(position):
        return -target.log_joint(position, data, no_key) / target.num_counted

    return jax.value_and_grad(energy)(position)


class Descent(NamedTuple):
    """Where L-BFGS ended, and how it got there."""

    position: PyTree
    energy: np.ndarray
    """Energy per row after every step."""
    num_evaluations: int


def descend(target: Target, position: PyTree, data: Batch, num_steps: int, is_late: Callable[[], bool]) -> Descent:
    """At most `num_steps` of L-BFGS down the energy given all rows; fewer if `is_late`, or if none leads down."""
    from scipy.optimize import minimize

    start, unravel = ravel_pytree(position)
    energies, num_evaluations = [], 0

    def energy_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_evaluations
        num_evaluations += 1
        value, slope = _energy_and_slope(target, unravel(jnp.asarray(flat, start.dtype)), data)
        return float(value), np.asarray(ravel_pytree(slope)[0], np.float64)

    def note(intermediate_result) -> None:
        energies.append(float(intermediate_result.fun))
        if is_late():
            raise StopIteration

    options = {"maxiter": num_steps, "maxcor": MEMORY}
    found = minimize(
        energy_and_slope, np.asarray(start, np.float64), jac=True, method="L-BFGS-B", callback=note, options=options
    )
    return Descent(unravel(jnp.asarray(found.x, start.dtype)), np.asarray(energies or [found.fun]), num_evaluations)
