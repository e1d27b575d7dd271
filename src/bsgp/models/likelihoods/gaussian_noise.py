"""Likelihood with Gaussian noise."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood, VarianceParts, normal_log_prob
from bsgp.models.linalg.numerics import Marginals
from bsgp.runtime.checks import check_count, check_matrix, check_positive, check_varies

START_NOISE = 0.1
"""Noise variance from which methods start that optimise it; targets are standardised."""


class Gaussian(AbstractLikelihood):
    """`y = f + e`, `e ~ N(0, noise_variance)`, with one noise variance per output. Both integrals in closed form.

    If `shared_by` is given, that many outputs share a single noise variance, and `noise_variance` is `[1]`.
    """

    has_units = True
    noise_variance: Float[Array, " P"]
    shared_by: int | None = eqx.field(static=True, default=None)

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.shared_by or self.noise_variance.shape[0])
        check_varies("y", y)
        return y

    def log_prob(self, y, f):
        return normal_log_prob(y, f, jnp.broadcast_to(self.noise_variance, f.shape))

    def expected_log_prob(self, y, f):
        noise = self.noise_variance[None, :]
        return normal_log_prob(y, f.mean, noise) - 0.5 * f.variance / noise

    def log_expected_prob(self, y, f):
        return normal_log_prob(y, f.mean, f.variance + self.noise_variance[None, :])

    def predict(self, f):
        return Marginals(f.mean, f.variance + self.noise_variance[None, :])

    def variance_parts(self, f):
        return VarianceParts(f.variance, jnp.broadcast_to(self.noise_variance, f.variance.shape))

    def cdf(self, y, f):
        return ndtr((y - f.mean) / jnp.sqrt(f.variance + self.noise_variance[None, :]))

    def sample(self, key, f):
        return f + jnp.sqrt(jnp.broadcast_to(self.noise_variance, f.shape)) * jr.normal(key, f.shape, f.dtype)


def gaussian(num_targets: int, dtype, noise_variance: float = 1.0) -> Gaussian:
    """A `Gaussian` with equal noise variances; by default 1, the paper authors' initial value."""
    check_positive("noise_variance", noise_variance)
    return Gaussian(jnp.full(check_count("num_targets", num_targets), noise_variance, dtype))


def check_gaussian(method: str, likelihood: AbstractLikelihood) -> Gaussian:
    """The likelihood if its noise is Gaussian, or a `ValueError`."""
    if not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"`{method}` is for regression with Gaussian noise, got a {type(likelihood).__name__} likelihood. "
            "Use `bsgp` or `svgp`."
        )
    return likelihood
