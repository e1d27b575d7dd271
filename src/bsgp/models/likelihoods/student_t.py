"""Likelihood with Student-t noise, for targets with outliers."""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood, normal_log_prob
from bsgp.models.linalg.numerics import Marginals
from bsgp.runtime.checks import check_matrix, check_varies


class StudentT(AbstractLikelihood):
    """`y = f + scale * t` with Student-t distributed t, for targets with outliers; one scale per output.

    A Student-t distribution is a mixture of Gaussians over a gamma precision g. For given g the expectation over f is
    in closed form; the remaining integral over log g is smooth, and exact to rounding on an even grid.
    """

    scale: Float[Array, " P"]
    degrees_of_freedom: float = eqx.field(static=True, default=4.0)

    def __check_init__(self):
        if not self.degrees_of_freedom > 2:
            raise ValueError(
                f"`degrees_of_freedom` must be above 2, got {self.degrees_of_freedom}. "
                "At 2 and below the variance is infinite; 4 is a common choice."
            )

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.scale.shape[0])
        check_varies("y", y)
        return y

    def log_prob(self, y, f):
        nu = self.degrees_of_freedom
        constant = math.lgamma(0.5 * (nu + 1)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
        scale = jnp.broadcast_to(self.scale, f.shape)
        return constant - jnp.log(scale) - 0.5 * (nu + 1) * jnp.log1p(((y - f) / scale) ** 2 / nu)

    def expected_log_prob(self, y, f):
        # log(1 + a) = int (1 - exp(-a t)) exp(-t) / t dt. With a = (y - f)^2 / c the expectation over f is in closed
        # form for each t, which leaves one smooth integral over log t; nodes in f would miss a peak of narrow scale
        nu = self.degrees_of_freedom
        log_t, spacing = np.linspace(-40.0, 4.0, 128, retstep=True)
        t = jnp.asarray(np.exp(log_t), f.mean.dtype)[:, None, None]
        weight = jnp.asarray(spacing * np.exp(-np.exp(log_t)), f.mean.dtype)[:, None, None]
        c = nu * (self.scale**2)[None, None, :]
        spread = c + 2.0 * t * f.variance[None]
        survival = jnp.exp(-t * (y - f.mean)[None] ** 2 / spread + 0.5 * jnp.log(c / spread))
        expected_log1p = jnp.sum(weight * (1.0 - survival), axis=0)
        return self.log_prob(y, y) - 0.5 * (nu + 1) * expected_log1p

    def _mixture(self, f: Marginals) -> tuple[Array, Array]:
        """Log weights `[G 1 1]` and variances `[G N P]` of the Gaussian mixture that is the distribution of y."""
        half = 0.5 * self.degrees_of_freedom
        log_g = np.linspace(-60.0 / (half + 1.0), math.log(1.0 + 40.0 / half), 96)
        log_weight = half * log_g - half * np.exp(log_g)
        log_weight -= np.log(np.sum(np.exp(log_weight)))
        noise = (self.scale**2)[None, None, :] * jnp.asarray(np.exp(-log_g), f.mean.dtype)[:, None, None]
        return jnp.asarray(log_weight, f.mean.dtype)[:, None, None], f.variance[None] + noise

    def log_expected_prob(self, y, f):
        log_weight, variance = self._mixture(f)
        return logsumexp(log_weight + normal_log_prob(y[None], f.mean[None], variance), axis=0)

    def predict(self, f):
        nu = self.degrees_of_freedom
        return Marginals(f.mean, f.variance + (nu / (nu - 2.0)) * (self.scale**2)[None, :])

    def cdf(self, y, f):
        log_weight, variance = self._mixture(f)
        return jnp.sum(jnp.exp(log_weight) * ndtr((y - f.mean)[None] / jnp.sqrt(variance)), axis=0)

    def sample(self, key, f):
        draw = jr.t(key, self.degrees_of_freedom, f.shape, f.dtype)
        return f + jnp.broadcast_to(self.scale, f.shape) * draw
