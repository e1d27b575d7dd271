"""Prior densities of parameters, and the bijectors that map the real line to a parameter's support.

Samplers work on the real line. Priors and bijectors act elementwise; a prior determines the bijector.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.models.linalg.numerics import LOG_2PI
from bsgp.runtime.checks import check_positive


class AbstractBijector(eqx.Module):
    """`forward` constrains, `inverse` unconstrains, `log_det(x)` is `log |d forward / dx|` at the unconstrained x."""

    @abc.abstractmethod
    def forward(self, x: Array) -> Array: ...

    @abc.abstractmethod
    def inverse(self, y: Array) -> Array: ...

    @abc.abstractmethod
    def log_det(self, x: Array) -> Array: ...


class Identity(AbstractBijector):
    """Unconstrained numbers."""

    def forward(self, x):
        return x

    def inverse(self, y):
        return y

    def log_det(self, x):
        return jnp.zeros_like(x)


class Exp(AbstractBijector):
    """Numbers above `low`, on the log scale: the paper authors' coordinates for kernel parameters and noise."""

    low: float = eqx.field(static=True, default=0.0)

    def forward(self, x):
        return jnp.exp(x) + self.low if self.low else jnp.exp(x)

    def inverse(self, y):
        return jnp.log(y - self.low) if self.low else jnp.log(y)

    def log_det(self, x):
        return x


class Interval(AbstractBijector):
    """The open interval (low, high), through the logistic function."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def forward(self, x):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def inverse(self, y):
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_det(self, x):
        return math.log(self.high - self.low) + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)


class AbstractPrior(eqx.Module):
    """Independent density of each entry of an array."""

    @property
    @abc.abstractmethod
    def bijector(self) -> AbstractBijector: ...

    @abc.abstractmethod
    def log_prob(self, x: Array) -> Array:
        """Elementwise log density at constrained values."""

    @abc.abstractmethod
    def sample(self, key: Array, shape: tuple[int, ...], dtype) -> Array: ...


class Normal(AbstractPrior):
    """`x ~ N(loc, scale^2)`."""

    loc: float = eqx.field(static=True, default=0.0)
    scale: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    @property
    def bijector(self):
        return Identity()

    def log_prob(self, x):
        return -0.5 * (((x - self.loc) / self.scale) ** 2 + LOG_2PI) - math.log(self.scale)

    def sample(self, key, shape, dtype):
        return self.loc + self.scale * jr.normal(key, shape, dtype)


class LogNormal(AbstractPrior):
    """`log(x - low) ~ N(loc, scale^2)`. `low + exp(loc)` is the median, not the mean; see `with_median`."""

    loc: float = eqx.field(static=True, default=0.0)
    scale: float = eqx.field(static=True, default=1.0)
    low: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    @classmethod
    def with_median(cls, median: float, scale: float = 1.0, low: float = 0.0) -> "LogNormal":
        check_positive("median", median - low)
        return cls(math.log(median - low), scale, low)

    @property
    def bijector(self):
        return Exp(self.low)

    def log_prob(self, x):
        log_x = self.bijector.inverse(x)
        return -0.5 * (((log_x - self.loc) / self.scale) ** 2 + LOG_2PI) - math.log(self.scale) - log_x

    def sample(self, key, shape, dtype):
        return self.bijector.forward(self.loc + self.scale * jr.normal(key, shape, dtype))


class Gamma(AbstractPrior):
    """Density proportional to `x^(concentration - 1) exp(-rate x)`."""

    concentration: float = eqx.field(static=True)
    rate: float = eqx.field(static=True)

    def __check_init__(self):
        check_positive("concentration", self.concentration)
        check_positive("rate", self.rate)

    @property
    def bijector(self):
        return Exp()

    def log_prob(self, x):
        a, b = self.concentration, self.rate
        return a * math.log(b) - math.lgamma(a) + (a - 1.0) * jnp.log(x) - b * x

    def sample(self, key, shape, dtype):
        return jr.gamma(key, self.concentration, shape, dtype) / self.rate


class InverseGamma(AbstractPrior):
    """Density proportional to `x^(-concentration - 1) exp(-scale / x)`; keeps lengthscales away from zero."""

    concentration: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __check_init__(self):
        check_positive("concentration", self.concentration)
        check_positive("scale", self.scale)

    @property
    def bijector(self):
        return Exp()

    def log_prob(self, x):
        a, b = self.concentration, self.scale
        return a * math.log(b) - math.lgamma(a) - (a + 1.0) * jnp.log(x) - b / x

    def sample(self, key, shape, dtype):
        return self.scale / jr.gamma(key, self.concentration, shape, dtype)


class HalfNormal(AbstractPrior):
    """`|x|` for `x ~ N(0, scale^2)`."""

    scale: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    @property
    def bijector(self):
        return Exp()

    def log_prob(self, x):
        return 0.5 * math.log(2.0 / math.pi) - math.log(self.scale) - 0.5 * (x / self.scale) ** 2

    def sample(self, key, shape, dtype):
        return self.scale * jnp.abs(jr.normal(key, shape, dtype))


class Uniform(AbstractPrior):
    """Uniform density on [low, high]."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def __check_init__(self):
        if not self.low < self.high:
            raise ValueError(f"`low` must be below `high`, got {self.low} and {self.high}. Swap or widen them.")

    @property
    def bijector(self):
        return Interval(self.low, self.high)

    def log_prob(self, x):
        inside = (x >= self.low) & (x <= self.high)
        return jnp.where(inside, -math.log(self.high - self.low), -jnp.inf).astype(x.dtype)

    def sample(self, key, shape, dtype):
        return jr.uniform(key, shape, dtype, self.low, self.high)


class Flat(AbstractPrior):
    """Improper constant density, for parameters that are optimised. `support` is their constraint."""

    support: AbstractBijector = Identity()

    @property
    def bijector(self):
        return self.support

    def log_prob(self, x):
        return jnp.zeros_like(x)

    def sample(self, key, shape, dtype):
        raise ValueError("`Flat` is improper and cannot be sampled. Use a proper prior, such as `LogNormal`.")
