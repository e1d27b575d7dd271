"""Likelihoods of counts: Poisson, and negative binomial for counts that scatter more."""

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import betainc, gammaincc, gammaln, logsumexp
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import (
    NUM_QUADRATURE_POINTS,
    AbstractLikelihood,
    VarianceParts,
    expected_log_prob_by_quadrature,
    normal_log_prob,
    quadrature_nodes,
)
from bsgp.models.linalg.numerics import LOG_2PI, Marginals, gauss_hermite
from bsgp.runtime.checks import check_matrix, check_varies

NUM_NEWTON_STEPS = 12
NUM_CDF_POINTS = 16  # an incomplete beta function takes a microsecond


class AbstractCounts(AbstractLikelihood):
    """Counts 0, 1, 2, ... with mean `exp(f + log_rate)`, times the exposure of the row if rows have one.

    The exposure enters as an offset of f: its logarithm is the last column of the model's inputs.
    """

    is_discrete = True
    cdf_is_slow = True

    if TYPE_CHECKING:  # a field of the base class would come before those of every subclass

        @property
        def log_rate(self) -> Float[Array, " P"] | None:
            """Log of the mean count where f is zero; None for zero."""

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = self.check_values(y)
        check_varies("y", y)
        return y

    def check_values(self, y):
        y = check_matrix("y", y)
        is_odd = (y < 0) | (y != np.round(y))
        if is_odd.any():
            raise ValueError(
                f"`y` must hold counts 0, 1, 2, ..., got {y[is_odd][0]:g}. Use a noise for other numbers, such as "
                "`gaussian`."
            )
        return y

    def nearest(self, y):
        return jnp.maximum(jnp.round(y), 0.0)

    def _log_mean(self, f: Array) -> Array:
        """Log of the mean count where the latent function is f."""
        return f if self.log_rate is None else f + jnp.broadcast_to(self.log_rate, f.shape)

    def _shifted(self, f: Marginals) -> Marginals:
        return Marginals(self._log_mean(f.mean), f.variance)

    @abc.abstractmethod
    def _log_prob(self, y: Array, log_mean: Array) -> Array:
        """Log probability of a count."""

    @abc.abstractmethod
    def _slope(self, y: Array, log_mean: Array) -> tuple[Array, Array]:
        """Derivative of the log probability by the log mean, and minus the second derivative."""

    @abc.abstractmethod
    def _below(self, count: Array, log_mean: Array) -> Array:
        """Probability of at most `count`, which is a whole number from 0."""

    def log_prob(self, y, f):
        return self._log_prob(y, self._log_mean(f))

    def log_expected_prob(self, y, f):
        # For a large count p(y | f) is far narrower than the density of f, so the nodes are placed around the mode of
        # their product. The integral does not depend on the nodes, so mode and width need no gradient.
        at = self._shifted(f)
        variance = jnp.maximum(at.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5)
        mode, width = jax.lax.stop_gradient(self._mode(y, at.mean, variance))
        nodes, weights = (jnp.asarray(v, f.mean.dtype)[:, None, None] for v in gauss_hermite(NUM_QUADRATURE_POINTS))
        log_mean = mode[None] + width[None] * nodes
        log_integrand = self._log_prob(y[None], log_mean) + normal_log_prob(log_mean, at.mean[None], variance[None])
        log_proposal = -0.5 * (LOG_2PI + nodes**2) - jnp.log(width)[None]
        return logsumexp(jnp.log(weights) + log_integrand - log_proposal, axis=0)

    def _mode(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Mode and width of the density of the log mean given y, by Newton's method: its log is concave."""

        def newton(at, _):
            slope, curvature = self._slope(y, at)
            step = (slope - (at - mean) / variance) / (curvature + 1.0 / variance)
            return at + jnp.clip(step, -2.0, 2.0), None

        start = jnp.where(variance * (y + 1.0) > 1.0, jnp.log(y + 0.5), mean)
        mode, _ = jax.lax.scan(newton, start, None, length=NUM_NEWTON_STEPS)
        return mode, 1.0 / jnp.sqrt(self._slope(y, mode)[1] + 1.0 / variance)

    def predict(self, f):
        at = self._shifted(f)
        epistemic, aleatoric = self.variance_parts(f)
        return Marginals(jnp.exp(at.mean + 0.5 * at.variance), epistemic + aleatoric)

    def cdf(self, y, f):
        nodes, weights = quadrature_nodes(self._shifted(f), NUM_CDF_POINTS)
        count = jnp.broadcast_to(jnp.floor(y)[None], nodes.shape)
        below = jnp.where(count < 0, 0.0, self._below(jnp.maximum(count, 0.0), nodes))
        return jnp.sum(weights * below, axis=0)


class Poisson(AbstractCounts):
    """Counts, `y ~ Poisson(exp(f + log_rate))`. VFE integral in closed form; FITC integral by quadrature."""

    log_rate: Float[Array, " P"] | None = None
    has_exposure: bool = eqx.field(static=True, default=False)

    def _log_prob(self, y, log_mean):
        return y * log_mean - jnp.exp(log_mean) - gammaln(y + 1.0)

    def _slope(self, y, log_mean):
        rate = jnp.exp(log_mean)
        return y - rate, rate

    def _below(self, count, log_mean):
        return gammaincc(count + 1.0, jnp.exp(log_mean))

    def expected_log_prob(self, y, f):
        at = self._shifted(f)
        return y * at.mean - jnp.exp(at.mean + 0.5 * at.variance) - gammaln(y + 1.0)

    def variance_parts(self, f):
        at = self._shifted(f)
        mean = jnp.exp(at.mean + 0.5 * at.variance)
        return VarianceParts(jnp.expm1(at.variance) * mean**2, mean)

    def sample(self, key, f):
        return jr.poisson(key, jnp.exp(self._log_mean(f)), f.shape).astype(f.dtype)


class NegativeBinomial(AbstractCounts):
    """Counts that scatter more than Poisson's: mean `m = exp(f + log_rate)`, variance `m + m^2 / concentration`.

    It is a Poisson distribution whose mean is multiplied by a gamma variable with mean 1. Both integrals over f are by
    quadrature.
    """

    concentration: Float[Array, " P"]
    log_rate: Float[Array, " P"] | None = None
    has_exposure: bool = eqx.field(static=True, default=False)

    def _log_prob(self, y, log_mean):
        r = jnp.broadcast_to(self.concentration, log_mean.shape)
        log_total = jnp.logaddexp(jnp.log(r), log_mean)
        constant = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        return constant + r * (jnp.log(r) - log_total) + y * (log_mean - log_total)

    def _slope(self, y, log_mean):
        r = jnp.broadcast_to(self.concentration, log_mean.shape)
        share = jax.nn.sigmoid(log_mean - jnp.log(r))  # m / (r + m)
        return y - (y + r) * share, (y + r) * share * (1.0 - share)

    def _below(self, count, log_mean):
        r = jnp.broadcast_to(self.concentration, log_mean.shape)
        return betainc(r, count + 1.0, jax.nn.sigmoid(jnp.log(r) - log_mean))

    def expected_log_prob(self, y, f):
        return expected_log_prob_by_quadrature(self, y, f)

    def variance_parts(self, f):
        at = self._shifted(f)
        mean = jnp.exp(at.mean + 0.5 * at.variance)
        mean_square = mean**2 * jnp.exp(at.variance)
        r = jnp.broadcast_to(self.concentration, mean.shape)
        return VarianceParts(jnp.expm1(at.variance) * mean**2, mean + mean_square / r)

    def sample(self, key, f):
        gamma_key, count_key = jr.split(key)
        r = jnp.broadcast_to(self.concentration, f.shape)
        rate = jnp.exp(self._log_mean(f)) * jr.gamma(gamma_key, r, f.shape, f.dtype) / r
        return jr.poisson(count_key, rate, f.shape).astype(f.dtype)


def log_mean_count(y: np.ndarray, exposure: np.ndarray | None = None, weight: np.ndarray | None = None) -> np.ndarray:
    """Log of the mean count of each column, per unit of exposure, of rows that may have weights."""
    ones = np.ones(len(y))
    weight, exposure = ones if weight is None else weight, ones if exposure is None else exposure
    return np.log(weight @ y / (weight @ exposure))
