"""Likelihood of ordered levels, such as grades or stars."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float
from scipy.special import ndtri

from bsgp.models.likelihoods.base import (
    AbstractLikelihood,
    expected_log_prob_by_quadrature,
    variance_parts_by_quadrature,
)
from bsgp.models.linalg.numerics import Marginals
from bsgp.runtime.checks import check_matrix

MAX_LEVELS = 50


class Ordinal(AbstractLikelihood):
    """Ordered levels by cut points: y is the k-th level where `f + e`, `e ~ N(0, 1)`, lies between cuts k-1 and k.

    Cuts are `first_cut` and then a positive gap after another. Means and variances are of the levels' numbers. The FITC
    integral is in closed form, the VFE integral by quadrature.
    """

    levels: tuple[float, ...] = eqx.field(static=True)
    """The numbers that y can be, in order."""
    first_cut: Float[Array, " 1"]
    gaps: Float[Array, " G"]

    is_discrete = True

    def num_latent(self, num_targets):
        return num_targets

    def check_targets(self, y):
        return self.check_values(y)

    def check_values(self, y):
        y = check_matrix("y", y, columns=1)
        is_odd = ~np.isin(y, self.levels)
        if is_odd.any():
            raise ValueError(
                f"`y` must hold levels that are known, {shown(self.levels)}, got {y[is_odd][0]:g}. "
                "Correct or drop such rows."
            )
        return y

    def nearest(self, y):
        levels = jnp.asarray(self.levels, y.dtype)
        return levels[jnp.argmin(jnp.abs(y[..., None] - _as_last_axis(levels, y)), axis=-1)]

    @property
    def _cuts(self) -> Float[Array, " C"]:
        return jnp.cumsum(jnp.concatenate([self.first_cut, self.gaps]))

    def _edges(self, f: Marginals) -> Float[Array, "... E"]:
        """Standardised cuts, infinite at both ends: `P(y is at most level k) = Phi(edges[k + 1])`."""
        inner = (_as_last_axis(self._cuts, f.mean) - f.mean[..., None]) / jnp.sqrt(1.0 + f.variance[..., None])
        ends = jnp.full((*inner.shape[:-1], 1), jnp.inf, inner.dtype)
        return jnp.concatenate([-ends, inner, ends], axis=-1)

    def log_probabilities(self, f: Marginals) -> Float[Array, "... K"]:
        """Log probability of every level."""
        edges = self._edges(f)
        return _log_between(edges[..., :-1], edges[..., 1:])

    def _position(self, y: Array) -> Array:
        """Position of y among the levels; the last one below it if it is none."""
        return jnp.searchsorted(jnp.asarray(self.levels, y.dtype), y, side="right") - 1

    def log_prob(self, y, f):
        return self.log_expected_prob(y, Marginals(f, jnp.zeros_like(f)))

    def log_expected_prob(self, y, f):
        each = self.log_probabilities(f)
        position = jnp.broadcast_to(self._position(y), each.shape[:-1])
        return jnp.take_along_axis(each, position[..., None], axis=-1)[..., 0]

    def expected_log_prob(self, y, f):
        return expected_log_prob_by_quadrature(self, y, f)

    def predict(self, f):
        probability = jnp.exp(self.log_probabilities(f))
        levels = _as_last_axis(jnp.asarray(self.levels, f.mean.dtype), f.mean)
        mean = jnp.sum(probability * levels, axis=-1)
        return Marginals(mean, jnp.sum(probability * (levels - mean[..., None]) ** 2, axis=-1))

    def variance_parts(self, f):
        return variance_parts_by_quadrature(self, f)

    def cdf(self, y, f):
        below = ndtr(self._edges(f))
        position = jnp.broadcast_to(self._position(y) + 1, below.shape[:-1])
        return jnp.take_along_axis(below, position[..., None], axis=-1)[..., 0]

    def sample(self, key, f):
        noisy = f + jr.normal(key, f.shape, f.dtype)
        return jnp.asarray(self.levels, f.dtype)[jnp.sum(noisy[..., None] > _as_last_axis(self._cuts, f), axis=-1)]


def _as_last_axis(values: Array, of: Array) -> Array:
    """A vector as the axis behind those of another array."""
    return values.reshape((1,) * of.ndim + (-1,))


def _log_between(low: Array, high: Array) -> Array:
    """`log(Phi(high) - Phi(low))`, accurate in both tails."""
    # in the upper tail the difference of complements keeps its digits
    is_upper = low > 0
    near = jnp.where(is_upper, -low, high)
    far = jnp.where(is_upper, -high, low)
    # a gradient must not see the infinities of the ends
    is_open = jnp.isneginf(far)
    log_far = log_ndtr(jnp.where(is_open, 0.0, far))
    is_whole = jnp.isposinf(near)
    log_near = jnp.where(is_whole, 0.0, log_ndtr(jnp.where(is_whole, 0.0, near)))
    share = jnp.where(is_open, 0.0, jnp.exp(jnp.where(is_open, 0.0, log_far - log_near)))
    return log_near + jnp.log1p(-jnp.minimum(share, 1.0 - float(jnp.finfo(near.dtype).eps)))


def ordinal(y: np.ndarray, dtype, weight: np.ndarray | None = None) -> Ordinal:
    """The likelihood for the levels in y, with cuts at the normal quantiles of their shares; rows may have weights."""
    levels, positions = np.unique(y, return_inverse=True)
    counts = np.bincount(positions.ravel(), weights=weight)
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"`y` must have at most {MAX_LEVELS} levels for `ordinal` noise, got {len(levels)}. "
            "Group them, or use a noise for numbers, such as `gaussian`."
        )
    if len(levels) < 3:
        raise ValueError(
            f"`y` must have at least 3 levels for `ordinal` noise, got {shown(levels)}. "
            "Use `BSGPClassifier` for two classes."
        )
    cuts = ndtri(np.cumsum(counts)[:-1] / counts.sum())
    return Ordinal(
        tuple(levels.tolist()), jnp.asarray(cuts[:1], dtype), jnp.asarray(np.maximum(np.diff(cuts), 1e-2), dtype)
    )


def shown(levels) -> str:
    """The levels as text, shortened in the middle."""
    words = [f"{level:g}" for level in levels]
    return ", ".join(words if len(words) <= 8 else [*words[:4], "...", *words[-2:]])
