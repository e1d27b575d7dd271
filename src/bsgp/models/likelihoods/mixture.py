"""Likelihood with a mixture of Gaussians as noise: skewed, heavy-tailed or with several modes, as the inputs say."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood, VarianceParts, normal_log_prob
from bsgp.models.likelihoods.varying_scale import bounded
from bsgp.models.linalg.numerics import Marginals, normal_lattice
from bsgp.runtime.checks import check_matrix, check_varies

NUM_COMPONENTS = 5
RANGE_OF_SCALES = 20.0
"""No component is more than this many times as wide as another, anywhere."""
NUM_LATTICE_POINTS = 64


class Components(NamedTuple):
    """A mixture of Gaussians for every output and row, `[P K N]`."""

    log_weight: Float[Array, "P K N"]
    mean: Float[Array, "P K N"]
    variance: Float[Array, "P K N"]

    def log_density(self, y: Float[Array, "N P"]) -> Float[Array, "N P"]:
        """Log density of the mixture."""
        each = self.log_weight + normal_log_prob(y.T[:, None, :], self.mean, self.variance)
        return logsumexp(each, axis=1).T

    def cdf(self, y: Float[Array, "N P"]) -> Float[Array, "N P"]:
        """Distribution function of the mixture."""
        below = ndtr((y.T[:, None, :] - self.mean) / jnp.sqrt(self.variance))
        return jnp.sum(jnp.exp(self.log_weight) * below, axis=1).T

    def moments(self) -> Marginals:
        """Mean and variance of the mixture, `[N P]`."""
        weight = jnp.exp(self.log_weight)
        mean = jnp.sum(weight * self.mean, axis=1)
        variance = jnp.sum(weight * (self.variance + (self.mean - mean[:, None]) ** 2), axis=1)
        return Marginals(mean.T, variance.T)


class GaussianMixture(AbstractLikelihood):
    """`y ~ sum_k w_k(x) N(m_k(x), s_k(x)^2)` with K components for each output.

    An output has `1 + 3 K` latent functions: f, which all components follow, and d, g and h for each component:

        m_k = f + locations_k + shift_amplitude * d_k
        s_k = scale * exp(bounded(log_widths_k + width_amplitude * g_k))
        w_k = weights_k * exp(weight_amplitude * h_k), normalised over k

    Means are integrated over f and d, in closed form. Widths and weights follow the conditional means of g and h: they
    are functions of the inducing variables alone.
    """

    has_units = True
    scale: Float[Array, " P"]
    locations: Float[Array, "P K"]
    log_widths: Float[Array, "P K"]
    weights: Float[Array, "P K"]
    shift_amplitude: Float[Array, " P"]
    width_amplitude: Float[Array, " P"]
    weight_amplitude: Float[Array, " P"]

    @property
    def num_components(self) -> int:
        return self.locations.shape[-1]

    def num_latent(self, num_targets):
        return num_targets * (1 + 3 * self.num_components)

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.scale.shape[0])
        check_varies("y", y)
        return y

    # -- a mixture for each row and output ---------------------------------------------------------------------

    def components(self, f: Marginals) -> "Components":
        """The mixture of every row and output, with f and d integrated out."""
        num_targets, K = self.locations.shape[-2:]
        # components come first, so that rows are contiguous where the work is
        mean = jnp.moveaxis(f.mean, -1, 0).reshape(num_targets, 1 + 3 * K, -1)
        variance = jnp.moveaxis(f.variance, -1, 0).reshape(num_targets, 1 + 3 * K, -1)
        shared, d, g, h = jnp.split(mean, [1, 1 + K, 1 + 2 * K], axis=1)
        shift = self.shift_amplitude[:, None, None]
        width = bounded(self.log_widths[:, :, None] + self.width_amplitude[:, None, None] * g, RANGE_OF_SCALES)
        log_weight = jnp.log(self.weights)[:, :, None] + self.weight_amplitude[:, None, None] * h
        return Components(
            jax.nn.log_softmax(log_weight, axis=1),
            shared + self.locations[:, :, None] + shift * d,
            variance[:, :1] + shift**2 * variance[:, 1 : 1 + K] + (self.scale[:, None, None] * jnp.exp(width)) ** 2,
        )

    def log_prob(self, y, f):
        return self.log_expected_prob(y, Marginals(f, jnp.zeros_like(f)))

    def log_expected_prob(self, y, f):
        return self.components(f).log_density(y)

    def expected_log_prob(self, y, f):
        num_targets, K = self.locations.shape
        points = normal_lattice(NUM_LATTICE_POINTS, num_targets * (1 + K)).reshape(-1, num_targets, 1 + K)
        # widths and weights stay at the conditional means of their functions
        points = jnp.asarray(np.pad(points, ((0, 0), (0, 0), (0, 2 * K))).reshape(len(points), -1), f.mean.dtype)
        scale = jnp.sqrt(jnp.maximum(f.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5))

        def at(total, point):
            return total + self.log_prob(y, f.mean + scale * point[None, :]), None

        total, _ = jax.lax.scan(at, jnp.zeros_like(y), points)
        return total / points.shape[0]

    def predict(self, f):
        return self.components(f).moments()

    def variance_parts(self, f):
        # f and d move the mean; what d moves apart within the mixture, and all the rest, is noise
        given = self.components(Marginals(f.mean, jnp.zeros_like(f.variance)))
        weight = jnp.exp(given.log_weight)
        shared, shift = self._variances_of_means(f)
        epistemic = shared + jnp.sum(weight**2 * shift, axis=1)
        apart = jnp.sum(weight * (1.0 - weight) * shift, axis=1)
        return VarianceParts(epistemic.T, given.moments().variance + apart.T)

    def predictors(self, f):
        """The mean of the mixture at each row."""
        return Marginals(self.predict(f).mean, self.variance_parts(f).epistemic)

    def _variances_of_means(self, f: Marginals) -> tuple[Float[Array, "P N"], Float[Array, "P K N"]]:
        """Variance of what all components share, and of the shift of each."""
        num_targets, K = self.locations.shape[-2:]
        variance = jnp.moveaxis(f.variance, -1, 0).reshape(num_targets, 1 + 3 * K, -1)
        return variance[:, 0], (self.shift_amplitude**2)[:, None, None] * variance[:, 1 : 1 + K]

    def cdf(self, y, f):
        return self.components(f).cdf(y)

    def sample(self, key, f):
        component_key, noise_key = jr.split(key)
        at = self.components(Marginals(f, jnp.zeros_like(f)))
        picked = jr.categorical(component_key, at.log_weight, axis=1)[:, None, :]
        mean, variance = (jnp.take_along_axis(one, picked, axis=1)[:, 0].T for one in (at.mean, at.variance))
        return mean + jnp.sqrt(variance) * jr.normal(noise_key, mean.shape, mean.dtype)


def gaussian_mixture(num_targets: int, dtype) -> GaussianMixture:
    """A mixture for standardised targets at its start: components spread over the middle of the data."""
    per_component = np.linspace(-1.0, 1.0, NUM_COMPONENTS)
    ones = jnp.ones(num_targets, dtype)
    by_component = jnp.ones((num_targets, NUM_COMPONENTS), dtype)
    return GaussianMixture(
        scale=0.5 * ones,
        locations=jnp.asarray(per_component, dtype)[None, :] * by_component,
        log_widths=0.0 * by_component,
        weights=by_component,
        shift_amplitude=ones,
        width_amplitude=0.5 * ones,
        weight_amplitude=ones,
    )
