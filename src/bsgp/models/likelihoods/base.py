"""Interface of likelihoods: `p(y | f)` and its two integrals over Gaussian f, `E log p` (VFE) and `log E p` (FITC).

Both integrals are returned per row and output, `[N P]`, for latent marginals `f` of the same shape. A categorical label
is one output, `[N 1]`, with one latent function per class. `bsgp.Target` sums over rows.
"""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from bsgp.models.linalg.numerics import LOG_2PI, Marginals, gauss_hermite

NUM_QUADRATURE_POINTS = 32


def normal_log_prob(y: Array, mean: Array, variance: Array) -> Array:
    """Elementwise `log N(y | mean, variance)`."""
    return -0.5 * (LOG_2PI + jnp.log(variance) + (y - mean) ** 2 / variance)


def quadrature_nodes(f: Marginals, num_points: int) -> tuple[Array, Array]:
    """Gauss-Hermite nodes `[Q N P]` under `f`, and their weights `[Q 1 1]`."""
    nodes, weights = (jnp.asarray(v, f.mean.dtype)[:, None, None] for v in gauss_hermite(num_points))
    # the floor keeps the slope of the square root finite at zero variance
    scale = jnp.sqrt(jnp.maximum(f.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5))
    return f.mean[None] + scale[None] * nodes, weights


class VarianceParts(NamedTuple):
    """The variance of y in two parts, by the law of total variance."""

    epistemic: Float[Array, "N P"]
    """`Var E[y | f]`: what is unknown about the function, which more data would remove."""
    aleatoric: Float[Array, "N P"]
    """`E Var[y | f]`: the noise, which remains however many rows there are."""


class AbstractLikelihood(eqx.Module):
    """`p(y | f)` for one kind of target."""

    has_units: ClassVar[bool] = False
    """Whether y is a quantity that is standardised before a fit, rather than a class, a count or a level."""
    is_discrete: ClassVar[bool] = False
    """Whether y is one of separate numbers, so that its distribution function has steps."""
    cdf_is_slow: ClassVar[bool] = False
    """Whether quantiles come from draws of y, because a search would evaluate the distribution function too often."""
    has_exposure = False  # no annotation: a field of some likelihoods, in an order of their own
    """Whether the last column of the model's inputs is an offset of f: the log of the exposure of counts."""

    @abc.abstractmethod
    def num_latent(self, num_targets: int) -> int:
        """Number of latent functions for `num_targets` columns of y."""

    @abc.abstractmethod
    def check_targets(self, y) -> np.ndarray:
        """Returns `y [N P]` as floats, or raises a `ValueError` that says what is wrong with it."""

    def check_values(self, y) -> np.ndarray:
        """Returns targets of other rows than those of training, or raises a `ValueError`."""
        return y

    @abc.abstractmethod
    def log_prob(self, y: Array, f: Array) -> Array:
        """`log p(y | f)` at given latent values."""

    @abc.abstractmethod
    def expected_log_prob(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`E log p(y | f)`, the VFE integral."""

    @abc.abstractmethod
    def log_expected_prob(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`log E p(y | f)`, the FITC integral and the predictive log density."""

    @abc.abstractmethod
    def predict(self, f: Marginals) -> Marginals:
        """Mean and variance of y under the marginals."""

    @abc.abstractmethod
    def variance_parts(self, f: Marginals) -> VarianceParts:
        """The variance of y under the marginals: the part due to f, and the part due to the noise."""

    def predictors(self, f: Marginals) -> Marginals:
        """Marginals of what data settle about the mean of y, without latent functions that only shape the noise."""
        return f

    @abc.abstractmethod
    def cdf(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`P(Y <= y)` under the marginals; a `ValueError` for classes, which have no order."""

    def nearest(self, y: Array) -> Array:
        """The nearest number that y can be."""
        return y

    @abc.abstractmethod
    def sample(self, key: Array, f: Array) -> Array:
        """One draw of y per latent value."""


def expected_log_prob_by_quadrature(likelihood: AbstractLikelihood, y, f: Marginals) -> Array:
    """`E log p(y | f)` by Gauss-Hermite quadrature."""
    nodes, weights = quadrature_nodes(f, NUM_QUADRATURE_POINTS)
    return jnp.sum(weights * likelihood.log_prob(y[None], nodes), axis=0)


def log_expected_prob_by_quadrature(likelihood: AbstractLikelihood, y, f: Marginals) -> Array:
    """`log E p(y | f)` by Gauss-Hermite quadrature."""
    nodes, weights = quadrature_nodes(f, NUM_QUADRATURE_POINTS)
    return logsumexp(jnp.log(weights) + likelihood.log_prob(y[None], nodes), axis=0)


def variance_parts_by_quadrature(likelihood: AbstractLikelihood, f: Marginals) -> VarianceParts:
    """`variance_parts` by Gauss-Hermite quadrature, if every output has one latent function."""
    nodes, weights = quadrature_nodes(f, NUM_QUADRATURE_POINTS)
    rows = nodes.reshape(-1, nodes.shape[-1])
    given = likelihood.predict(Marginals(rows, jnp.zeros_like(rows)))
    mean, variance = (one.reshape(nodes.shape) for one in given)
    centre = jnp.sum(weights * mean, axis=0)
    return VarianceParts(jnp.sum(weights * (mean - centre[None]) ** 2, axis=0), jnp.sum(weights * variance, axis=0))
