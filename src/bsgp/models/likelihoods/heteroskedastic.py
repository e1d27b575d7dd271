"""Likelihood with Gaussian noise whose scale varies with the inputs."""

import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood, VarianceParts, normal_log_prob
from bsgp.models.likelihoods.varying_scale import bounded
from bsgp.models.linalg.numerics import Marginals, gauss_hermite
from bsgp.runtime.checks import check_matrix, check_varies

RANGE_OF_SCALES = 50.0
"""Noise is at most this many times as wide in one place as in another."""
NUM_NODES = 16


class Heteroskedastic(AbstractLikelihood):
    """`y = f + e`, `e ~ N(0, s(x)^2)` with `s = scale * exp(bounded(width_amplitude * g))`.

    An output has two latent functions, f and g. Both are integrated: f in closed form, g by quadrature.
    """

    has_units = True
    scale: Float[Array, " P"]
    width_amplitude: Float[Array, " P"]

    def num_latent(self, num_targets):
        return 2 * num_targets

    def check_targets(self, y):
        y = check_matrix("y", y, columns=self.scale.shape[0])
        check_varies("y", y)
        return y

    def _scale_at(self, g: Array) -> Array:
        """Standard deviation of the noise `[... P]` where the second latent function is `g [... P]`."""
        scale, amplitude = (jnp.broadcast_to(one, g.shape) for one in (self.scale, self.width_amplitude))
        return scale * jnp.exp(bounded(amplitude * g, RANGE_OF_SCALES))

    def _noise(self, f: Marginals) -> tuple[Array, Array]:
        """Log weights `[Q 1 1]` and noise variances `[Q N P]` at quadrature nodes of g."""
        nodes, weights = (jnp.asarray(v, f.mean.dtype)[:, None, None] for v in gauss_hermite(NUM_NODES))
        mean, variance = (jnp.split(one, 2, axis=-1)[1] for one in f)
        spread = jnp.sqrt(jnp.maximum(variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5))
        return jnp.log(weights), self._scale_at(mean[None] + spread[None] * nodes) ** 2

    def _of_f(self, f: Marginals) -> Marginals:
        return Marginals(*(jnp.split(one, 2, axis=-1)[0] for one in f))

    def log_prob(self, y, f):
        mean, g = jnp.split(f, 2, axis=-1)
        return normal_log_prob(y, mean, self._scale_at(g) ** 2)

    def expected_log_prob(self, y, f):
        log_weight, noise = self._noise(f)
        at = self._of_f(f)
        each = normal_log_prob(y[None], at.mean[None], noise) - 0.5 * at.variance[None] / noise
        return jnp.sum(jnp.exp(log_weight) * each, axis=0)

    def log_expected_prob(self, y, f):
        log_weight, noise = self._noise(f)
        at = self._of_f(f)
        each = normal_log_prob(y[None], at.mean[None], at.variance[None] + noise)
        return logsumexp(log_weight + each, axis=0)

    def predict(self, f):
        epistemic, aleatoric = self.variance_parts(f)
        return Marginals(self._of_f(f).mean, epistemic + aleatoric)

    def variance_parts(self, f):
        log_weight, noise = self._noise(f)
        return VarianceParts(self._of_f(f).variance, jnp.sum(jnp.exp(log_weight) * noise, axis=0))

    def predictors(self, f):
        return self._of_f(f)

    def cdf(self, y, f):
        log_weight, noise = self._noise(f)
        at = self._of_f(f)
        below = ndtr((y - at.mean)[None] / jnp.sqrt(at.variance[None] + noise))
        return jnp.sum(jnp.exp(log_weight) * below, axis=0)

    def sample(self, key, f):
        mean, g = jnp.split(f, 2, axis=-1)
        return mean + self._scale_at(g) * jr.normal(key, mean.shape, mean.dtype)


def heteroskedastic(num_targets: int, dtype) -> Heteroskedastic:
    """The likelihood at its start for standardised targets."""
    return Heteroskedastic(jnp.full(num_targets, 0.3, dtype), jnp.full(num_targets, 0.5, dtype))
