"""Maps from the real line, where samplers live, to the set where a parameter lives. All act elementwise."""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


class AbstractBijector(eqx.Module):
    """`forward` constrains, `inverse` unconstrains, `log_det(x)` is `log |d forward / dx|` at unconstrained x."""

    @abc.abstractmethod
    def forward(self, x: Array) -> Array: ...

    @abc.abstractmethod
    def inverse(self, y: Array) -> Array: ...

    @abc.abstractmethod
    def log_det(self, x: Array) -> Array: ...


class Identity(AbstractBijector):
    def forward(self, x):
        return x

    def inverse(self, y):
        return y

    def log_det(self, x):
        return jnp.zeros_like(x)


class Exp(AbstractBijector):
    """Positive numbers; the authors' coordinates for kernel parameters and noise."""

    def forward(self, x):
        return jnp.exp(x)

    def inverse(self, y):
        return jnp.log(y)

    def log_det(self, x):
        return x


class Softplus(AbstractBijector):
    """Positive numbers, nearly linear for large values."""

    def forward(self, x):
        return jax.nn.softplus(x)

    def inverse(self, y):
        return y + jnp.log(-jnp.expm1(-y))

    def log_det(self, x):
        return jax.nn.log_sigmoid(x)


class Interval(AbstractBijector):
    """The open interval (low, high), by a logistic curve."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def forward(self, x):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def inverse(self, y):
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_det(self, x):
        return math.log(self.high - self.low) + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)
