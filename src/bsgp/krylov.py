"""Solves and log-determinants of a matrix that is known by its products: preconditioned conjugate gradients."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float


class Preconditioner(eqx.Module):
    """`P = Phi Phi^T + noise I`, by Woodbury's identity."""

    Phi: Float[Array, "N R"]
    root: Float[Array, "R R"]
    """Lower Cholesky factor of `Phi^T Phi + noise I`."""
    noise: Float[Array, ""]

    @classmethod
    def build(cls, Phi: Float[Array, "N R"], noise: Float[Array, ""]) -> "Preconditioner":
        return cls(Phi, *cholesky_of_gram(Phi.T @ Phi, noise))

    def solve(self, V: Float[Array, "N k"]) -> Float[Array, "N k"]:
        return (V - self.Phi @ cho_solve((self.root, True), self.Phi.T @ V)) / self.noise

    def log_det(self) -> Float[Array, ""]:
        num_rows, rank = self.Phi.shape
        return (num_rows - rank) * jnp.log(self.noise) + 2.0 * jnp.sum(jnp.log(jnp.diag(self.root)))

    def sample(self, key: Array, num: int) -> Float[Array, "N num"]:
        smooth_key, noise_key = jr.split(key)
        (num_rows, rank), dtype = self.Phi.shape, self.Phi.dtype
        smooth = self.Phi @ jr.normal(smooth_key, (rank, num), dtype)
        return smooth + jnp.sqrt(self.noise) * jr.normal(noise_key, (num_rows, num), dtype)


def cholesky_of_gram(gram: Float[Array, "R R"], noise: Float[Array, ""]) -> tuple[Array, Array]:
    """Lower factor of `gram + noise I`, and the noise: with as little more of it as the precision needs."""
    noise = noise + float(jnp.finfo(gram.dtype).eps) * gram.shape[0] * jnp.max(jnp.diag(gram))
    return jnp.linalg.cholesky(gram + noise * jnp.eye(gram.shape[0], dtype=gram.dtype)), noise


class Solution(NamedTuple):
    """Of `K X = B`, and the Lanczos matrices that conjugate gradients pass by on the way to it."""

    X: Float[Array, "N k"]
    diagonal: Float[Array, "T k"]
    below: Float[Array, "T k"]
    iterations: Array


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    B: Float[Array, "N k"],
    *,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """`K^-1 B`, each column with step lengths of its own, all in one product a step, until all are near enough.

    `jax.scipy.sparse.linalg.cg` takes one step length for all columns, which needs more steps, and keeps to itself
    the coefficients that the log-determinant is made from.
    """
    tiny = float(jnp.finfo(B.dtype).tiny)
    start = precondition(B)
    first = jnp.sum(B * start, axis=0)
    goal = tolerance**2 * first

    def unfinished(state):
        iteration, _, _, _, size, *_ = state
        return (iteration < max_iterations) & jnp.any(size > goal)

    def advance(state):
        iteration, X, residual, direction, size, last, diagonal, below = state
        active = size > goal
        product = multiply(direction)
        length = jnp.where(active, size / jnp.maximum(jnp.sum(direction * product, axis=0), tiny), 0.0)
        X = X + length[None, :] * direction
        residual = residual - length[None, :] * product
        scaled = precondition(residual)
        after = jnp.where(active, jnp.sum(residual * scaled, axis=0), size)
        ratio = jnp.where(active, after / jnp.maximum(size, tiny), 0.0)
        # a column at its goal goes on as the identity, which adds nothing to the logarithm
        inverse = jnp.where(active, 1.0 / jnp.maximum(length, tiny), 1.0)
        diagonal = diagonal.at[iteration].set(jnp.where(active, inverse + last, 1.0))
        below = below.at[iteration].set(jnp.where(active & (after > goal), jnp.sqrt(ratio) * inverse, 0.0))
        direction = jnp.where(active[None, :], scaled + ratio[None, :] * direction, direction)
        return iteration + 1, X, residual, direction, after, ratio * inverse, diagonal, below

    shape = (max_iterations, B.shape[1])
    state = (
        jnp.asarray(0), jnp.zeros_like(B), B, start, first, jnp.zeros_like(first),
        jnp.ones(shape, B.dtype), jnp.zeros(shape, B.dtype),
    )  # fmt: skip
    iterations, X, *_, diagonal, below = jax.lax.while_loop(unfinished, advance, state)
    return Solution(X, diagonal, below, iterations)


def lanczos_log(diagonal: Float[Array, "T k"], below: Float[Array, "T k"]) -> Float[Array, " k"]:
    """`e_1^T log(T_i) e_1` of every tridiagonal matrix."""

    def one(columns):
        on, off = columns
        values, vectors = jnp.linalg.eigh(jnp.diag(on) + jnp.diag(off[:-1], -1) + jnp.diag(off[:-1], 1))
        return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.maximum(values, float(jnp.finfo(on.dtype).tiny))))

    return jax.lax.map(one, (diagonal.T, below.T))
