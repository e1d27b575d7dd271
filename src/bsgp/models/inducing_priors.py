"""Unnormalised priors on the inducing inputs Z of one layer.

All are invariant to the order of Z, except `InducingAround`, which has one centre per inducing input.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bsgp.models.kernels import AbstractKernel
from bsgp.models.linalg.numerics import add_jitter, squared_distance
from bsgp.runtime.checks import check_positive


class AbstractInducingPrior(eqx.Module):
    """Joint density of the rows of Z. It may depend on the layer's kernel."""

    @abc.abstractmethod
    def log_prob(self, Z: Float[Array, "M D"], kernel: AbstractKernel, jitter: float) -> Float[Array, ""]: ...


class InducingNormal(AbstractInducingPrior):
    """Independent standard normals, on the scale of standardised inputs."""

    def log_prob(self, Z, kernel, jitter):
        return -0.5 * jnp.sum(Z * Z)


class InducingAround(AbstractInducingPrior):
    """Independent unit normals around `centres`, one per inducing input, such as the cluster centres of the data."""

    centres: Float[Array, "M D"]

    def log_prob(self, Z, kernel, jitter):
        return -0.5 * jnp.sum((Z - self.centres) ** 2)


class InducingUniform(AbstractInducingPrior):
    """Improper constant density."""

    def log_prob(self, Z, kernel, jitter):
        return jnp.zeros((), Z.dtype)


class Determinantal(AbstractInducingPrior):
    """`log det Kzz` under the current kernel: repels inducing inputs with a high correlation.

    Unnormalised as in the paper, so it also acts on the kernel: it adds `M log variance`.
    """

    def log_prob(self, Z, kernel, jitter):
        Lz = jnp.linalg.cholesky(add_jitter(kernel(Z, Z), jitter))
        return 2.0 * jnp.sum(jnp.log(jnp.diag(Lz)))


class Strauss(AbstractInducingPrior):
    """`log(repulsion)` for every pair of inducing inputs closer than `radius`.

    With `softness = 0` the pairs are counted, as in the paper. The count is a step function without a gradient, so a
    gradient-based sampler treats it like `InducingUniform`. The default counts pairs smoothly, by
    `sigmoid((radius - distance) / softness)`, and therefore has an effect.
    """

    radius: float = eqx.field(static=True, default=0.5)
    repulsion: float = eqx.field(static=True, default=0.5)
    softness: float = eqx.field(static=True, default=0.05)

    def __check_init__(self):
        check_positive("radius", self.radius)
        if not 0 < self.repulsion <= 1:
            raise ValueError(f"`repulsion` must lie in (0, 1], got {self.repulsion}. 1 means none; the paper uses 0.5.")
        if self.softness < 0:
            raise ValueError(
                f"`softness` must be zero (hard count) or above, got {self.softness}. 0.05 is the default."
            )

    def log_prob(self, Z, kernel, jitter):
        return math.log(self.repulsion) * jnp.sum(jnp.triu(self._closeness(Z), k=1))

    def _closeness(self, Z):
        square = squared_distance(Z, Z)
        if self.softness == 0:
            return (square < self.radius**2).astype(Z.dtype)
        floor = float(jnp.finfo(Z.dtype).eps)  # keeps the slope of the square root finite on the diagonal
        return jax.nn.sigmoid((self.radius - jnp.sqrt(square + floor)) / self.softness)


INDUCING_PRIORS: dict[str, AbstractInducingPrior] = {
    "normal": InducingNormal(),
    "determinantal": Determinantal(),
    "strauss": Strauss(),
    "uniform": InducingUniform(),
    "strauss-hard": Strauss(softness=0.0),
}
"""The paper's four priors by name, and `strauss-hard`, the Strauss process as printed, whose count has no gradient."""
