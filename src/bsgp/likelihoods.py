"""`p(y | f)` and its two Gaussian integrals: the expectation of the log (VFE) and the log of the expectation (FITC).

Both are returned per row and per output, `[N P]`, for latent marginals `f` of the same shape; a categorical
label is one output, `[N 1]`, fed by one latent function per class. How rows add up is the target's business.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaincc, gammaln, log_ndtr, logsumexp, ndtr
from jaxtyping import Array, Float

from bsgp.checks import check_count, check_matrix, check_option, check_positive, check_varies
from bsgp.numerics import Marginals, gauss_hermite, normal_lattice

LOG_2PI = math.log(2.0 * math.pi)
NUM_QUADRATURE_POINTS = 32


def normal_log_prob(y: Array, mean: Array, variance: Array) -> Array:
    return -0.5 * (LOG_2PI + jnp.log(variance) + (y - mean) ** 2 / variance)


def _quadrature_nodes(f: Marginals, num_points: int) -> tuple[Array, Array]:
    """Gauss-Hermite nodes `[Q N P]` under `f`, and their weights `[Q 1 1]`."""
    nodes, weights = (jnp.asarray(v, f.mean.dtype)[:, None, None] for v in gauss_hermite(num_points))
    # the floor keeps the slope of the square root finite where the conditional has no variance left
    scale = jnp.sqrt(jnp.maximum(f.variance, float(jnp.finfo(f.mean.dtype).tiny) ** 0.5))
    return f.mean[None] + scale[None] * nodes, weights


class AbstractLikelihood(eqx.Module):
    """Quadrature by default; subclasses give closed forms where they exist."""

    @abc.abstractmethod
    def num_latent(self, num_targets: int) -> int:
        """How many latent functions feed `num_targets` columns of y."""

    @abc.abstractmethod
    def check_targets(self, y) -> np.ndarray:
        """`y [N P]` as floats, or a `ValueError` that says what is wrong with it."""

    @abc.abstractmethod
    def log_prob(self, y: Array, f: Array) -> Array: ...

    @abc.abstractmethod
    def expected_log_prob(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`E log p(y | f)`, the VFE integral."""

    @abc.abstractmethod
    def log_expected_prob(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`log E p(y | f)`, the FITC integral and the test density."""

    @abc.abstractmethod
    def predict(self, f: Marginals) -> Marginals:
        """Mean and variance of y."""

    @abc.abstractmethod
    def cdf(self, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
        """`P(Y <= y)` under the marginals; refused where classes have no order."""

    @abc.abstractmethod
    def sample(self, key: Array, f: Array) -> Array:
        """One y for each latent value."""


def expected_log_prob_by_quadrature(likelihood: AbstractLikelihood, y, f: Marginals) -> Array:
    nodes, weights = _quadrature_nodes(f, NUM_QUADRATURE_POINTS)
    return jnp.sum(weights * likelihood.log_prob(y[None], nodes), axis=0)


def log_expected_prob_by_quadrature(likelihood: AbstractLikelihood, y, f: Marginals) -> Array:
    nodes, weights = _quadrature_nodes(f, NUM_QUADRATURE_POINTS)
    return logsumexp(jnp.log(weights) + likelihood.log_prob(y[None], nodes), axis=0)


def _no_order(kind: str):
    raise ValueError(f"Quantiles need an ordered target, got a {kind} likelihood. Use the class probabilities instead.")


class Gaussian(AbstractLikelihood):
    """`y = f + e`, `e ~ N(0, noise_variance)`, one noise per output. Both integrals in closed form.

    `shared_by` outputs have a single noise between them, if given; `noise_variance` is then `[1]`.
    """

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

    def cdf(self, y, f):
        return ndtr((y - f.mean) / jnp.sqrt(f.variance + self.noise_variance[None, :]))

    def sample(self, key, f):
        return f + jnp.sqrt(jnp.broadcast_to(self.noise_variance, f.shape)) * jr.normal(key, f.shape, f.dtype)


class StudentT(AbstractLikelihood):
    """`y = f + scale * t`, for targets with outliers; one scale per output.

    A Student-t is a mixture of Gaussians over a gamma precision g, so the expectation over f is closed for
    each g and the one integral left is over log g: smooth, and exact to rounding on an even grid.
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
        # log(1 + a) = int (1 - exp(-a t)) exp(-t) / t dt, and with a = (y - f)^2 / c the expectation over f is closed
        # for each t: one smooth integral over log t, where nodes in f would miss the kink of a narrow scale
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
        """Log weights `[G 1 1]` and variances `[G N P]` of the Gaussian mixture that y is."""
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


class Bernoulli(AbstractLikelihood):
    """Two classes, y in {0, 1}. The probit link has the FITC integral in closed form; logit uses quadrature."""

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

    def cdf(self, y, f):
        _no_order("two-class")

    def sample(self, key, f):
        return jr.bernoulli(key, jnp.exp(self.log_prob(jnp.ones_like(f), f))).astype(f.dtype)


class Categorical(AbstractLikelihood):
    """`num_classes` classes, y in {0, ..., K-1}, one latent function per class: the multinomial probit.

    `p(y = c | f) = P(f_c + e_c > f_j + e_j for all j)` with standard normal e, so with independent latent
    Gaussians `E p(y = c | f) = E_t prod_{j != c} Phi((t - m_j) / sqrt(1 + v_j))`, `t ~ N(m_c, 1 + v_c)`:
    the K-dimensional FITC integral is one-dimensional. The VFE integral is not; it uses a fixed quasi-random
    lattice.
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
        return jnp.take_along_axis(self.log_probabilities(f), y.astype(jnp.int32), axis=1)

    def log_probabilities(self, f: Marginals) -> Float[Array, "N K"]:
        """`log E p(y = c | f)` for every class, normalised over classes."""
        nodes, weights = gauss_hermite(NUM_QUADRATURE_POINTS)
        spread = jnp.sqrt(1.0 + f.variance)
        t = f.mean[None] + spread[None] * jnp.asarray(nodes, f.mean.dtype)[:, None, None]  # [Q N K]
        below = log_ndtr((t[:, :, :, None] - f.mean[None, :, None, :]) / spread[None, :, None, :])  # [Q N K K]
        others = 1.0 - jnp.eye(self.num_classes, dtype=f.mean.dtype)
        log_terms = jnp.sum(below * others[None, None], axis=-1)
        log_p = logsumexp(jnp.log(jnp.asarray(weights, f.mean.dtype))[:, None, None] + log_terms, axis=0)
        return jax.nn.log_softmax(log_p, axis=1)  # the quadrature's sum over classes is one only nearly

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

    def cdf(self, y, f):
        _no_order("categorical")

    def sample(self, key, f):
        noisy = f + jr.normal(key, f.shape, f.dtype)
        return jnp.argmax(noisy, axis=-1, keepdims=True).astype(f.dtype)


class Poisson(AbstractLikelihood):
    """Counts, `y ~ Poisson(exp f)`. The VFE integral is closed; the FITC one is quadrature around its mode."""

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
        # A large count makes p(y | f) far narrower than f, so the nodes sit at the mode of the product.
        # The integral does not depend on where they sit: no gradient flows through mode and width.
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

    def cdf(self, y, f):
        nodes, weights = _quadrature_nodes(f, NUM_QUADRATURE_POINTS)
        count = jnp.broadcast_to(jnp.floor(y)[None], nodes.shape)
        below = jnp.where(count < 0, 0.0, gammaincc(jnp.maximum(count, 0.0) + 1.0, jnp.exp(nodes)))
        return jnp.sum(weights * below, axis=0)

    def sample(self, key, f):
        return jr.poisson(key, jnp.exp(f), f.shape).astype(f.dtype)


def _poisson_mode(y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Mode and width of `Poisson(y | e^f) N(f | mean, variance)` in f, by Newton on a concave function."""

    def newton(f, _):
        rate = jnp.exp(f)
        slope = y - rate - (f - mean) / variance
        return f + jnp.clip(slope / (rate + 1.0 / variance), -2.0, 2.0), None

    start = jnp.where(variance * (y + 1.0) > 1.0, jnp.log(y + 0.5), mean)
    mode, _ = jax.lax.scan(newton, start, None, length=12)
    return mode, 1.0 / jnp.sqrt(jnp.exp(mode) + 1.0 / variance)


def nearest_target(likelihood: AbstractLikelihood, y: Array) -> Array:
    """The nearest value that y can take: counts are whole numbers."""
    return jnp.round(y) if isinstance(likelihood, Poisson) else y


def gaussian(num_targets: int, dtype, noise_variance: float = 1.0) -> Gaussian:
    """Gaussian noise; by default at the authors' start, the whole variance of a standardised target."""
    check_positive("noise_variance", noise_variance)
    return Gaussian(jnp.full(check_count("num_targets", num_targets), noise_variance, dtype))
