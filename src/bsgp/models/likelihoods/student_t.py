"""Likelihood with Student-t noise, for targets with outliers."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaln, logsumexp, ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood, VarianceParts, normal_log_prob
from bsgp.models.linalg.numerics import Marginals
from bsgp.runtime.checks import check_matrix, check_varies


class StudentT(AbstractLikelihood):
    """`y = f + scale * t` with Student-t distributed t; one scale and one number of degrees of freedom per output.

    A Student-t distribution is a mixture of Gaussians over a gamma precision g. For given g the expectation over f is
    in closed form; the remaining integral over log g is smooth, and exact to rounding on an even grid.
    """

    has_units = True
    scale: Float[Array, " P"]
    degrees_of_freedom: Float[Array, " P"]
    """Above 2, so that the variance is finite."""

    def __init__(self, scale: Float[Array, " P"], degrees_of_freedom: float | Float[Array, " P"] = 4.0):
        if isinstance(degrees_of_freedom, float | int) and not degrees_of_freedom > 2:
            raise ValueError(
                f"`degrees_of_freedom` must be above 2, got {degrees_of_freedom}. "
                "At 2 and below the variance is infinite; 4 is a common choice."
            )
        self.scale = scale
        self.degrees_of_freedom = jnp.broadcast_to(jnp.asarray(degrees_of_freedom, scale.dtype), scale.shape)

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.scale.shape[0])
        check_varies("y", y)
        return y

    def log_prob(self, y, f):
        nu = self.degrees_of_freedom
        constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * jnp.log(nu * math.pi) - jnp.log(self.scale)
        scale, nu, constant = (jnp.broadcast_to(one, f.shape) for one in (self.scale, nu, constant))
        return constant - 0.5 * (nu + 1.0) * jnp.log1p(((y - f) / scale) ** 2 / nu)

    def expected_log_prob(self, y, f):
        # log(1 + a) = int (1 - exp(-a t)) exp(-t) / t dt. With a = (y - f)^2 / c the expectation over f is in closed
        # form for each t, which leaves one smooth integral over log t; nodes in f would miss a peak of narrow scale
        nu = self.degrees_of_freedom[None, :]
        log_t, spacing = np.linspace(-40.0, 4.0, 128, retstep=True)
        t = jnp.asarray(np.exp(log_t), f.mean.dtype)[:, None, None]
        weight = jnp.asarray(spacing * np.exp(-np.exp(log_t)), f.mean.dtype)[:, None, None]
        c = (nu * self.scale[None, :] ** 2)[None]
        spread = c + 2.0 * t * f.variance[None]
        survival = jnp.exp(-t * (y - f.mean)[None] ** 2 / spread + 0.5 * jnp.log(c / spread))
        expected_log1p = jnp.sum(weight * (1.0 - survival), axis=0)
        return self.log_prob(y, y) - 0.5 * (nu + 1.0) * expected_log1p

    def _mixture(self, f: Marginals) -> tuple[Array, Array]:
        """Log weights `[G 1 P]` and variances `[G N P]` of the Gaussian mixture that is the distribution of y."""
        half = 0.5 * self.degrees_of_freedom[None, None, :]
        # the density of log g is negligible below the first node and above the last
        first, last = -60.0 / (half + 1.0), jnp.log(1.0 + 40.0 / half)
        steps = jnp.asarray(np.linspace(0.0, 1.0, 96), f.mean.dtype)[:, None, None]
        log_g = first + (last - first) * steps
        log_weight = jax.nn.log_softmax(half * log_g - half * jnp.exp(log_g), axis=0)
        return log_weight, f.variance[None] + (self.scale**2)[None, None, :] * jnp.exp(-log_g)

    def log_expected_prob(self, y, f):
        log_weight, variance = self._mixture(f)
        return logsumexp(log_weight + normal_log_prob(y[None], f.mean[None], variance), axis=0)

    def predict(self, f):
        epistemic, aleatoric = self.variance_parts(f)
        return Marginals(f.mean, epistemic + aleatoric)

    def variance_parts(self, f):
        nu = self.degrees_of_freedom
        return VarianceParts(f.variance, jnp.broadcast_to(nu / (nu - 2.0) * self.scale**2, f.variance.shape))

    def cdf(self, y, f):
        log_weight, variance = self._mixture(f)
        return jnp.sum(jnp.exp(log_weight) * ndtr((y - f.mean)[None] / jnp.sqrt(variance)), axis=0)

    def sample(self, key, f):
        draw = jr.t(key, jnp.broadcast_to(self.degrees_of_freedom, f.shape), f.shape, f.dtype)
        return f + jnp.broadcast_to(self.scale, f.shape) * draw


def student_t(num_targets: int, dtype) -> StudentT:
    """The likelihood at its start for standardised targets."""
    return StudentT(jnp.full(num_targets, 0.3, dtype), 8.0)
