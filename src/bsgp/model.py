"""A sparse GP layer, and deep GPs as a stack of them. Fields hold constrained plain arrays."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from bsgp.checks import check_count, check_matrix
from bsgp.fastpath import inverse_lower, moments, row_blocks, sparse_conditional, whiten, whitened_cross
from bsgp.kernels import RBF, AbstractKernel, stationary
from bsgp.likelihoods import AbstractLikelihood
from bsgp.numerics import Marginals, add_jitter, relative_jitter

KMEANS_MAX_ROWS = 20_000


class AbstractModel(eqx.Module):
    """One draw of a posterior, as prediction sees it."""

    if TYPE_CHECKING:  # as a field of the base it would be the first argument of every subclass

        @property
        def likelihood(self) -> AbstractLikelihood: ...

    else:
        likelihood: eqx.AbstractVar[AbstractLikelihood]

    @property
    @abc.abstractmethod
    def num_inputs(self) -> int: ...

    @property
    @abc.abstractmethod
    def num_latent(self) -> int: ...

    @property
    def depth(self) -> int:
        """Number of layers; only layered models have more than one."""
        return 1

    @property
    @abc.abstractmethod
    def support(self) -> str:
        """In words, what the functions are made from, such as `100 inducing points`."""

    @property
    @abc.abstractmethod
    def input_kernel(self) -> AbstractKernel | None:
        """The kernel over the inputs themselves; None where there is only one over learned features."""

    def factors(self) -> Any:
        """What prediction needs and no row changes, for `propagate`; None where all of it is kept."""
        return None

    @abc.abstractmethod
    def propagate(self, X: Float[Array, "N D"], key: Array, factors=None) -> Marginals:
        """Marginals of the latent functions at each row alone."""

    @abc.abstractmethod
    def sample_function(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function, evaluated at all rows of X together."""


