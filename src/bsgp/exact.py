"""The exact GP, and the log joint of its kernel and noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.checks import check_matrix
from bsgp.kernels import RBF, AbstractKernel, stationary
from bsgp.likelihoods import LOG_2PI, AbstractLikelihood, Gaussian
from bsgp.model import AbstractModel
from bsgp.numerics import Marginals, add_jitter, relative_jitter
from bsgp.target import DEFAULT_PRIORS

MAX_ROWS = 2_000
"""An evaluation costs N^3: at this size about one second of one core, with its gradient."""
START_NOISE = 0.1


class ExactGP(AbstractModel):
    """A GP conditioned on all of its data, with Gaussian noise; outputs share the kernel."""

    kernel: AbstractKernel
    likelihood: Gaussian
    X: Float[Array, "N D"]
    y: Float[Array, "N P"]

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
        roots, whitened = self.factors()
        log_dets = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
        return -0.5 * (jnp.sum(whitened**2) + self.y.size * LOG_2PI) - jnp.sum(log_dets)

    def factors(self) -> tuple[Float[Array, "P N N"], Float[Array, "N P"]]:
        """Each output's L of `K + noise = L L^T`, and `L^-1 y`."""
        K = add_jitter(self.kernel(self.X, self.X), relative_jitter(self.X.dtype))
        noise = jnp.broadcast_to(self.likelihood.noise_variance, (self.num_latent,))
        eye = jnp.eye(K.shape[0], dtype=K.dtype)
        roots = [jnp.linalg.cholesky(K + noise[p] * eye) for p in range(self.num_latent)]
        whitened = [solve_triangular(root, self.y[:, p], lower=True) for p, root in enumerate(roots)]
        return jnp.stack(roots), jnp.stack(whitened, axis=1)

    def propagate(self, X: Float[Array, "R D"], key: Array, factors=None) -> Marginals:
        del key  # nothing is drawn
        A, whitened = self._cross(X, factors)
        mean = jnp.stack([a.T @ whitened[:, p] for p, a in enumerate(A)], axis=1)
        explained = jnp.stack([jnp.sum(a * a, axis=0) for a in A], axis=1)
        prior = self.kernel.diag(X)[:, None]
        return Marginals(mean, jnp.maximum(prior - explained, float(jnp.finfo(X.dtype).eps) * prior))

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
        """`L^-1 K(train, X)` of each output, and `L^-1 y`."""
        roots, whitened = self.factors() if factors is None else factors
        K = self.kernel(self.X, X)
        return [solve_triangular(root, K, lower=True) for root in roots], whitened


def check_exact(X, likelihood: AbstractLikelihood) -> None:
    """A `ValueError` where the exact GP is no choice."""
    num_rows = check_matrix("X", X).shape[0]
    if num_rows > MAX_ROWS:
        raise ValueError(
            f"An exact GP takes at most {MAX_ROWS:,} rows (its cost grows with their cube), got {num_rows:,}. "
            'Use `method="bsgp"`, which has no limit, or fewer rows.'
        )
    if not isinstance(likelihood, Gaussian):
        raise ValueError(
            f'An exact GP needs Gaussian noise, got {type(likelihood).__name__}. Use `method="bsgp"` or `"svgp"`.'
        )


class ExactTarget(eqx.Module):
    """The log joint of kernel and noise given the data, with every parameter on the real line."""

    model: ExactGP

    @property
    def _is_data(self) -> ExactGP:
        return eqx.tree_at(lambda m: (m.X, m.y), jax.tree.map(lambda _: False, self.model), (True, True))

    @property
    def data(self) -> ExactGP:
        """The model's data, and None in the place of what is sampled."""
        return eqx.filter(self.model, self._is_data)

    def start(self) -> ExactGP:
        """A position: the model without its data, unconstrained."""
        free = eqx.filter(self.model, self._is_data, inverse=True)
        return _map_with_prior(lambda prior, leaf: prior.bijector.inverse(leaf), free)

    def constrain_free(self, position: ExactGP) -> ExactGP:
        """Kernel and likelihood at a position, without the data."""
        return _map_with_prior(lambda prior, leaf: prior.bijector.forward(leaf), position)

    def constrain(self, position: ExactGP) -> ExactGP:
        return eqx.combine(self.constrain_free(position), self.data)

    def log_joint(self, position: ExactGP) -> Float[Array, ""]:
        def log_prior(prior, leaf):
            return jnp.sum(prior.log_prob(prior.bijector.forward(leaf)) + prior.bijector.log_det(leaf))

        terms = jax.tree.leaves(_map_with_prior(log_prior, position))
        return self.constrain(position).log_marginal_likelihood() + sum(terms)


def _map_with_prior(function, tree: ExactGP) -> ExactGP:
    return jtu.tree_map_with_path(lambda path, leaf: function(DEFAULT_PRIORS[path[-1].name], leaf), tree)


def exact_target(X, y, likelihood: AbstractLikelihood) -> ExactTarget:
    """The exact GP of a table that is small enough, at its start."""
    check_exact(X, likelihood)
    assert isinstance(likelihood, Gaussian)  # for the type checker
    X = jnp.asarray(check_matrix("X", X))
    y = jnp.asarray(likelihood.check_targets(check_matrix("y", y, rows=X.shape[0])), X.dtype)
    noise = Gaussian(jnp.full_like(likelihood.noise_variance, START_NOISE), likelihood.shared_by)
    return ExactTarget(ExactGP(stationary(RBF, X.shape[1], X.dtype, variance=1.0), noise, X, y))
