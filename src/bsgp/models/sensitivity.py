"""How much a function of a kernel's prior changes with each input."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bsgp.models.kernels import (
    AbstractKernel,
    AbstractStationary,
    ActiveDimensions,
    Linear,
    Periodic,
    Product,
    Seasonal,
    Sum,
)


def sensitivity(kernel: AbstractKernel, num_inputs: int) -> Float[Array, " D"] | None:
    """Prior variance of the slope along each input, up to a factor of the kernel's kind; None if it is not known.

    `variance / lengthscale^2` for a stationary kernel. A sum adds up its terms; a product has the sum of each factor's
    times the variance of the other, both at the origin, where standardised inputs have their mean.
    """
    if isinstance(kernel, AbstractStationary):
        return kernel.variance / kernel.lengthscales**2
    if isinstance(kernel, Linear):
        return kernel.variances
    if isinstance(kernel, Periodic | Seasonal):
        period = kernel.period if isinstance(kernel, Periodic) else jnp.asarray(kernel.periods)
        return kernel.variance * (np.pi / (period * kernel.lengthscales)) ** 2
    if isinstance(kernel, ActiveDimensions):
        inner = sensitivity(kernel.kernel, len(kernel.dimensions))
        return None if inner is None else jnp.zeros(num_inputs).at[np.asarray(kernel.dimensions)].add(inner)
    if isinstance(kernel, Sum | Product):
        return _of_two(kernel, num_inputs)
    return None


def _of_two(kernel: Sum | Product, num_inputs: int) -> Float[Array, " D"] | None:
    left, right = sensitivity(kernel.left, num_inputs), sensitivity(kernel.right, num_inputs)
    if left is None or right is None:
        return None
    if isinstance(kernel, Sum):
        return left + right
    origin = jnp.zeros((1, num_inputs), left.dtype)
    return left * kernel.right.diag(origin)[0] + right * kernel.left.diag(origin)[0]
