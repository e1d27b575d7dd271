"""Preconditioned conjugate gradients: solutions and log-determinants from matrix-vector products alone."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float


class Preconditioner(eqx.Module):
    """`P = Phi Phi^T + noise I`, inverted by Woodbury's identity."""

    Phi: Float[Array, "N R"]
    root: Float[Array, "R R"]
    """Lower Cholesky factor of `Phi^T Phi + noise I`."""
    noise: Float[Array, ""]

    @classmethod
    def build(cls, Phi: Float[Array, "N R"], noise: Float[Array, ""]) -> "Preconditioner":
        """Factorises `Phi^T Phi + noise I`; the noise is raised slightly if the precision requires it."""
        return cls(Phi, *cholesky_of_gram(Phi.T @ Phi, noise))

    def solve(self, V: Float[Array, "N k"]) -> Float[Array, "N k"]:
        """`P^-1 V`."""
        return (V - self.Phi @ cho_solve((self.root, True), self.Phi.T @ V)) / self.noise

    def log_det(self) -> Float[Array, ""]:
        """`log det P`."""
        num_rows, rank = self.Phi.shape
        return (num_rows - rank) * jnp.log(self.noise) + 2.0 * jnp.sum(jnp.log(jnp.diag(self.root)))

    def sample(self, key: Array, num: int) -> Float[Array, "N num"]:
        """Draws of `N(0, P)`, one per column."""
        smooth_key, noise_key = jr.split(key)
        (num_rows, rank), dtype = self.Phi.shape, self.Phi.dtype
        smooth = self.Phi @ jr.normal(smooth_key, (rank, num), dtype)
        return smooth + jnp.sqrt(self.noise) * jr.normal(noise_key, (num_rows, num), dtype)


def cholesky_of_gram(gram: Float[Array, "R R"], noise: Float[Array, ""]) -> tuple[Array, Array]:
    """Lower Cholesky factor of `gram + noise I`, and that noise: the given one plus the rounding error of `gram`."""
    noise = noise + float(jnp.finfo(gram.dtype).eps) * gram.shape[0] * jnp.max(jnp.diag(gram))
    return jnp.linalg.cholesky(gram + noise * jnp.eye(gram.shape[0], dtype=gram.dtype)), noise


class Solution(NamedTuple):
    """Solution of `K X = B`, and the Lanczos tridiagonal matrices that conjugate gradients produce, one per column."""

    X: Float[Array, "N k"]
    diagonal: Float[Array, "T k"]
    off_diagonal: Float[Array, "T k"]
    iterations: Array


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    B: Float[Array, "N k"],
    *,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """Solves `K X = B`. Every column has its own step lengths; one product per iteration serves all columns.

    A column stops when its residual, in the norm of the preconditioner, is `tolerance` times the initial one.
    `jax.scipy.sparse.linalg.cg` uses one step length for all columns, which takes more iterations, and does not return
    the coefficients that the log-determinant needs.
    """
    tiny = float(jnp.finfo(B.dtype).tiny)
    start = precondition(B)
    first = jnp.sum(B * start, axis=0)
    goal = tolerance**2 * first

    def unfinished(state):
        iteration, _, _, _, size, *_ = state
        return (iteration < max_iterations) & jnp.any(size > goal)

    def advance(state):
        iteration, X, residual, direction, size, last, diagonal, off_diagonal = state
        active = size > goal
        product = multiply(direction)
        length = jnp.where(active, size / jnp.maximum(jnp.sum(direction * product, axis=0), tiny), 0.0)
        X = X + length[None, :] * direction
        residual = residual - length[None, :] * product
        scaled = precondition(residual)
        after = jnp.where(active, jnp.sum(residual * scaled, axis=0), size)
        ratio = jnp.where(active, after / jnp.maximum(size, tiny), 0.0)
        # a converged column continues as the identity matrix, which adds nothing to the log-determinant
        inverse = jnp.where(active, 1.0 / jnp.maximum(length, tiny), 1.0)
        diagonal = diagonal.at[iteration].set(jnp.where(active, inverse + last, 1.0))
        following = jnp.where(active & (after > goal), jnp.sqrt(ratio) * inverse, 0.0)
        off_diagonal = off_diagonal.at[iteration].set(following)
        direction = jnp.where(active[None, :], scaled + ratio[None, :] * direction, direction)
        return iteration + 1, X, residual, direction, after, ratio * inverse, diagonal, off_diagonal

    shape = (max_iterations, B.shape[1])
    state = (
        jnp.asarray(0), jnp.zeros_like(B), B, start, first, jnp.zeros_like(first),
        jnp.ones(shape, B.dtype), jnp.zeros(shape, B.dtype),
    )  # fmt: skip
    iterations, X, *_, diagonal, off_diagonal = jax.lax.while_loop(unfinished, advance, state)
    return Solution(X, diagonal, off_diagonal, iterations)


def lanczos_log(diagonal: Float[Array, "T k"], off_diagonal: Float[Array, "T k"]) -> Float[Array, " k"]:
    """`e_1^T log(T) e_1` of the tridiagonal matrix T in each column."""

    def one(columns):
        on, off = columns
        values, vectors = jnp.linalg.eigh(jnp.diag(on) + jnp.diag(off[:-1], -1) + jnp.diag(off[:-1], 1))
        return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.maximum(values, float(jnp.finfo(on.dtype).tiny))))

    return jax.lax.map(one, (diagonal.T, off_diagonal.T))
