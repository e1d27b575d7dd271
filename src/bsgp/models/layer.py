"""A sparse GP layer with whitened inducing variables."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from bsgp.models.kernels import AbstractKernel
from bsgp.models.linalg.conditional import (
    invert_lower,
    mean_and_explained,
    row_blocks,
    sparse_conditional,
    whiten,
    whiten_with,
)
from bsgp.models.linalg.numerics import Marginals, add_jitter


class Layer(eqx.Module):
    """Sparse GPs that share one kernel, with inducing inputs `Z` and whitened inducing variables: `U = Lz V`.

    `W` is a fixed linear mean, `mean(x) = x W + ...`; None means zero. `jitter` is relative to the mean diagonal of
    `Kzz`. It is constant along a chain, because it is part of the density that is sampled.
    """

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    V: Float[Array, "M P"]
    W: Float[Array, "D P"] | None
    jitter: float = eqx.field(static=True)
    root: Float[Array, "P M M"] | None = None
    """Lower Cholesky factors of the covariance of V, one per output, if V is the mean of a Gaussian; else None."""

    def conditional(self, X: Float[Array, "N D"], factor: Float[Array, "M M"] | None = None) -> Marginals:
        """Marginals of `p(f(x) | V, Z, kernel)`, per row: mean `A^T V`, variance `k(x, x) - colsum(A * A)`.

        A Gaussian V adds the variance `colsum((root^T A)^2)`. `factor` is `self.factor()`, computed once by callers
        that have many rows and need no gradients.
        """
        if self.root is not None:
            mean, unexplained, from_V = self.parts(X, factor)
            return Marginals(mean, unexplained[:, None] + from_V)
        Kzx = tuple(self.kernel(Z, X) for Z in row_blocks(self.Z))
        if factor is None:
            mean, explained = sparse_conditional(self._Kzz(), Kzx, self.V)
        else:
            mean, explained = mean_and_explained(whiten_with(factor, Kzx), self.V)
        variance = self._unexplained(X, explained)
        return Marginals(self.add_mean(mean, X), jnp.broadcast_to(variance[:, None], mean.shape))

    def parts(
        self, X: Float[Array, "N D"], factor: Float[Array, "M M"] | None = None
    ) -> tuple[Float[Array, "N P"], Float[Array, " N"], Float[Array, "N P"]]:
        """Mean `[N P]`, prior variance that V does not explain `[N]`, and variance due to a Gaussian V `[N P]`."""
        assert self.root is not None  # for the type checker
        Kzx = tuple(self.kernel(Z, X) for Z in row_blocks(self.Z))
        blocks = whiten(self._Kzz(), Kzx) if factor is None else whiten_with(factor, Kzx)
        mean, explained = mean_and_explained(blocks, self.V)
        A = jnp.concatenate(blocks)
        from_V = jnp.stack([jnp.sum((root.T @ A) ** 2, axis=0) for root in self.root], axis=1)
        return self.add_mean(mean, X), self._unexplained(X, explained), from_V

    def _unexplained(self, X, explained):
        """Prior variance less the `explained` variance, kept positive."""
        prior = self.kernel.diag(X)
        # the exact difference is positive because of the jitter, but rounding can make it negative
        return jnp.maximum(prior - explained, float(jnp.finfo(X.dtype).eps) * prior)

    def whitened(self, X: Float[Array, "N D"]) -> tuple[list[Float[Array, "_ N"]], Float[Array, " N"]]:
        """`A = Lz^-1 Kzx` in row blocks, and the prior variance that it does not explain."""
        A = whiten(self._Kzz(), tuple(self.kernel(Z, X) for Z in row_blocks(self.Z)))
        explained = sum(jnp.sum(a * a, axis=0) for a in A)
        return A, self._unexplained(X, explained)

    def factor(self) -> Float[Array, "M M"]:
        """`Lz^-1`, for reuse in `conditional`: it does not depend on X."""
        return invert_lower(jnp.linalg.cholesky(self._Kzz()))

    def _Kzz(self) -> Float[Array, "M M"]:
        return add_jitter(self.kernel(self.Z, self.Z), self.jitter)

    def joint(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N P"], Float[Array, "N N"]]:
        """Mean and covariance over all rows of X; outputs share the covariance. Memory grows with N^2."""
        A = self.factor() @ self.kernel(self.Z, X)
        return self.add_mean(A.T @ self.V, X), self.kernel(X, X) - A.T @ A

    def sample_joint(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function, drawn jointly at all rows of X."""
        if self.root is not None:
            V_key, key = jr.split(key)
            return self.at(self.sample_V(V_key)).sample_joint(X, key)
        mean, covariance = self.joint(X)
        # relative to the prior, not to the covariance, which near Z is nothing but rounding error
        floor = self.jitter * jnp.mean(self.kernel.diag(X))
        root = jnp.linalg.cholesky(covariance + floor * jnp.eye(X.shape[0], dtype=X.dtype))
        return mean + root @ jr.normal(key, mean.shape, mean.dtype)

    def sample_V(self, key: Array) -> Float[Array, "M P"]:
        """A draw of a Gaussian V."""
        assert self.root is not None  # for the type checker
        noise = jr.normal(key, self.V.shape, self.V.dtype)
        return self.V + jnp.stack([root @ noise[:, p] for p, root in enumerate(self.root)], axis=1)

    def at(self, V: Float[Array, "M P"]) -> "Layer":
        """This layer with the given, non-random V."""
        return Layer(self.kernel, self.Z, V, self.W, self.jitter)

    def add_mean(self, mean: Float[Array, "N P"], X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """`mean` plus the fixed linear mean at X."""
        return mean if self.W is None else mean + X @ self.W