class Layer(eqx.Module):
    """Several GPs that share one kernel, with whitened inducing variables: `U = Lz V` at inputs `Z`.

    `W` is the fixed linear mean, `mean(x) = x W + ...`; None means zero. `jitter` is relative to the diagonal
    of `Kzz` and constant along a chain: changing it would change the target.
    """

    kernel: AbstractKernel
    Z: Float[Array, "M D"]
    V: Float[Array, "M P"]
    W: Float[Array, "D P"] | None
    jitter: float = eqx.field(static=True)
    root: Float[Array, "P M M"] | None = None
    """Where V is the mean of a Gaussian: lower triangular factor of its covariance, for each output."""

    def conditional(self, X: Float[Array, "N D"], factor: Float[Array, "M M"] | None = None) -> Marginals:
        """`p(f(x) | V, Z, kernel)` for each row alone: mean `A^T V`, variance `k(x, x) - colsum(A * A)`.

        A Gaussian V adds `colsum((root^T A)^2)`. `factor` is `self.factor()`, for callers who have many rows and no
        need of gradients.
        """
        if self.root is not None:
            mean, left, spread = self.parts(X, factor)
            return Marginals(mean, left[:, None] + spread)
        Kzx = tuple(self.kernel(Z, X) for Z in row_blocks(self.Z))
        if factor is None:
            mean, explained = sparse_conditional(self._Kzz(), Kzx, self.V)
        else:
            mean, explained = moments(whitened_cross(factor, Kzx), self.V)
        variance = self._left(X, explained)
        return Marginals(self.add_mean(mean, X), jnp.broadcast_to(variance[:, None], mean.shape))

    def parts(
        self, X: Float[Array, "N D"], factor: Float[Array, "M M"] | None = None
    ) -> tuple[Float[Array, "N P"], Float[Array, " N"], Float[Array, "N P"]]:
        """Mean, the variance that V leaves unexplained, and the variance that a Gaussian V has itself."""
        assert self.root is not None  # for the type checker
        Kzx = tuple(self.kernel(Z, X) for Z in row_blocks(self.Z))
        blocks = whiten(self._Kzz(), Kzx) if factor is None else whitened_cross(factor, Kzx)
        mean, explained = moments(blocks, self.V)
        A = jnp.concatenate(blocks)
        spread = jnp.stack([jnp.sum((root.T @ A) ** 2, axis=0) for root in self.root], axis=1)
        return self.add_mean(mean, X), self._left(X, explained), spread

    def _left(self, X, explained):
        prior = self.kernel.diag(X)
        # rounding may leave a share of the prior below zero; the jitter keeps the exact value above it
        return jnp.maximum(prior - explained, float(jnp.finfo(X.dtype).eps) * prior)

    def whitened(self, X: Float[Array, "N D"]) -> tuple[list[Float[Array, "_ N"]], Float[Array, " N"]]:
        """`A = Lz^-1 Kzx` in row blocks, and the prior variance that it leaves unexplained."""
        A = whiten(self._Kzz(), tuple(self.kernel(Z, X) for Z in row_blocks(self.Z)))
        explained = sum(jnp.sum(a * a, axis=0) for a in A)
        return A, self._left(X, explained)

    def factor(self) -> Float[Array, "M M"]:
        """`Lz^-1`, which does not depend on the rows."""
        return inverse_lower(jnp.linalg.cholesky(self._Kzz()))

    def _Kzz(self) -> Float[Array, "M M"]:
        return add_jitter(self.kernel(self.Z, self.Z), self.jitter)

    def joint(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N P"], Float[Array, "N N"]]:
        """The same with the covariance between rows, shared by the outputs. N x N memory."""
        A = self.factor() @ self.kernel(self.Z, X)
        return self.add_mean(A.T @ self.V, X), self.kernel(X, X) - A.T @ A

    def sample_joint(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function, evaluated at all rows of X together."""
        if self.root is not None:
            V_key, key = jr.split(key)
            return self.at(self.draw(V_key)).sample_joint(X, key)
        mean, covariance = self.joint(X)
        # relative to the prior, not to what is left: near Z the covariance is rounding error alone
        floor = self.jitter * jnp.mean(self.kernel.diag(X))
        root = jnp.linalg.cholesky(covariance + floor * jnp.eye(X.shape[0], dtype=X.dtype))
        return mean + root @ jr.normal(key, mean.shape, mean.dtype)

    def draw(self, key: Array) -> Float[Array, "M P"]:
        """One V of a Gaussian one."""
        assert self.root is not None  # for the type checker
        noise = jr.normal(key, self.V.shape, self.V.dtype)
        return self.V + jnp.stack([root @ noise[:, p] for p, root in enumerate(self.root)], axis=1)

    def at(self, V: Float[Array, "M P"]) -> "Layer":
        """The layer with this V for certain."""
        return Layer(self.kernel, self.Z, V, self.W, self.jitter)

    def add_mean(self, mean: Float[Array, "N P"], X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """`mean` with the fixed linear mean added to it."""
        return mean if self.W is None else mean + X @ self.W


class Share(eqx.Module):
    """One of `count` equal parts of some rows, in their order."""

    index: Int[Array, ""]
    count: int = eqx.field(static=True)


def _row_noise(key: Array, shape: tuple[int, int], dtype, share: Share | None) -> Float[Array, "N H"]:
    """Standard normals for some rows: of a share, those which its rows would get among all."""
    if share is None:
        return jr.normal(key, shape, dtype)
    all_rows = jr.normal(key, (share.count * shape[0], shape[1]), dtype)
    return jax.lax.dynamic_slice_in_dim(all_rows, share.index * shape[0], shape[0])


class DeepGP(AbstractModel):
    """Layers and a likelihood. Depth 1 is the sparse GP."""

    layers: tuple[Layer, ...]
    likelihood: AbstractLikelihood

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def num_inputs(self) -> int:
        return self.layers[0].Z.shape[-1]

    @property
    def num_latent(self) -> int:
        return self.layers[-1].V.shape[-1]

    @property
    def support(self) -> str:
        num_inducing = self.layers[0].Z.shape[-2]
        return f"{num_inducing} inducing points" + (" per layer" if self.depth > 1 else "")

    @property
    def input_kernel(self) -> AbstractKernel:
        return self.layers[0].kernel

    def propagate(
        self,
        X: Float[Array, "N D"],
        key: Array,
        factors: tuple[Array, ...] | None = None,
        share: Share | None = None,
    ) -> Marginals:
        """Marginals of the last layer: hidden layers by one draw per row and output, the last one exactly."""
        last = None if factors is None else factors[-1]
        return self.layers[-1].conditional(self.hidden(X, key, factors, share=share), last)

    def hidden(
        self,
        X: Float[Array, "N D"],
        key: Array,
        factors: tuple[Array, ...] | None = None,
        num_drawn: int | None = None,
        share: Share | None = None,
    ) -> Float[Array, "N H"]:
        """What the last layer sees: hidden layers by one draw. Rows from `num_drawn` on pass by the layers' means.

        Those before may be a `share` of more, and are drawn as they would be among all.
        """
        if self.depth == 1:
            return X
        hidden_factors = (None,) * (self.depth - 1) if factors is None else factors[:-1]
        keys = jr.split(key, self.depth - 1)
        num_drawn = X.shape[0] if num_drawn is None else num_drawn
        for layer, factor, layer_key in zip(self.layers[:-1], hidden_factors, keys, strict=True):
            f = layer.conditional(X, factor)
            noise = _row_noise(layer_key, (num_drawn, f.mean.shape[1]), f.mean.dtype, share)
            noise = jnp.pad(noise, ((0, X.shape[0] - num_drawn), (0, 0)))
            X = f.mean + jnp.sqrt(f.variance) * noise
        return X

    def factors(self) -> tuple[Float[Array, "M M"], ...]:
        """Each layer's `factor`, for `propagate`."""
        return tuple(layer.factor() for layer in self.layers)

    def sample_function(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function drawn from every layer's joint conditional, at all rows of X together."""
        for layer, layer_key in zip(self.layers, jr.split(key, self.depth), strict=True):
            X = layer.sample_joint(X, layer_key)
        return X


def linear_mean(X: np.ndarray, num_outputs: int) -> np.ndarray:
    """The fixed mean of a hidden layer `[D P]`: identity, padded with zeros, or the leading principal axes."""
    num_inputs = X.shape[1]
    if num_inputs <= num_outputs:
        return np.eye(num_inputs, num_outputs, dtype=X.dtype)
    _, _, right = np.linalg.svd(X, full_matrices=False)
    return right[:num_outputs].T


def kmeans_centres(X: np.ndarray, num_centres: int, seed: int) -> np.ndarray:
    """Cluster centres of (at most 20,000 random rows of) X."""
    from sklearn.cluster import KMeans

    if X.shape[0] > KMEANS_MAX_ROWS:
        X = X[np.random.default_rng(seed).choice(X.shape[0], KMEANS_MAX_ROWS, replace=False)]
    distinct = np.unique(X, axis=0)
    if distinct.shape[0] <= num_centres:  # fewer distinct rows than centres: spread copies by a little
        rng = np.random.default_rng(seed)
        copies = distinct[np.arange(num_centres) % distinct.shape[0]]
        return copies + 1e-2 * rng.standard_normal(copies.shape).astype(X.dtype)
    return KMeans(num_centres, random_state=seed).fit(X).cluster_centers_.astype(X.dtype)


def init_deep_gp(
    X,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    num_targets: int = 1,
    num_inducing: int = 100,
    depth: int = 1,
    width: int | None = None,
    kernel: Callable[[int, Any], AbstractKernel] | type = RBF,
    jitter: float | None = None,
) -> DeepGP:
    """A deep GP at the authors' start: Z from k-means of X (through the linear means), V = 0.

    `kernel` is a stationary kernel class, or a function `(num_dims, dtype) -> AbstractKernel`.
    `width` is that of the hidden layers, D by default.
    """
    X = np.asarray(jnp.asarray(check_matrix("X", X)))  # float32 where JAX runs without float64
    num_inducing = check_count("num_inducing", num_inducing)
    if num_inducing > X.shape[0]:
        raise ValueError(
            f"`num_inducing` must be at most the number of rows, {X.shape[0]}, got {num_inducing}. "
            f"Pass `num_inducing={X.shape[0]}` or less."
        )
    depth = check_count("depth", depth)
    hidden_width: int = X.shape[1] if width is None else check_count("width", width)
    num_latent = likelihood.num_latent(check_count("num_targets", num_targets))
    jitter = relative_jitter(X.dtype) if jitter is None else jitter
    make_kernel = (lambda d, dtype: stationary(kernel, d, dtype)) if isinstance(kernel, type) else kernel

    layers, seeds = [], np.asarray(jr.randint(key, (depth,), 0, 2**31 - 1))
    for index, seed in enumerate(seeds):
        is_last = index == depth - 1
        num_outputs = num_latent if is_last else hidden_width
        W = None if is_last else linear_mean(X, num_outputs)
        layers.append(
            Layer(
                kernel=make_kernel(X.shape[1], X.dtype),
                Z=jnp.asarray(kmeans_centres(X, num_inducing, int(seed))),
                V=jnp.zeros((num_inducing, num_outputs), X.dtype),
                W=None if W is None else jnp.asarray(W),
                jitter=jitter,
            )
        )
        X = X if W is None else X @ W
    return DeepGP(tuple(layers), likelihood)
