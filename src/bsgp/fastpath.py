"""The two functions that nearly all time is spent in, with gradients written by hand.

The floor of a gradient step is three M x M x N products: `A = Lz^-1 Kzx` on the way forward, `Lz^-T dA` and
`dA A^T` on the way back. Two things bring the step near it: a triangle is multiplied in blocks that leave out its
zeros, and no M x N array is passed over more often than it must be. Tests hold both functions to autodiff.
"""

from functools import reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

Blocks = dict[tuple[int, int], Array]
"""A matrix cut into blocks, by block row and column; what is not there is zero."""

LARGEST_DIRECT_INVERSE = 32


def block_edges(size: int) -> list[int]:
    """Where M rows are cut: more blocks leave out more zeros, smaller blocks multiply more slowly."""
    num_blocks = 1 if size < 64 else 2 if size < 256 else 4
    return [round(size * index / num_blocks) for index in range(num_blocks + 1)]


def row_blocks(matrix: Float[Array, "M N"]) -> tuple[Float[Array, "m N"], ...]:
    edges = block_edges(matrix.shape[0])
    return tuple(matrix[start:stop] for start, stop in pairwise(edges))


def inverse_lower(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """`L^-1` of a lower triangular matrix, halved until LAPACK is quick."""
    size = L.shape[0]
    if size <= LARGEST_DIRECT_INVERSE:
        return solve_triangular(L, jnp.eye(size, dtype=L.dtype), lower=True)
    half = size // 2
    top, bottom = inverse_lower(L[:half, :half]), inverse_lower(L[half:, half:])
    corner = -(bottom @ (L[half:, :half] @ top))
    return jnp.block([[top, jnp.zeros((half, size - half), L.dtype)], [corner, bottom]])


def _lower_blocks(L: Float[Array, "M M"]) -> Blocks:
    edges = block_edges(L.shape[0])
    spans = list(pairwise(edges))
    return {(i, j): L[a:b, c:d] for i, (a, b) in enumerate(spans) for j, (c, d) in enumerate(spans) if j <= i}


def _column(blocks: list[Array] | tuple[Array, ...]) -> Blocks:
    return {(i, 0): block for i, block in enumerate(blocks)}


def _transpose(blocks: Blocks) -> Blocks:
    # the barrier has the small blocks transposed for good: folded into the products they would slow each one down
    return {(j, i): jax.lax.optimization_barrier(block.T) for (i, j), block in blocks.items()}


def _multiply(left: Blocks, right: Blocks) -> Blocks:
    product: Blocks = {}
    for (i, j), a in left.items():
        for (k, n), b in right.items():
            if j == k:
                product[i, n] = product[i, n] + a @ b if (i, n) in product else a @ b
    return product


def _assemble(blocks: Blocks) -> Array:
    size = 1 + max(i for i, _ in blocks)
    return jnp.block([[blocks[i, j] for j in range(size)] for i in range(size)])


@jax.custom_vjp
def sparse_conditional(
    Kzz: Float[Array, "M M"], Kzx: tuple[Float[Array, "_ N"], ...], V: Float[Array, "M P"]
) -> tuple[Float[Array, "N P"], Float[Array, " N"]]:
    """Mean `A^T V` and explained variance `colsum(A * A)`, with `A = Lz^-1 Kzx` and `Lz Lz^T = Kzz`.

    `Kzx` comes as the row blocks of `row_blocks`: sliced later, it would have to be copied.
    """
    return _conditional_forward(Kzz, Kzx, V)[0]


def whitened_cross(Lz_inv: Float[Array, "M M"], Kzx: tuple[Float[Array, "_ N"], ...]) -> list[Float[Array, "_ N"]]:
    """`A = Lz^-1 Kzx`, in row blocks."""
    return list(_multiply(_lower_blocks(Lz_inv), _column(Kzx)).values())


def moments(A: list[Float[Array, "_ N"]], V: Float[Array, "M P"]) -> tuple[Float[Array, "N P"], Float[Array, " N"]]:
    """`A^T V` and `colsum(A * A)`."""
    means = [v.T @ a for a, v in zip(A, row_blocks(V), strict=True)]  # `a.T @ v` would copy `a` to transpose it
    return reduce(jnp.add, means).T, reduce(jnp.add, [jnp.sum(a * a, axis=0) for a in A])


def _conditional_forward(Kzz, Kzx, V):
    Lz_inv = inverse_lower(jnp.linalg.cholesky(Kzz))
    A = whitened_cross(Lz_inv, Kzx)
    return moments(A, V), (Lz_inv, A, V)


def _conditional_backward(residuals, cotangents):
    Lz_inv, A, V = residuals
    d_mean, d_explained = cotangents
    dA = [_outer(v, d_mean) + a * (2.0 * d_explained)[None, :] for a, v in zip(A, row_blocks(V), strict=True)]
    return *_whitening_backward((Lz_inv, A), dA), jnp.concatenate([a @ d_mean for a in A])


@jax.custom_vjp
def whiten(Kzz: Float[Array, "M M"], Kzx: tuple[Float[Array, "_ N"], ...]) -> list[Float[Array, "_ N"]]:
    """`A = Lz^-1 Kzx` itself, in row blocks, for callers who need more of it than its moments."""
    return _whitening_forward(Kzz, Kzx)[0]


def _whitening_forward(Kzz, Kzx):
    Lz_inv = inverse_lower(jnp.linalg.cholesky(Kzz))
    A = whitened_cross(Lz_inv, Kzx)
    return A, (Lz_inv, A)


def _whitening_backward(residuals, dA):
    Lz_inv, A = residuals
    lower = _lower_blocks(Lz_inv)
    upper = _transpose(lower)
    dKzx = tuple(_multiply(upper, _column(dA)).values())
    # dLz = -tril(Lz^-T dA A^T); pulled back through the Cholesky factorisation the triangles cancel to
    # dKzz = -sym(Lz^-T Phi(dA A^T) Lz^-1), where Phi keeps the lower triangle and halves the diagonal
    Phi = {(i, j): d @ a.T for i, d in enumerate(dA) for j, a in enumerate(A) if j <= i}
    Phi = {(i, j): jnp.tril(b, -1) + 0.5 * jnp.diag(jnp.diag(b)) if i == j else b for (i, j), b in Phi.items()}
    dKzz = _assemble(_multiply(upper, _multiply(Phi, lower)))
    return -0.5 * (dKzz + dKzz.T), dKzx


whiten.defvjp(_whitening_forward, _whitening_backward)


def _outer(V: Float[Array, "m P"], d_mean: Float[Array, "N P"]) -> Float[Array, "m N"]:
    """`V d_mean^T`; with one output as a plain outer product, which fuses with what follows."""
    return V * d_mean.T if V.shape[1] == 1 else V @ d_mean.T


sparse_conditional.defvjp(_conditional_forward, _conditional_backward)


@jax.custom_vjp
def rbf_gram(
    X: Float[Array, "N D"], X2: Float[Array, "M D"], lengthscales: Float[Array, " D"], variance: Float[Array, ""]
) -> Float[Array, "N M"]:
    """`variance * exp(-1/2 sum_d (x_d - x'_d)^2 / l_d^2)`, the exponent as one product."""
    return _rbf_forward(X, X2, lengthscales, variance)[0]


def _rbf_forward(X, X2, lengthscales, variance):
    scaled, scaled2 = X / lengthscales[None, :], X2 / lengthscales[None, :]
    left = jnp.log(variance) - 0.5 * jnp.sum(scaled * scaled, axis=1)
    right = -0.5 * jnp.sum(scaled2 * scaled2, axis=1)
    K = jnp.exp(scaled @ scaled2.T + left[:, None] + right[None, :])
    return K, (X, X2, lengthscales, variance, K)


def _rbf_backward(residuals, dK):
    X, X2, lengthscales, variance, K = residuals
    G = dK * K
    num_dims = X.shape[1]
    # one product for sums over X2 of G, G x' and G x'^2; those over X are needed for dX2 only, and if nobody
    # asks for it (the data are not differentiated) the compiler leaves them out
    sums = G @ jnp.concatenate([X2, X2 * X2, jnp.ones((X2.shape[0], 1), X2.dtype)], axis=1)
    first, second, total = sums[:, :num_dims], sums[:, num_dims:-1], sums[:, -1:]
    squared = jnp.sum(total * X * X - 2.0 * X * first + second, axis=0)  # sum of G (x_d - x'_d)^2
    dX = (first - total * X) / (lengthscales**2)[None, :]
    dX2 = ((X.T @ G).T - jnp.sum(G, axis=0)[:, None] * X2) / (lengthscales**2)[None, :]
    return dX, dX2, squared / lengthscales**3, jnp.sum(total) / variance


rbf_gram.defvjp(_rbf_forward, _rbf_backward)
