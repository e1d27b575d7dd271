"""Matrices of kernel values with gradients written by hand: what autodiff would do in four passes takes two.

The gradient of a function of scaled distances needs one matrix `G [N M]`, the weight of every pair of points, and a
single product of G with the columns of X2. Tests compare the gradients with those of autodiff.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bsgp.models.linalg.numerics import squared_distance

Shape = Callable[[Array], tuple[Array, Array]]
"""From `r^2 [N M]` to `k(r) / variance`, and minus two times its derivative by `r^2`."""


@jax.custom_vjp
def rbf_gram(
    X: Float[Array, "N D"], X2: Float[Array, "M D"], lengthscales: Float[Array, " D"], variance: Float[Array, ""]
) -> Float[Array, "N M"]:
    """`variance * exp(-1/2 sum_d (x_d - x'_d)^2 / l_d^2)`, with the exponent from one matrix product."""
    return _rbf_forward(X, X2, lengthscales, variance)[0]


def _rbf_forward(X, X2, lengthscales, variance):
    scaled, scaled2 = X / lengthscales[None, :], X2 / lengthscales[None, :]
    row_term = jnp.log(variance) - 0.5 * jnp.sum(scaled * scaled, axis=1)
    column_term = -0.5 * jnp.sum(scaled2 * scaled2, axis=1)
    K = jnp.exp(scaled @ scaled2.T + row_term[:, None] + column_term[None, :])
    return K, (X, X2, lengthscales, variance, K)


def _rbf_backward(residuals, dK):
    X, X2, lengthscales, variance, K = residuals
    *by_points, total = _by_points(dK * K, X, X2, lengthscales)
    return *by_points, total / variance


rbf_gram.defvjp(_rbf_forward, _rbf_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def stationary_gram(
    shape: Shape,
    X: Float[Array, "N D"],
    X2: Float[Array, "M D"],
    lengthscales: Float[Array, " D"],
    variance: Float[Array, ""],
) -> Float[Array, "N M"]:
    """`variance * shape(r^2)`, with `r^2 = sum_d (x_d - x'_d)^2 / l_d^2`."""
    return variance * shape(_scaled_distance(X, X2, lengthscales))[0]


def _scaled_distance(X, X2, lengthscales):
    scale = 1.0 / lengthscales[None, :]
    return squared_distance(X * scale, X2 * scale)


def _stationary_forward(shape, X, X2, lengthscales, variance):
    values, slopes = shape(_scaled_distance(X, X2, lengthscales))
    return variance * values, (X, X2, lengthscales, variance, values, slopes)


def _stationary_backward(shape, residuals, dK):
    del shape
    X, X2, lengthscales, variance, values, slopes = residuals
    *by_points, _ = _by_points(dK * (variance * slopes), X, X2, lengthscales)
    return *by_points, jnp.sum(dK * values)


stationary_gram.defvjp(_stationary_forward, _stationary_backward)


def _by_points(G, X, X2, lengthscales):
    """Gradients by X, X2 and lengthscales of `-1/2 sum G r^2` with G held fixed, and the sum of G."""
    num_dims = X.shape[1]
    # one product gives the sums of G, G x' and G x'^2 over X2. The sums over X are needed for dX2 only; if it is not
    # used (data are not differentiated), the compiler drops them
    sums = G @ jnp.concatenate([X2, X2 * X2, jnp.ones((X2.shape[0], 1), X2.dtype)], axis=1)
    first, second, total = sums[:, :num_dims], sums[:, num_dims:-1], sums[:, -1:]
    squared = jnp.sum(total * X * X - 2.0 * X * first + second, axis=0)  # sum of G (x_d - x'_d)^2
    dX = (first - total * X) / (lengthscales**2)[None, :]
    dX2 = ((X.T @ G).T - jnp.sum(G, axis=0)[:, None] * X2) / (lengthscales**2)[None, :]
    return dX, dX2, squared / lengthscales**3, jnp.sum(total)


@jax.custom_vjp
def linear_gram(
    X: Float[Array, "N D"], X2: Float[Array, "M D"], variances: Float[Array, " D"], bias_variance: Float[Array, ""]
) -> Float[Array, "N M"]:
    """`sum_d variances_d x_d x'_d + bias_variance`."""
    return _linear_forward(X, X2, variances, bias_variance)[0]


def _linear_forward(X, X2, variances, bias_variance):
    return (X * variances[None, :]) @ X2.T + bias_variance, (X, X2, variances)


def _linear_backward(residuals, dK):
    X, X2, variances = residuals
    sums = dK @ jnp.concatenate([X2, jnp.ones((X2.shape[0], 1), X2.dtype)], axis=1)
    weighted, totals = sums[:, :-1], sums[:, -1]
    dX2 = (X.T @ dK).T * variances[None, :]  # dropped by the compiler if it is not used, as above
    return weighted * variances[None, :], dX2, jnp.sum(X * weighted, axis=0), jnp.sum(totals)


linear_gram.defvjp(_linear_forward, _linear_backward)


def matern32(r2: Float[Array, "N M"]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
    """`(1 + r) exp(-r)` at `sqrt(3)` times the distance, for `stationary_gram`. The slope has no pole at zero."""
    r = jnp.sqrt(3.0 * r2)
    decay = jnp.exp(-r)
    return (1.0 + r) * decay, 3.0 * decay


def matern52(r2: Float[Array, "N M"]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
    """`(1 + r + r^2 / 3) exp(-r)` at `sqrt(5)` times the distance, for `stationary_gram`."""
    r = jnp.sqrt(5.0 * r2)
    decay = (1.0 + r) * jnp.exp(-r)
    return decay + r * r / 3.0 * jnp.exp(-r), (5.0 / 3.0) * decay
