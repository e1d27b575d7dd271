"""Anchored coordinates of u: a change of variables under which u stays put while Z and theta move.

In whitened coordinates V the function depends on Z and the kernel: move one of them and the prediction moves, so that
a chain crawls along narrow ridges between V, Z and theta. Here `V = m + L^-T xi`, with m and `H = L L^T` the mean and
the precision of `p(V | y_a, Z, theta, noise)` given some anchor rows, as functions of everything else. The target stays
the same for any anchor rows, with the Jacobian `-log |L|`. If all rows of a shallow model with Gaussian noise are
anchors, xi is N(0, I) whatever the rest is: u is integrated out, and the chain runs over Z, theta and noise alone.
"""

from functools import reduce
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.inference.objectives import AbstractObjective
from bsgp.models.deep_gp import DeepGP
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.evidence import log_evidence
from bsgp.models.linalg.numerics import LOG_2PI


class Conditional(NamedTuple):
    """`p(V | y_a, rest)` for each output, and the evidence with V integrated out."""

    mean: Float[Array, "M P"]
    root: Float[Array, "P M M"]
    """Lower triangular factor L of the precision."""
    log_evidence: Float[Array, ""]
    """Log of the integral over V of prior times likelihood of the anchor rows."""

    def to_V(self, xi: Float[Array, "M P"]) -> Float[Array, "M P"]:
        # not `vmap`: see `programs.over_chains`
        columns = [solve_triangular(root, xi[:, p], lower=True, trans=1) for p, root in enumerate(self.root)]
        return self.mean + jnp.stack(columns, axis=1)

    def to_xi(self, V: Float[Array, "M P"]) -> Float[Array, "M P"]:
        return jax.vmap(lambda L, v: L.T @ v, (0, 1), 1)(self.root, V - self.mean)

    @property
    def log_det(self) -> Float[Array, ""]:
        """Log Jacobian of `to_V`."""
        return -jnp.sum(jnp.log(jnp.diagonal(self.root, axis1=1, axis2=2)))


class Anchor(eqx.Module):
    """Rows that define the coordinates of the last layer's u. Each counts `num_counted / n` times its weight.

    They pass through hidden layers by the layers' means: the map must be a function of the parameters alone.
    """

    X: Float[Array, "n D"]
    y: Float[Array, "n P"]
    weight: Float[Array, " n"] | None = None
    known_variance: Float[Array, "n P"] | None = None
    """As in `Batch`."""

    @property
    def num_rows(self) -> int:
        return self.X.shape[0]

    def conditional(self, model: DeepGP, num_counted: int | float, objective: AbstractObjective) -> Conditional:
        """`p(V | y_a, rest)` of the last layer of a model."""
        A, residual = self._whitened(model)
        return self.conditional_at(A, residual, model.likelihood, num_counted / self.num_rows, objective)

    def log_evidence(self, model: DeepGP, num_counted: int | float, objective: AbstractObjective) -> Float[Array, ""]:
        """`conditional(...).log_evidence`, for callers that need its gradient and nothing else."""
        A, residual = self._whitened(model)
        assert isinstance(model.likelihood, Gaussian)  # for the type checker: `Target` takes no anchor otherwise
        times = num_counted / self.num_rows

        def one_output(p, noise):
            variance = objective.anchor_noise(residual, noise)
            evidence = jnp.asarray(log_evidence(A, self.y[:, p], variance, times, self.weight))
            return objective.evidence(evidence, residual, noise, self._counted(times))

        return reduce(jnp.add, [one_output(p, noise) for p, noise in enumerate(self._noise(model.likelihood))])

    def _counted(self, times: float) -> float | Float[Array, " n"]:
        """How often each row counts, its weight included."""
        return times if self.weight is None else times * self.weight

    def _noise(self, likelihood: Gaussian) -> list[Float[Array, "..."]]:
        """Noise variance of each output, one for all rows or, with a known part, one for each row."""
        num_targets = self.y.shape[1]
        noise = jnp.broadcast_to(likelihood.noise_variance, (num_targets,))
        if self.known_variance is None:
            return [noise[p] for p in range(num_targets)]
        return [noise[p] + self.known_variance[:, p] for p in range(num_targets)]

    def _whitened(self, model: DeepGP) -> tuple[list[Float[Array, "_ n"]], Float[Array, " n"]]:
        """`Layer.whitened` of the last layer at the anchor rows."""
        H = self.X
        for layer in model.layers[:-1]:
            H = layer.conditional(H).mean
        return model.layers[-1].whitened(H)

    def conditional_at(
        self,
        A: list[Float[Array, "_ n"]],
        residual: Float[Array, " n"],
        likelihood: AbstractLikelihood,
        times: float,
        objective: AbstractObjective,
    ) -> Conditional:
        """`conditional` from the last layer's `whitened` at the anchor rows, which count `times` times their weight."""
        assert isinstance(likelihood, Gaussian)  # for the type checker: `Target` takes no anchor otherwise
        whole, counted = jnp.concatenate(A), self._counted(times)

        def one_output(y, noise_variance):
            variance = objective.anchor_noise(residual, noise_variance)
            weight = jnp.sqrt(counted / variance)
            B, target = whole * weight[None, :], y * weight
            root = jnp.linalg.cholesky(jnp.eye(whole.shape[0], dtype=whole.dtype) + _gram(B))
            half = solve_triangular(root, B @ target, lower=True)
            mean = solve_triangular(root, half, lower=True, trans=1)
            log_likelihood = -0.5 * (jnp.sum(counted * (LOG_2PI + jnp.log(variance)) + target**2) - jnp.sum(half**2))
            log_likelihood = objective.evidence(log_likelihood, residual, noise_variance, counted)
            return mean, root, log_likelihood - jnp.sum(jnp.log(jnp.diag(root)))

        outputs = [one_output(self.y[:, p], noise) for p, noise in enumerate(self._noise(likelihood))]
        means, roots, log_evidence = zip(*outputs, strict=True)
        return Conditional(jnp.stack(means, axis=1), jnp.stack(roots), jnp.sum(jnp.stack(log_evidence)))


@jax.custom_vjp
def _gram(B: Float[Array, "M n"]) -> Float[Array, "M M"]:
    """`B B^T`; autodiff would multiply twice on the way back where once is enough."""
    return B @ B.T


def _gram_forward(B):
    return B @ B.T, B


def _gram_backward(B, cotangent):
    return ((cotangent + cotangent.T) @ B,)


_gram.defvjp(_gram_forward, _gram_backward)
