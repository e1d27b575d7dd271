"""Row terms of a bound of the evidence that is tighter than VFE's, after Titsias (2025) and Bui et al. (2025).

VFE keeps the prior's conditional p(f | u) as its approximation. Here q(f | u) has the mean of p(f | u) and a smaller
covariance: with `f = m + B e` and `B B^T` the conditional covariance, p has `e ~ N(0, I)` and q has `e ~ N(0, diag v)`.
The rows' variances s_n under q depend on B. But if a row's expected log likelihood is at least `a - b s / 2` for every
variance s up to the prior's r, then B can be chosen such that `sum_n b_n s_n = sum_n v_n b_n r_n`, which leaves

    sum_n a_n - 1/2 b_n v_n r_n - 1/2 (v_n - 1 - log v_n),   with its maximum   sum_n a_n - 1/2 log(1 + b_n r_n).

A Gaussian likelihood is such a line, with `b = 1 / noise variance`. For other likelihoods the line goes through the
expected log likelihood at r, and is as steep as its chord from s = 0 or as its tangent at r, whichever is less steep:
that lies below it if it is first concave and then convex in s. It is concave for counts, and for two classes it is
concave where the label is likely and convex where it is not.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.counts import Poisson
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.numerics import Marginals

SUPPORTED = (Gaussian, Poisson, Bernoulli)
"""Likelihoods whose log is concave in f, and under which the line is known to be a bound."""


def tighter_row_terms(likelihood: AbstractLikelihood, y: Float[Array, "N P"], f: Marginals) -> Float[Array, "N P"]:
    """`a - 1/2 log(1 + b r)` for each row and output, f being the marginals of p(f | u) with the variances r."""
    if isinstance(likelihood, Gaussian):
        noise = jnp.broadcast_to(likelihood.variance_of_rows, f.variance.shape)
        return likelihood.log_prob(y, f.mean) - 0.5 * jnp.log1p(f.variance / noise)
    expected, drop = _expected_and_drop(likelihood, y, f)
    return expected + 0.5 * (drop - jnp.log1p(drop))


def _expected_and_drop(likelihood: AbstractLikelihood, y, f: Marginals) -> tuple[Array, Array]:
    """VFE's term, and `b r`: twice what the line loses from a variance of zero to the prior's."""

    def expected_at(variance):
        return likelihood.expected_log_prob(y, Marginals(f.mean, variance))

    # a row's term depends on its own variance alone, so this is the slope of each, times r
    expected, along_tangent = jax.jvp(expected_at, (f.variance,), (f.variance,))
    along_chord = expected - likelihood.log_prob(y, f.mean)
    return expected, jnp.maximum(-2.0 * jnp.maximum(along_tangent, along_chord), 0.0)
