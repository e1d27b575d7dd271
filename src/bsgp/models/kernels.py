"""Covariance functions on matrices of inputs: `k(X [N D], X2 [M D]) -> [N M]` and `k.diag(X) -> [N]`.

Fields are plain constrained arrays, such as `variance []` and `lengthscales [D]` (one per input).
Combine kernels with `+` and `*`; restrict a kernel to some columns with `ActiveDimensions`.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bsgp.models.linalg.gram import linear_gram, matern32, matern52, rbf_gram, stationary_gram
from bsgp.models.linalg.numerics import squared_distance
from bsgp.runtime.checks import check_count, check_positive


class AbstractKernel(eqx.Module):
    """Covariance function of a Gaussian process."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"], X2: Float[Array, "M D"]) -> Float[Array, "N M"]: ...

    @abc.abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """`k(x, x)` for each row, without the matrix."""

    def __add__(self, other: "AbstractKernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel") -> "Product":
        return Product(self, other)


class AbstractStationary(AbstractKernel):
    """`variance` times a function of `r`, the distance in units of the lengthscales."""

    variance: eqx.AbstractVar[Float[Array, ""]]
    lengthscales: eqx.AbstractVar[Float[Array, " D"]]

    def diag(self, X):
        return jnp.full(X.shape[0], self.variance)

    def squared_distance(self, X: Float[Array, "N D"], X2: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """`r^2` of every pair."""
        scale = 1.0 / self.lengthscales[None, :]
        return squared_distance(X * scale, X2 * scale)


class RBF(AbstractStationary):
    """`variance * exp(-r^2 / 2)`: infinitely differentiable. Its gradient is written by hand (`rbf_gram`)."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]

    def __call__(self, X, X2):
        return rbf_gram(X, X2, self.lengthscales, self.variance)


class Matern12(AbstractStationary):
    """`variance * exp(-r)`: continuous, not differentiable."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]

    def __call__(self, X, X2):
        r2 = self.squared_distance(X, X2)
        # the slope of sqrt is infinite at zero; below the floor the derivative of `maximum` is zero
        return self.variance * jnp.exp(-jnp.sqrt(jnp.maximum(r2, float(jnp.finfo(r2.dtype).tiny) ** 0.5)))


class Matern32(AbstractStationary):
    """`variance * (1 + sqrt(3) r) exp(-sqrt(3) r)`: once differentiable. Its gradient is written by hand."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]

    def __call__(self, X, X2):
        return stationary_gram(matern32, X, X2, self.lengthscales, self.variance)


class Matern52(AbstractStationary):
    """`variance * (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r)`: twice differentiable, with a gradient written by hand."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]

    def __call__(self, X, X2):
        return stationary_gram(matern52, X, X2, self.lengthscales, self.variance)


class RationalQuadratic(AbstractStationary):
    """`variance * (1 + r^2 / (2 alpha))^-alpha`: a scale mixture of RBF kernels."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]
    alpha: Float[Array, ""]

    def __call__(self, X, X2):
        r2 = self.squared_distance(X, X2)
        return self.variance * jnp.exp(-self.alpha * jnp.log1p(r2 / (2.0 * self.alpha)))


class Periodic(AbstractKernel):
    """`variance * exp(-1/2 sum_d [sin(pi (x_d - x'_d) / period_d) / l_d]^2)`, with periods that are learned."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]
    period: Float[Array, " D"]

    def __call__(self, X, X2):
        return _on_circles(X, X2, self.period, self.lengthscales, self.variance)

    def diag(self, X):
        return jnp.full(X.shape[0], self.variance)


class Seasonal(AbstractKernel):
    """`Periodic` with known periods, one per input, such as 24 hours in units of the input. They are not sampled."""

    variance: Float[Array, ""]
    lengthscales: Float[Array, " D"]
    periods: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, X, X2):
        return _on_circles(X, X2, jnp.asarray(self.periods, X.dtype), self.lengthscales, self.variance)

    def diag(self, X):
        return jnp.full(X.shape[0], self.variance)


def _on_circles(X, X2, period, lengthscales, variance):
    def circle(X):
        angle = 2.0 * jnp.pi * X / period[None, :]
        scale = 0.5 / lengthscales[None, :]
        return jnp.concatenate([jnp.cos(angle) * scale, jnp.sin(angle) * scale], axis=1)

    # the sum of sin^2(a - b) over inputs is a squared distance between points on circles:
    # |(cos 2a, sin 2a) - (cos 2b, sin 2b)|^2 = 4 sin^2(a - b)
    return variance * jnp.exp(-0.5 * squared_distance(circle(X), circle(X2)))


class Linear(AbstractKernel):
    """`sum_d variances_d x_d x'_d + bias_variance`: Bayesian linear regression."""

    variances: Float[Array, " D"]
    bias_variance: Float[Array, ""]

    def __call__(self, X, X2):
        return linear_gram(X, X2, self.variances, self.bias_variance)

    def diag(self, X):
        return (X * X) @ self.variances + self.bias_variance


class Sum(AbstractKernel):
    """`left + right`."""

    left: AbstractKernel
    right: AbstractKernel

    def __call__(self, X, X2):
        return self.left(X, X2) + self.right(X, X2)

    def diag(self, X):
        return self.left.diag(X) + self.right.diag(X)


class Product(AbstractKernel):
    """`left * right`."""

    left: AbstractKernel
    right: AbstractKernel

    def __call__(self, X, X2):
        return self.left(X, X2) * self.right(X, X2)

    def diag(self, X):
        return self.left.diag(X) * self.right.diag(X)


class ActiveDimensions(AbstractKernel):
    """A kernel of selected input columns."""

    kernel: AbstractKernel
    dimensions: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self):
        if not self.dimensions or any(d < 0 for d in self.dimensions):
            raise ValueError(
                f"`dimensions` must be column numbers from 0 up, got {self.dimensions}. Pass at least one column."
            )

    def _select(self, X):
        if max(self.dimensions) >= X.shape[1]:
            raise ValueError(
                f"`dimensions` {self.dimensions} must lie within the {X.shape[1]} columns of the input. "
                "Choose smaller column numbers, or pass more columns."
            )
        return X[:, np.asarray(self.dimensions)]

    def __call__(self, X, X2):
        return self.kernel(self._select(X), self._select(X2))

    def diag(self, X):
        return self.kernel.diag(self._select(X))


def stationary(kind: type[AbstractStationary], num_dims: int, dtype, variance: float = 0.1) -> AbstractStationary:
    """A stationary kernel at the paper authors' initial values: variance 0.1, every lengthscale sqrt(D)."""
    check_count("num_dims", num_dims)
    check_positive("variance", variance)
    fields = {
        "variance": jnp.asarray(variance, dtype),
        "lengthscales": jnp.full(num_dims, num_dims**0.5, dtype),
    }
    if kind is RationalQuadratic:
        fields["alpha"] = jnp.asarray(1.0, dtype)
    return kind(**fields)


def linear(num_dims: int, dtype, variance: float = 0.05) -> Linear:
    """A linear kernel whose variances are all `variance`, by default the median of their prior."""
    check_count("num_dims", num_dims)
    check_positive("variance", variance)
    return Linear(jnp.full(num_dims, variance, dtype), jnp.asarray(variance, dtype))
