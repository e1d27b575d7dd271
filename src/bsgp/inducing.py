"""Priors over the set of inducing inputs Z of one layer. Unnormalised; permuting Z changes nothing, but for one prior
that has a place for each."""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bsgp.checks import check_positive
from bsgp.kernels import AbstractKernel
from bsgp.numerics import add_jitter, squared_distance


class AbstractInducingPrior(eqx.Module):
    """A joint density over the rows of Z, which may look at the layer's kernel."""

    @abc.abstractmethod
    def log_prob(self, Z: Float[Array, "M D"], kernel: AbstractKernel, jitter: float) -> Float[Array, ""]: ...


class InducingNormal(AbstractInducingPrior):
    """Independent standard normals: the distribution of standardised data."""

    def log_prob(self, Z, kernel, jitter):
        return -0.5 * jnp.sum(Z * Z)


class InducingAround(AbstractInducingPrior):
    """Independent unit normals around given places, one each, such as the cluster centres of the data."""

    centres: Float[Array, "M D"]

    def log_prob(self, Z, kernel, jitter):
        return -0.5 * jnp.sum((Z - self.centres) ** 2)


class InducingUniform(AbstractInducingPrior):
    """No preference; improper."""

    def log_prob(self, Z, kernel, jitter):
        return jnp.zeros((), Z.dtype)


class Determinantal(AbstractInducingPrior):
    """`log det Kzz` under the current kernel: repels inducing inputs that the kernel holds alike.

    Unnormalised as in the paper, so it also pulls on the kernel (it adds `M log variance`).
    """

    def log_prob(self, Z, kernel, jitter):
        Lz = jnp.linalg.cholesky(add_jitter(kernel(Z, Z), jitter))
        return 2.0 * jnp.sum(jnp.log(jnp.diag(Lz)))


class Strauss(AbstractInducingPrior):
    """`log(repulsion)` for every pair of inducing inputs closer than `radius`.

    With `softness = 0` the pairs are counted, as in the paper: a step function without a gradient, so that
    under a gradient sampler it acts as `InducingUniform`. The default counts them smoothly,
    `sigmoid((radius - distance) / softness)`, and does act.
    """

    radius: float = eqx.field(static=True, default=0.5)
    repulsion: float = eqx.field(static=True, default=0.5)
    softness: float = eqx.field(static=True, default=0.05)

    def __check_init__(self):
        check_positive("radius", self.radius)
        if not 0 < self.repulsion <= 1:
            raise ValueError(f"`repulsion` must lie in (0, 1], got {self.repulsion}. 1 means none, 0.5 is the paper's.")
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
"""The paper's four, by name, and the Strauss process as it is printed, whose count has no gradient."""
