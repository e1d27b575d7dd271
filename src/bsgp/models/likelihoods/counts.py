"""Likelihood of counts."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaincc, gammaln, logsumexp
from jaxtyping import Array

from bsgp.models.likelihoods.base import (
    NUM_QUADRATURE_POINTS,
    AbstractLikelihood,
    VarianceParts,
    normal_log_prob,
    quadrature_nodes,
)
from bsgp.models.linalg.numerics import LOG_2PI, Marginals, gauss_hermite
from bsgp.runtime.checks import check_matrix, check_varies


class Poisson(AbstractLikelihood):
    """Counts, `y ~ Poisson(exp f)`. VFE integral in closed form; FITC integral by quadrature around the mode."""

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y)
        if (y < 0).any() or (y != np.round(y)).any():
            bad = y[(y < 0) | (y != np.round(y))][0]
            raise ValueError(f"`y` must hold counts 0, 1, 2, ..., got {bad}. Use `Gaussian` for other numbers.")
        check_varies("y", y)
        return y

    def log_prob(self, y, f):
        return y * f - jnp.exp(f) - gammaln(y + 1.0)

    def expected_log_prob(self, y, f):
        return y * f.mean - jnp.exp(f.mean + 0.5 * f.variance) - gammaln(y + 1.0)

    def log_expected_prob(self, y, f):
        # For a large count p(y | f) is far narrower than the density of f, so the nodes are placed around the mode of
        # their product. The integral does not depend on the nodes, so mode and width need no gradient.
        variance = jnp.maximum(f.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5)
        mode, width = jax.lax.stop_gradient(_poisson_mode(y, f.mean, variance))
        nodes, weights = (jnp.asarray(v, f.mean.dtype)[:, None, None] for v in gauss_hermite(NUM_QUADRATURE_POINTS))
        at = mode[None] + width[None] * nodes
        log_integrand = self.log_prob(y[None], at) + normal_log_prob(at, f.mean[None], variance[None])
        log_proposal = -0.5 * (LOG_2PI + nodes**2) - jnp.log(width)[None]
        return logsumexp(jnp.log(weights) + log_integrand - log_proposal, axis=0)

    def predict(self, f):
        mean = jnp.exp(f.mean + 0.5 * f.variance)
        return Marginals(mean, mean + jnp.expm1(f.variance) * mean**2)

    def variance_parts(self, f):
        mean = jnp.exp(f.mean + 0.5 * f.variance)
        return VarianceParts(jnp.expm1(f.variance) * mean**2, mean)

    def cdf(self, y, f):
        nodes, weights = quadrature_nodes(f, NUM_QUADRATURE_POINTS)
        count = jnp.broadcast_to(jnp.floor(y)[None], nodes.shape)
        below = jnp.where(count < 0, 0.0, gammaincc(jnp.maximum(count, 0.0) + 1.0, jnp.exp(nodes)))
        return jnp.sum(weights * below, axis=0)

    def sample(self, key, f):
        return jr.poisson(key, jnp.exp(f), f.shape).astype(f.dtype)


def _poisson_mode(y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Mode and width of `Poisson(y | e^f) N(f | mean, variance)` in f, by Newton's method (the log is concave)."""

    def newton(f, _):
        rate = jnp.exp(f)
        slope = y - rate - (f - mean) / variance
        return f + jnp.clip(slope / (rate + 1.0 / variance), -2.0, 2.0), None

    start = jnp.where(variance * (y + 1.0) > 1.0, jnp.log(y + 0.5), mean)
    mode, _ = jax.lax.scan(newton, start, None, length=12)
    return mode, 1.0 / jnp.sqrt(jnp.exp(mode) + 1.0 / variance)


def nearest_target(likelihood: AbstractLikelihood, y: Array) -> Array:
    """The nearest possible target: counts are whole numbers."""
    return jnp.round(y) if isinstance(likelihood, Poisson) else y
