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

    `known_variance` is the known part of the noise of the rows at hand. It is no parameter: a model holds None, and
    `with_known_variance` adds it where rows are evaluated.
    """

    has_units = True
    noise_variance: Float[Array, " P"]
    shared_by: int | None = eqx.field(static=True, default=None)
    known_variance: Float[Array, "N _"] | None = None

    @property
    def variance_of_rows(self) -> Float[Array, "_ P"]:
        """Variance of the noise, known part included: `[1 P]` if it is the same in all rows, else `[N P]`."""
        learned = self.noise_variance[None, :]
        return learned if self.known_variance is None else learned + self.known_variance

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.shared_by or self.noise_variance.shape[0])
        check_varies("y", y)
        return y

    def log_prob(self, y, f):
        return normal_log_prob(y, f, self._variance_like(f))

    def expected_log_prob(self, y, f):
        noise = self.variance_of_rows
        return normal_log_prob(y, f.mean, noise) - 0.5 * f.variance / noise

    def log_expected_prob(self, y, f):
        return normal_log_prob(y, f.mean, f.variance + self.variance_of_rows)

    def predict(self, f):
        return Marginals(f.mean, f.variance + self.variance_of_rows)

    def variance_parts(self, f):
        return VarianceParts(f.variance, jnp.broadcast_to(self.noise_variance, f.variance.shape))

    def cdf(self, y, f):
        return ndtr((y - f.mean) / jnp.sqrt(f.variance + self.variance_of_rows))

    def sample(self, key, f):
        return f + jnp.sqrt(self._variance_like(f)) * jr.normal(key, f.shape, f.dtype)

    def _variance_like(self, f: Array) -> Array:
        # values may have axes in front of [N P], such as quadrature nodes
        noise = self.noise_variance if self.known_variance is None else self.variance_of_rows
        return jnp.broadcast_to(noise, f.shape)


def with_known_variance(
    likelihood: AbstractLikelihood, known_variance: Float[Array, "N _"] | None
) -> AbstractLikelihood:
    """The likelihood of rows whose noise is known in part: it must be Gaussian, unless nothing is known."""
    if known_variance is None:
        return likelihood
    assert isinstance(likelihood, Gaussian)  # `methods.registry.check_method` has refused the others
    return Gaussian(likelihood.noise_variance, likelihood.shared_by, known_variance)


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
