"""The sparse conditional, where most time is spent, with gradients written by hand (`gram` has those of the kernels).

A gradient step needs at least three M x M x N products: `A = Lz^-1 Kzx` in the forward pass, `Lz^-T dA` and `dA A^T` in
the backward pass. Two measures bring the cost near this minimum: triangular matrices are multiplied in blocks that skip
their zeros, and M x N arrays are read as rarely as possible. Tests compare the gradients with those of autodiff.
"""

from functools import reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

Blocks = dict[tuple[int, int], Array]
"""A block matrix, indexed by block row and block column; absent blocks are zero."""

LARGEST_DIRECT_INVERSE = 32


def block_edges(size: int) -> list[int]:
    """First rows of the blocks, and `size`: more blocks skip more zeros, but smaller blocks multiply more slowly."""
    num_blocks = 1 if size < 64 else 2 if size < 256 else 4
    return [round(size * index / num_blocks) for index in range(num_blocks + 1)]


def row_blocks(matrix: Float[Array, "M N"]) -> tuple[Float[Array, "m N"], ...]:
    """The blocks of rows between `block_edges`."""
    edges = block_edges(matrix.shape[0])
    return tuple(matrix[start:stop] for start, stop in pairwise(edges))


def invert_lower(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Inverse of a lower triangular matrix, by halving it until it is small enough for LAPACK to be fast."""
    size = L.shape[0]
    if size <= LARGEST_DIRECT_INVERSE:
        return solve_triangular(L, jnp.eye(size, dtype=L.dtype), lower=True)
    half = size // 2
    top, bottom = invert_lower(L[:half, :half]), invert_lower(L[half:, half:])
    corner = -(bottom @ (L[half:, :half] @ top))
    return jnp.block([[top, jnp.zeros((half, size - half), L.dtype)], [corner, bottom]])


def _lower_blocks(L: Float[Array, "M M"]) -> Blocks:
    edges = block_edges(L.shape[0])
    spans = list(pairwise(edges))
    return {(i, j): L[a:b, c:d] for i, (a, b) in enumerate(spans) for j, (c, d) in enumerate(spans) if j <= i}


def _block_column(blocks: list[Array] | tuple[Array, ...]) -> Blocks:
    return {(i, 0): block for i, block in enumerate(blocks)}


def _transpose(blocks: Blocks) -> Blocks:
    # the barrier makes XLA transpose the small blocks once: folded into the products it would slow down each of them
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

    `Kzx` is given as row blocks (`row_blocks`), because slicing it here would copy it.
    """
    return _conditional_forward(Kzz, Kzx, V)[0]


def whiten_with(Lz_inv: Float[Array, "M M"], Kzx: tuple[Float[Array, "_ N"], ...]) -> list[Float[Array, "_ N"]]:
    """`A = Lz^-1 Kzx` in row blocks, given `Lz^-1`."""
    return list(_multiply(_lower_blocks(Lz_inv), _block_column(Kzx)).values())


def mean_and_explained(
    A: list[Float[Array, "_ N"]], V: Float[Array, "M P"]
) -> tuple[Float[Array, "N P"], Float[Array, " N"]]:
    """Mean `A^T V` and explained variance `colsum(A * A)`, for A in row blocks."""
    means = [v.T @ a for a, v in zip(A, row_blocks(V), strict=True)]  # `a.T @ v` would copy `a` to transpose it
    return reduce(jnp.add, means).T, reduce(jnp.add, [jnp.sum(a * a, axis=0) for a in A])


def _conditional_forward(Kzz, Kzx, V):
    Lz_inv = invert_lower(jnp.linalg.cholesky(Kzz))
    A = whiten_with(Lz_inv, Kzx)
    return mean_and_explained(A, V), (Lz_inv, A, V)


def _conditional_backward(residuals, cotangents):
    Lz_inv, A, V = residuals
    d_mean, d_explained = cotangents
    dA = [_outer_product(v, d_mean) + a * (2.0 * d_explained)[None, :] for a, v in zip(A, row_blocks(V), strict=True)]
    return *_whitening_backward((Lz_inv, A), dA), jnp.concatenate([a @ d_mean for a in A])


@jax.custom_vjp
def whiten(Kzz: Float[Array, "M M"], Kzx: tuple[Float[Array, "_ N"], ...]) -> list[Float[Array, "_ N"]]:
    """`A = Lz^-1 Kzx` in row blocks, given `Kzz = Lz Lz^T`; for callers that need A itself."""
    return _whitening_forward(Kzz, Kzx)[0]


def _whitening_forward(Kzz, Kzx):
    Lz_inv = invert_lower(jnp.linalg.cholesky(Kzz))
    A = whiten_with(Lz_inv, Kzx)
    return A, (Lz_inv, A)


def _whitening_backward(residuals, dA):
    Lz_inv, A = residuals
    lower = _lower_blocks(Lz_inv)
    upper = _transpose(lower)
    dKzx = tuple(_multiply(upper, _block_column(dA)).values())
    # dLz = -tril(Lz^-T dA A^T); pulled back through the Cholesky factorisation, this simplifies to
    # dKzz = -sym(Lz^-T Phi(dA A^T) Lz^-1), where Phi keeps the lower triangle and halves the diagonal
    Phi = {(i, j): d @ a.T for i, d in enumerate(dA) for j, a in enumerate(A) if j <= i}
    Phi = {(i, j): jnp.tril(b, -1) + 0.5 * jnp.diag(jnp.diag(b)) if i == j else b for (i, j), b in Phi.items()}
    dKzz = _assemble(_multiply(upper, _multiply(Phi, lower)))
    return -0.5 * (dKzz + dKzz.T), dKzx


whiten.defvjp(_whitening_forward, _whitening_backward)


def _outer_product(V: Float[Array, "m P"], d_mean: Float[Array, "N P"]) -> Float[Array, "m N"]:
    """`V d_mean^T`; for one output elementwise, which XLA fuses with the operations that follow."""
    return V * d_mean.T if V.shape[1] == 1 else V @ d_mean.T


sparse_conditional.defvjp(_conditional_forward, _conditional_backward)
