"""Coordinates in which u is at rest while the rest moves: a change of variables that leaves the target as it is.

In whitened coordinates V the function hangs on Z and the kernel: move one of them and the prediction moves, so that a
chain crawls along narrow ridges between V, Z and theta. Here `V = m + L^-T xi`, with m and `H = L L^T` the mean and
the precision of `p(V | y_a, Z, theta, noise)` given some anchor rows, as functions of everything else. It is exact
for any anchor rows, with the Jacobian `-log |L|`. Where they are all the rows of a shallow model with Gaussian noise,
xi is N(0, I) whatever the rest is: u is integrated out, and the chain runs over Z, theta and the noise alone.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.likelihoods import LOG_2PI
from bsgp.model import DeepGP


class Conditional(NamedTuple):
    """`p(V | y_a, rest)` of each output, and what is left when V is integrated out."""

    mean: Float[Array, "M P"]
    root: Float[Array, "P M M"]
    """L, lower triangular, of the precision."""
    log_evidence: Float[Array, ""]
    """Log of the integral over V of prior times likelihood of the anchor rows."""

    def to_V(self, xi: Float[Array, "M P"]) -> Float[Array, "M P"]:
        # not `vmap`: see `chunks.over_chains`
        columns = [solve_triangular(root, xi[:, p], lower=True, trans=1) for p, root in enumerate(self.root)]
        return self.mean + jnp.stack(columns, axis=1)

    def to_xi(self, V: Float[Array, "M P"]) -> Float[Array, "M P"]:
        return jax.vmap(lambda L, v: L.T @ v, (0, 1), 1)(self.root, V - self.mean)

    @property
    def log_det(self) -> Float[Array, ""]:
        """Log Jacobian of `to_V`."""
        return -jnp.sum(jnp.log(jnp.diagonal(self.root, axis1=1, axis2=2)))


class Anchor(eqx.Module):
    """Rows that hold the coordinates of the last layer's u. Each counts `num_counted / n` times.

    Hidden layers pass them on by their means: the map has to be a function of the parameters alone.
    """

    X: Float[Array, "n D"]
    y: Float[Array, "n P"]

    @property
    def num_rows(self) -> int:
        return self.X.shape[0]

    def conditional(self, model: DeepGP, num_counted: int | float, objective: str) -> Conditional:
        H = self.X
        for layer in model.layers[:-1]:
            H = layer.conditional(H).mean
        A, left = model.layers[-1].whitened(H)
        return self.conditional_at(A, left, model.likelihood, num_counted / self.num_rows, objective)

    def conditional_at(
        self, A: list[Float[Array, "_ n"]], left: Float[Array, " n"], likelihood, times: float, objective: str
    ) -> Conditional:
        """From the last layer's `whitened` at the anchor rows, each of which counts so many times."""
        whole = jnp.concatenate(A)

        def one_output(y, noise_variance):
            variance = left + noise_variance if objective == "fitc" else jnp.broadcast_to(noise_variance, left.shape)
            weight = jnp.sqrt(times / variance)
            B, target = whole * weight[None, :], y * weight
            root = jnp.linalg.cholesky(jnp.eye(whole.shape[0], dtype=whole.dtype) + _gram(B))
            half = solve_triangular(root, B @ target, lower=True)
            mean = solve_triangular(root, half, lower=True, trans=1)
            log_likelihood = -0.5 * (jnp.sum(times * (LOG_2PI + jnp.log(variance)) + target**2) - jnp.sum(half**2))
            if objective == "vfe":
                log_likelihood = log_likelihood - 0.5 * times * jnp.sum(left) / noise_variance
            return mean, root, log_likelihood - jnp.sum(jnp.log(jnp.diag(root)))

        num_targets = self.y.shape[1]
        noise = jnp.broadcast_to(likelihood.noise_variance, (num_targets,))
        outputs = [one_output(self.y[:, p], noise[p]) for p in range(num_targets)]
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
