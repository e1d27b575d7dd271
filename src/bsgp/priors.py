"""Priors on single numbers. The prior owns the constraint: its `bijector` maps the real line onto its support."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.bijectors import AbstractBijector, Exp, Identity, Interval
from bsgp.checks import check_positive

LOG_2PI = 1.8378770664093453


class AbstractPrior(eqx.Module):
    """A density over each entry of an array, independently."""

    @property
    @abc.abstractmethod
    def bijector(self) -> AbstractBijector: ...

    @abc.abstractmethod
    def log_prob(self, x: Array) -> Array:
        """Elementwise log density in the constrained coordinate."""

    @abc.abstractmethod
    def sample(self, key: Array, shape: tuple[int, ...], dtype) -> Array: ...


class Normal(AbstractPrior):
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
    """`log x ~ N(loc, scale^2)`: its MEDIAN is exp(loc). `LogNormal.with_median(0.05)` says so."""

    loc: float = eqx.field(static=True, default=0.0)
    scale: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    @classmethod
    def with_median(cls, median: float, scale: float = 1.0) -> "LogNormal":
        check_positive("median", median)
        return cls(math.log(median), scale)

    @property
    def bijector(self):
        return Exp()

    def log_prob(self, x):
        log_x = jnp.log(x)
        return -0.5 * (((log_x - self.loc) / self.scale) ** 2 + LOG_2PI) - math.log(self.scale) - log_x

    def sample(self, key, shape, dtype):
        return jnp.exp(self.loc + self.scale * jr.normal(key, shape, dtype))


class Gamma(AbstractPrior):
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
    """Keeps lengthscales away from zero."""

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
    """No opinion: an improper constant, for blocks that are optimised. `support` names the constraint."""

    support: AbstractBijector = Identity()

    @property
    def bijector(self):
        return self.support

    def log_prob(self, x):
        return jnp.zeros_like(x)

    def sample(self, key, shape, dtype):
        raise ValueError(
            "`Flat` is improper and cannot be sampled. Give the block a proper prior, such as `LogNormal`."
        )
