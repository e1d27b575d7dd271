"""Deep GPs as stacks of sparse layers, and their initial values. Fields hold plain constrained arrays."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bsgp.models.batch import Shard
from bsgp.models.kernel_choice import KernelChoice, layer_kernels
from bsgp.models.kernels import RBF, AbstractKernel
from bsgp.models.layer import Layer
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.linalg.numerics import Marginals, relative_jitter
from bsgp.models.model import AbstractModel
from bsgp.runtime.checks import check_count, check_matrix

KMEANS_MAX_ROWS = 20_000


def _row_noise(key: Array, shape: tuple[int, int], dtype, shard: Shard | None) -> Float[Array, "N H"]:
    """Standard normal noise for each row. The rows of a shard get their slice of the whole minibatch's noise."""
    if shard is None:
        return jr.normal(key, shape, dtype)
    all_rows = jr.normal(key, (shard.count * shape[0], shape[1]), dtype)
    return jax.lax.dynamic_slice_in_dim(all_rows, shard.index * shape[0], shape[0])


class DeepGP(AbstractModel):
    """A stack of sparse GP layers and a likelihood. With one layer it is the sparse GP."""

    layers: tuple[Layer, ...]
    likelihood: AbstractLikelihood

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def num_inputs(self) -> int:
        return self.layers[0].Z.shape[-1] + self.likelihood.has_exposure

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
        shard: Shard | None = None,
    ) -> Marginals:
        """Marginals of the last layer, given one draw of the hidden layers per row and output."""
        last = None if factors is None else factors[-1]
        X, offset = self._inputs_and_offset(X)
        f = self.layers[-1].conditional(self.hidden(X, key, factors, shard=shard), last)
        return f if offset is None else Marginals(f.mean + offset, f.variance)

    def _inputs_and_offset(self, X: Float[Array, "N _"]) -> tuple[Float[Array, "N D"], Float[Array, "N 1"] | None]:
        """Inputs of the first layer, and the offset of the last layer if the likelihood has one."""
        return (X[:, :-1], X[:, -1:]) if self.likelihood.has_exposure else (X, None)

    def propagate_with_prior(self, X, key, factors=None):
        X, offset = self._inputs_and_offset(X)
        H, layer = self.hidden(X, key, factors), self.layers[-1]
        f = layer.conditional(H, None if factors is None else factors[-1])
        return f if offset is None else Marginals(f.mean + offset, f.variance), layer.kernel.diag(H)

    def hidden(
        self,
        X: Float[Array, "N D"],
        key: Array,
        factors: tuple[Array, ...] | None = None,
        num_drawn: int | None = None,
        shard: Shard | None = None,
    ) -> Float[Array, "N H"]:
        """Inputs of the last layer: one draw through the hidden layers.

        Only the first `num_drawn` rows are drawn; later rows pass through the layers' means. If the drawn rows are a
        `shard` of a minibatch, their noise is the same as in the whole minibatch.
        """
        if self.depth == 1:
            return X
        hidden_factors = (None,) * (self.depth - 1) if factors is None else factors[:-1]
        keys = jr.split(key, self.depth - 1)
        num_drawn = X.shape[0] if num_drawn is None else num_drawn
        for layer, factor, layer_key in zip(self.layers[:-1], hidden_factors, keys, strict=True):
            f = layer.conditional(X, factor)
            noise = _row_noise(layer_key, (num_drawn, f.mean.shape[1]), f.mean.dtype, shard)
            noise = jnp.pad(noise, ((0, X.shape[0] - num_drawn), (0, 0)))
            X = f.mean + jnp.sqrt(f.variance) * noise
        return X

    def factors(self) -> tuple[Float[Array, "M M"], ...]:
        """`Layer.factor` of every layer, for `propagate`."""
        return tuple(layer.factor() for layer in self.layers)

    def sample_function(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function, drawn from every layer's joint conditional over all rows of X."""
        X, offset = self._inputs_and_offset(X)
        for layer, layer_key in zip(self.layers, jr.split(key, self.depth), strict=True):
            X = layer.sample_joint(X, layer_key)
        return X if offset is None else X + offset


def linear_mean(X: np.ndarray, num_outputs: int) -> np.ndarray:
    """Fixed linear mean of a hidden layer, `[D P]`: the identity padded with zeros, or the leading principal axes."""
    num_inputs = X.shape[1]
    if num_inputs <= num_outputs:
        return np.eye(num_inputs, num_outputs, dtype=X.dtype)
    _, _, right = np.linalg.svd(X, full_matrices=False)
    return right[:num_outputs].T


def kmeans_centres(X: np.ndarray, num_centres: int, seed: int, weight: np.ndarray | None = None) -> np.ndarray:
    """k-means centres of X, from a random subset if it has more than `KMEANS_MAX_ROWS` rows."""
    from sklearn.cluster import KMeans

    if X.shape[0] > KMEANS_MAX_ROWS:
        picked = np.random.default_rng(seed).choice(X.shape[0], KMEANS_MAX_ROWS, replace=False)
        X, weight = X[picked], None if weight is None else weight[picked]
    distinct = np.unique(X, axis=0)
    if distinct.shape[0] <= num_centres:  # fewer distinct rows than centres: perturb copies slightly
        rng = np.random.default_rng(seed)
        copies = distinct[np.arange(num_centres) % distinct.shape[0]]
        return copies + 1e-2 * rng.standard_normal(copies.shape).astype(X.dtype)
    return KMeans(num_centres, random_state=seed).fit(X, sample_weight=weight).cluster_centers_.astype(X.dtype)


def init_deep_gp(
    X,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    num_targets: int = 1,
    num_inducing: int = 100,
    depth: int = 1,
    width: int | None = None,
    kernel: KernelChoice = RBF,
    start_variance: float = 0.1,
    jitter: float | None = None,
    weight: np.ndarray | None = None,
) -> DeepGP:
    """A deep GP at the paper authors' initial values: Z from k-means of X (mapped by the linear means), V = 0.

    `kernel` is in words (`"linear + rbf"`), a kernel class, a function `(num_dims, dtype) -> AbstractKernel` for every
    layer, or a kernel for the first one. `start_variance` is the variance of every term of kernels in words and of
    classes. `width` is the number of outputs of every hidden layer, D by default. Centres and linear means are those of
    rows with a `weight [N]`, if given.
    """
    X = np.asarray(jnp.asarray(check_matrix("X", X)))  # float32 if JAX runs without float64
    X = X[:, :-1] if likelihood.has_exposure else X
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
    kernels = layer_kernels(kernel, depth, start_variance)

    layers, seeds = [], np.asarray(jr.randint(key, (depth,), 0, 2**31 - 1))
    for index, (make_kernel, seed) in enumerate(zip(kernels, seeds, strict=True)):
        is_last = index == depth - 1
        num_outputs = num_latent if is_last else hidden_width
        W = None if is_last else linear_mean(X if weight is None else X * np.sqrt(weight)[:, None], num_outputs)
        layers.append(
            Layer(
                kernel=make_kernel(X.shape[1], X.dtype),
                Z=jnp.asarray(kmeans_centres(X, num_inducing, int(seed), weight)),
                V=jnp.zeros((num_inducing, num_outputs), X.dtype),
                W=None if W is None else jnp.asarray(W),
                jitter=jitter,
            )
        )
        X = X if W is None else X @ W
    return DeepGP(tuple(layers), likelihood)
