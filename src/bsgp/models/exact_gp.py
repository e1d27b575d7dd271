"""The exact GP, conditioned on all training rows."""

import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.models.kernels import AbstractKernel
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.numerics import LOG_2PI, Marginals, add_jitter, relative_jitter
from bsgp.models.model import AbstractModel
from bsgp.runtime.checks import check_matrix

MAX_ROWS = 2_000
"""Largest training set. One evaluation with its gradient costs N^3: about a second of one core at this size."""


class ExactGP(AbstractModel):
    """A GP with Gaussian noise, conditioned on all training rows; outputs share the kernel."""

    kernel: AbstractKernel
    likelihood: Gaussian
    X: Float[Array, "N D"]
    y: Float[Array, "N P"]
    weight: Float[Array, " N"] | None = None
    known_variance: Float[Array, "N P"] | None = None
    """As in `Batch`."""

    @property
    def num_inputs(self) -> int:
        return self.X.shape[-1]

    @property
    def num_latent(self) -> int:
        return self.y.shape[-1]

    @property
    def support(self) -> str:
        return f"all {self.X.shape[-2]:,} training rows"

    @property
    def input_kernel(self) -> AbstractKernel:
        return self.kernel

    def log_marginal_likelihood(self) -> Float[Array, ""]:
        """`log p(y | X, kernel, noise)`, summed over outputs, in which a row counts as often as its weight says."""
        roots, whitened = self.factors()
        log_dets = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
        once = -0.5 * (jnp.sum(whitened**2) + self.y.size * LOG_2PI) - jnp.sum(log_dets)
        return once if self.weight is None else once + self._log_factor(self.weight)

    def _log_factor(self, weight: Float[Array, " N"]) -> Float[Array, ""]:
        """What `N(y; f, v)^w` is, as a multiple of `N(y; f, v / w)`, over all rows and outputs."""
        log_v = LOG_2PI + jnp.log(jnp.broadcast_to(self._noise, self.y.shape))
        return 0.5 * jnp.sum((1.0 - weight[:, None]) * log_v - jnp.log(weight)[:, None])

    @property
    def _noise(self) -> Float[Array, "_ P"]:
        """Noise variance of all rows `[1 P]`, or of each `[N P]`."""
        noise = jnp.broadcast_to(self.likelihood.noise_variance, (self.num_latent,))[None, :]
        return noise if self.known_variance is None else noise + self.known_variance

    def factors(self) -> tuple[Float[Array, "P N N"], Float[Array, "N P"]]:
        """Cholesky factor L of `K` plus the noise of each row, over its weight, and `L^-1 y`, per output."""
        K = add_jitter(self.kernel(self.X, self.X), relative_jitter(self.X.dtype))
        noise = self._noise if self.weight is None else self._noise / self.weight[:, None]
        eye = jnp.eye(K.shape[0], dtype=K.dtype)
        roots = [jnp.linalg.cholesky(K + noise[:, p][None, :] * eye) for p in range(self.num_latent)]
        whitened = [solve_triangular(root, self.y[:, p], lower=True) for p, root in enumerate(roots)]
        return jnp.stack(roots), jnp.stack(whitened, axis=1)

    def propagate(self, X: Float[Array, "R D"], key: Array, factors=None) -> Marginals:
        del key  # nothing is drawn
        A, whitened = self._cross(X, factors)
        mean = jnp.stack([a.T @ whitened[:, p] for p, a in enumerate(A)], axis=1)
        explained = jnp.stack([jnp.sum(a * a, axis=0) for a in A], axis=1)
        prior = self.kernel.diag(X)[:, None]
        return Marginals(mean, jnp.maximum(prior - explained, float(jnp.finfo(X.dtype).eps) * prior))

    def propagate_with_prior(self, X, key, factors=None):
        return self.propagate(X, key, factors), self.kernel.diag(X)

    def sample_function(self, X: Float[Array, "R D"], key: Array) -> Float[Array, "R P"]:
        A, whitened = self._cross(X, None)
        prior = self.kernel(X, X)
        floor = relative_jitter(X.dtype) * jnp.mean(self.kernel.diag(X)) * jnp.eye(X.shape[0], dtype=X.dtype)
        noise = jr.normal(key, (X.shape[0], self.num_latent), X.dtype)
        functions = [
            a.T @ whitened[:, p] + jnp.linalg.cholesky(prior - a.T @ a + floor) @ noise[:, p] for p, a in enumerate(A)
        ]
        return jnp.stack(functions, axis=1)

    def _cross(self, X, factors) -> tuple[list[Array], Array]:
        """`L^-1 K(train, X)` and `L^-1 y`, per output."""
        roots, whitened = self.factors() if factors is None else factors
        K = self.kernel(self.X, X)
        return [solve_triangular(root, K, lower=True) for root in roots], whitened


def check_few_rows(X) -> None:
    """Raises a `ValueError` if X has too many rows for an exact GP."""
    num_rows = check_matrix("X", X).shape[0]
    if num_rows > MAX_ROWS:
        raise ValueError(
            f"An exact GP takes at most {MAX_ROWS:,} rows (its cost grows with their cube), got {num_rows:,}. "
            'Use `method="bsgp"`, which has no limit, or fewer rows.'
        )
