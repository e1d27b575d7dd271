"""Likelihoods of class labels: two classes, and several."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import (
    AbstractLikelihood,
    VarianceParts,
    expected_log_prob_by_quadrature,
    log_expected_prob_by_quadrature,
    variance_parts_by_quadrature,
)
from bsgp.models.likelihoods.largest import log_prob_largest, log_probs_largest
from bsgp.models.linalg.numerics import Marginals, normal_lattice
from bsgp.runtime.checks import check_count, check_matrix, check_option

NUM_PREDICTOR_POINTS = 32
NORMAL_TO_LOGISTIC = np.pi / 6**0.5
"""Standard deviation of the Gumbel noise of the logistic function, over that of the multinomial probit."""


def _variance_of_probit(f: Marginals) -> Float[Array, "N P"]:
    """Variance of `Phi(f)`: the integral of the density of two normals over their correlation, up to `v / (1 + v)`."""
    a2 = f.mean**2 / (1.0 + f.variance)
    last = jnp.arcsin(f.variance / (1.0 + f.variance))
    nodes, weights = (jnp.asarray(one, f.mean.dtype)[:, None, None] for one in np.polynomial.legendre.leggauss(12))
    angle = 0.5 * last[None] * (nodes + 1.0)
    return last / (4.0 * np.pi) * jnp.sum(weights * jnp.exp(-a2[None] / (1.0 + jnp.sin(angle))), axis=0)


def _refuse_order(kind: str):
    raise ValueError(f"Quantiles need an ordered target, got a {kind} likelihood. Use the class probabilities instead.")


class Bernoulli(AbstractLikelihood):
    """Two classes, y in {0, 1}. The FITC integral is in closed form for the probit link, by quadrature for logit."""

    link: str = eqx.field(static=True, default="probit")

    def __check_init__(self):
        check_option("link", self.link, ("probit", "logit"))

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        y = check_matrix("y", y)
        labels = np.unique(y)
        if not np.isin(labels, (0.0, 1.0)).all():
            raise ValueError(
                f"`y` must hold the labels 0 and 1, got {labels[:5].tolist()}. Encode the classes as 0 and 1."
            )
        if (np.ptp(y, axis=0) == 0).any():
            raise ValueError(
                f"`y` must hold both classes, got only {labels.tolist()}. Pass rows of the other class too."
            )
        return y

    def log_prob(self, y, f):
        signed = (2.0 * y - 1.0) * f
        return log_ndtr(signed) if self.link == "probit" else jax.nn.log_sigmoid(signed)

    def expected_log_prob(self, y, f):
        return expected_log_prob_by_quadrature(self, y, f)

    def log_expected_prob(self, y, f):
        if self.link == "logit":
            return log_expected_prob_by_quadrature(self, y, f)
        return log_ndtr((2.0 * y - 1.0) * f.mean / jnp.sqrt(1.0 + f.variance))

    def predict(self, f):
        probability = jnp.exp(self.log_expected_prob(jnp.ones_like(f.mean), f))
        return Marginals(probability, probability * (1.0 - probability))

    def variance_parts(self, f):
        if self.link == "logit":
            return variance_parts_by_quadrature(self, f)
        epistemic = _variance_of_probit(f)
        return VarianceParts(epistemic, jnp.maximum(self.predict(f).variance - epistemic, 0.0))

    def predictors(self, f):
        """The probability of the second class: where it is near 0 or 1, data settle it and not f."""
        return Marginals(self.predict(f).mean, self.variance_parts(f).epistemic)

    def cdf(self, y, f):
        _refuse_order("two-class")

    def sample(self, key, f):
        return jr.bernoulli(key, jnp.exp(self.log_prob(jnp.ones_like(f), f))).astype(f.dtype)


class Categorical(AbstractLikelihood):
    """`num_classes` classes, y in {0, ..., K-1}, one latent function per class: the multinomial probit.

    `p(y = c | f) = P(f_c + e_c > f_j + e_j for all j)` with standard normal e. For independent Gaussian f,
    `E p(y = c | f) = E_t prod_{j != c} Phi((t - m_j) / sqrt(1 + v_j))` with `t ~ N(m_c, 1 + v_c)`: the K-dimensional
    FITC integral reduces to one dimension (`likelihoods.largest`). The VFE integral does not; it is a mean over fixed
    quasi-random points.
    """

    num_classes: int = eqx.field(static=True)
    num_lattice_points: int = eqx.field(static=True, default=64)

    def __check_init__(self):
        check_count("num_classes", self.num_classes, minimum=2)
        check_count("num_lattice_points", self.num_lattice_points, minimum=2)

    def num_latent(self, num_targets):
        return self.num_classes

    def check_targets(self, y):
        y = check_matrix("y", y, columns=1)
        labels = np.unique(y)
        if not np.isin(labels, np.arange(self.num_classes)).all():
            raise ValueError(
                f"`y` must hold labels 0 to {self.num_classes - 1}, got {labels[:8].tolist()}. "
                "Encode the classes as whole numbers from 0, or raise `num_classes`."
            )
        if labels.size == 1:
            raise ValueError(
                f"`y` must hold at least two classes, got only {labels.tolist()}. Pass rows of other classes."
            )
        return y

    def log_prob(self, y, f):
        return self.log_expected_prob(y, Marginals(f, jnp.zeros_like(f)))

    def log_expected_prob(self, y, f):
        labels = y[..., 0].astype(jnp.int32)
        return log_prob_largest(labels, f.mean.T, 1.0 + f.variance.T)[:, None]

    def log_probabilities(self, f: Marginals) -> Float[Array, "N K"]:
        """`log E p(y = c | f)` for every class, normalised over classes."""
        return log_probs_largest(f.mean.T, 1.0 + f.variance.T).T

    def expected_log_prob(self, y, f):
        points = jnp.asarray(normal_lattice(self.num_lattice_points, self.num_classes), f.mean.dtype)
        scale = jnp.sqrt(jnp.maximum(f.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5))

        def at(total, point):
            return total + self.log_prob(y, f.mean + scale * point[None, :]), None

        total, _ = jax.lax.scan(at, jnp.zeros_like(y), points)
        return total / points.shape[0]

    def predict(self, f):
        """Probability of each class `[N K]` and its Bernoulli variance."""
        probability = jnp.exp(self.log_probabilities(f))
        return Marginals(probability, probability * (1.0 - probability))

    def variance_parts(self, f):
        points = jnp.asarray(normal_lattice(self.num_lattice_points, self.num_classes), f.mean.dtype)
        scale = jnp.sqrt(f.variance)

        def given(point):
            return jnp.exp(self.log_probabilities(Marginals(f.mean + scale * point[None, :], jnp.zeros_like(f.mean))))

        each = jax.lax.map(given, points)
        return VarianceParts(jnp.var(each, axis=0), jnp.mean(each * (1.0 - each), axis=0))

    def predictors(self, f):
        """The probabilities of the classes, by the logistic function: it is close, and a hundred times faster."""
        points = jnp.asarray(normal_lattice(NUM_PREDICTOR_POINTS, self.num_classes), f.mean.dtype)
        scale = jnp.sqrt(f.variance)

        def add(sums, point):
            p = jax.nn.softmax(NORMAL_TO_LOGISTIC * (f.mean + scale * point[None, :]), axis=1)
            return (sums[0] + p, sums[1] + p * p), None

        nothing = jnp.zeros_like(f.mean)
        (total, squares), _ = jax.lax.scan(add, (nothing, nothing), points)
        mean = total / points.shape[0]
        return Marginals(mean, jnp.maximum(squares / points.shape[0] - mean**2, 0.0))

    def cdf(self, y, f):
        _refuse_order("categorical")

    def sample(self, key, f):
        noisy = f + jr.normal(key, f.shape, f.dtype)
        return jnp.argmax(noisy, axis=-1, keepdims=True).astype(f.dtype)
