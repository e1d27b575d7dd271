"""Objectives: FITC, the log of an expectation (eq. 5), VFE, the expectation of a log (eq. 3), and a tighter VFE.

They differ in what a row contributes given the inducing variables, and in everything that follows from it: the noise
that anchored coordinates see, the evidence that is left when u is integrated out, and the bound of a Gaussian q(u).
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bsgp.inference.tighter_bound import SUPPORTED, tighter_row_terms
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.numerics import LOG_2PI, Marginals, gauss_hermite, normal_lattice
from bsgp.runtime.checks import check_option

NUM_NODES = 32

RowTerms = Callable[[Array, Marginals], Array]
"""`row_terms(y [N P], f) -> [N P]`."""


@dataclass(frozen=True)
class AbstractObjective(abc.ABC):
    """What is sampled or maximised, as far as it depends on the likelihood."""

    name: ClassVar[str]
    is_bound: ClassVar[bool]
    """Whether it bounds the evidence from below, so that maximising it over Z and theta does not overfit."""

    def check_likelihood(self, likelihood: AbstractLikelihood) -> None:
        """Raise a `ValueError` if the objective is not known for this likelihood."""
        del likelihood  # most take any

    @abc.abstractmethod
    def row_terms(self, likelihood: AbstractLikelihood) -> RowTerms:
        """Integral of the likelihood over f given u, for each row and output."""

    @abc.abstractmethod
    def anchor_noise(self, residual: Float[Array, " n"], noise_variance: Float[Array, "..."]) -> Float[Array, " n"]:
        """Variance of `y - A^T V` at rows whose prior variance is `residual` given u, under Gaussian noise.

        `noise_variance` is one number, or one per row.
        """

    @abc.abstractmethod
    def evidence(
        self,
        log_evidence: Float[Array, ""],
        residual: Float[Array, " n"],
        noise_variance: Float[Array, "..."],
        times: float | Float[Array, " n"],
    ) -> Float[Array, ""]:
        """Log evidence of Gaussian rows with `anchor_noise`, corrected; each row counts `times` times."""

    @abc.abstractmethod
    def expected_row_terms(
        self,
        likelihood: AbstractLikelihood,
        y: Float[Array, "N P"],
        mean: Float[Array, "N P"],
        residual: Float[Array, " N"],
        spread: Float[Array, "N P"],
    ) -> Float[Array, "N P"]:
        """Expectation of `row_terms` under a Gaussian q(u), where `A^T V` has this mean and the variance `spread`."""


@dataclass(frozen=True)
class FITC(AbstractObjective):
    """`log E p(y | f)` for each row: a Gaussian noise that differs from row to row."""

    name = "fitc"
    is_bound = False

    def row_terms(self, likelihood):
        return likelihood.log_expected_prob

    def anchor_noise(self, residual, noise_variance):
        return residual + noise_variance

    def evidence(self, log_evidence, residual, noise_variance, times):
        return log_evidence

    def expected_row_terms(self, likelihood, y, mean, residual, spread):
        return expected_log_marginal(likelihood, y, Marginals(mean, spread), residual)


@dataclass(frozen=True)
class VFE(AbstractObjective):
    """`E log p(y | f)` for each row: a lower bound of the evidence."""

    name = "vfe"
    is_bound = True

    def row_terms(self, likelihood):
        return likelihood.expected_log_prob

    def anchor_noise(self, residual, noise_variance):
        return jnp.broadcast_to(noise_variance, residual.shape)

    def evidence(self, log_evidence, residual, noise_variance, times):
        if jnp.ndim(times) == jnp.ndim(noise_variance) == 0:
            return log_evidence - 0.5 * times * jnp.sum(residual) / noise_variance
        return log_evidence - 0.5 * jnp.sum(times * residual / noise_variance)

    def expected_row_terms(self, likelihood, y, mean, residual, spread):
        return likelihood.expected_log_prob(y, Marginals(mean, residual[:, None] + spread))


@dataclass(frozen=True)
class TighterVFE(AbstractObjective):
    """VFE with a conditional variance of f given u that shrinks as data ask for: a tighter bound of the evidence.

    Under Gaussian noise its penalty is `1/2 log(1 + r / noise variance)` for each row, where VFE's is half the ratio
    itself. See `bsgp.inference.tighter_bound` for other likelihoods.
    """

    name = "tighter-vfe"
    is_bound = True

    def check_likelihood(self, likelihood):
        if not isinstance(likelihood, SUPPORTED):
            raise ValueError(
                f"`objective` tighter-vfe must go with Gaussian noise, counts or two classes, got a "
                f"{type(likelihood).__name__} likelihood. Use vfe, which takes any."
            )

    def row_terms(self, likelihood):
        return partial(tighter_row_terms, likelihood)

    def anchor_noise(self, residual, noise_variance):
        return jnp.broadcast_to(noise_variance, residual.shape)

    def evidence(self, log_evidence, residual, noise_variance, times):
        return log_evidence - 0.5 * jnp.sum(times * jnp.log1p(residual / noise_variance))

    def expected_row_terms(self, likelihood, y, mean, residual, spread):
        if isinstance(likelihood, Gaussian):
            noise = jnp.broadcast_to(likelihood.variance_of_rows, mean.shape)
            return likelihood.expected_log_prob(y, Marginals(mean, spread)) - 0.5 * jnp.log1p(residual[:, None] / noise)
        return _expected_over_u(self.row_terms(likelihood), y, Marginals(mean, spread), residual)


OBJECTIVES: dict[str, AbstractObjective] = {one.name: one for one in (FITC(), VFE(), TighterVFE())}


def as_objective(chosen: str | AbstractObjective) -> AbstractObjective:
    """An objective by its name, or as it is."""
    if isinstance(chosen, AbstractObjective):
        return chosen
    return OBJECTIVES[check_option("objective", chosen, list(OBJECTIVES))]


def expected_log_marginal(
    likelihood: AbstractLikelihood, y: Float[Array, "N P"], g: Marginals, residual: Float[Array, " N"]
) -> Float[Array, "N P"]:
    """`E log E p(y | f)`: inner expectation over `f ~ N(g, residual)`, outer one over g, given its marginals."""
    if isinstance(likelihood, Gaussian):
        variance = residual[:, None] + likelihood.variance_of_rows
        return -0.5 * (LOG_2PI + jnp.log(variance) + ((y - g.mean) ** 2 + g.variance) / variance)
    return _expected_over_u(likelihood.log_expected_prob, y, g, residual)


def _expected_over_u(
    row_terms: RowTerms, y: Float[Array, "N P"], g: Marginals, residual: Float[Array, " N"]
) -> Float[Array, "N P"]:
    """Expectation of `row_terms` over g, by quadrature or a lattice; `residual` is the variance of f given g."""
    num_latent = g.mean.shape[1]
    if num_latent == 1:
        nodes, weights = gauss_hermite(NUM_NODES)
        nodes = nodes[:, None]
    else:
        nodes = normal_lattice(2 * NUM_NODES, num_latent)
        weights = np.full(len(nodes), 1.0 / len(nodes))
    scale = jnp.sqrt(jnp.maximum(g.variance, float(jnp.finfo(y.dtype).tiny) ** 0.5))
    inner = jnp.broadcast_to(residual[:, None], g.mean.shape)

    def add(total, at):
        node, weight = at
        shifted = Marginals(g.mean + scale * node[None, :], inner)
        return total + weight * row_terms(y, shifted), None

    at = jnp.asarray(nodes, y.dtype), jnp.asarray(weights, y.dtype)
    return jax.lax.scan(add, jnp.zeros_like(y), at)[0]
