"""KISS-GP (Wilson and Nickisch, 2015): `K ~ W K_grid W^T`, inducing points on a grid, solves by conjugate gradients.

Every solve is preconditioned by the leading eigenvectors of `K_grid`, which cost nothing to find: `P = Phi Phi^T +
s^2 I` with `Phi = W F`. The probes of the log-determinant are drawn from `N(0, P)`, so that only what P leaves out is
estimated (Wenger et al., 2022).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.checks import check_count, check_matrix
from bsgp.fitted import Fit
from bsgp.grids import FEWEST_POINTS, Grid, GridGP, SpectralBasis, Stencil, kronecker_product
from bsgp.history import Report
from bsgp.kernels import RBF
from bsgp.krylov import Preconditioner, cholesky_of_gram, conjugate_gradients, lanczos_log
from bsgp.likelihoods import LOG_2PI, AbstractLikelihood, Gaussian
from bsgp.optimise import Clock, cosine_adam, minimise
from bsgp.posterior import Posterior
from bsgp.target import Batch

MOST_INPUTS = 4
GRID_POINTS = 10_000  # in all
NUM_PROBES = 8
PRECONDITIONER_RANK = 256
MOST_RANK, RANK_UNIT = 2_048, 128  # of the predictive variance
LEFT_OUT = 0.01  # of the noise: the prior variance that the predictive variance may leave out
ROWS_PER_TILE = 1_024
TRAINING_TOLERANCE, PREDICTION_TOLERANCE = 1e-2, 1e-6  # of the residual, relative
TRAINING_ITERATIONS, PREDICTION_ITERATIONS = 50, 1_000
LEAST_NOISE = 1e-4  # of a standardised target: conjugate gradients slow down without bound as the noise vanishes
CHUNK = 10


class Hyperparameters(NamedTuple):
    """What is optimised, on the real line."""

    log_variance: Float[Array, ""]
    log_lengthscales: Float[Array, " D"]
    log_noise: Float[Array, ""]

    @classmethod
    def start(cls, lengthscales: np.ndarray, noise_variance: float, dtype) -> "Hyperparameters":
        """At the variance of a standardised target."""
        zero = jnp.zeros((), dtype)
        return cls(zero, jnp.asarray(np.log(lengthscales), dtype), zero).with_noise(noise_variance)

    def with_noise(self, noise_variance: float) -> "Hyperparameters":
        log_noise = np.log(max(noise_variance - LEAST_NOISE, LEAST_NOISE))
        return self._replace(log_noise=jnp.asarray(log_noise, self.log_noise.dtype))

    @property
    def kernel(self) -> RBF:
        return RBF(jnp.exp(self.log_variance), jnp.exp(self.log_lengthscales))

    @property
    def noise(self) -> Float[Array, ""]:
        return LEAST_NOISE + jnp.exp(self.log_noise)


class Covariance(eqx.Module):
    """`K_hat = W K_grid W^T + noise I`, by products with it."""

    stencil: Stencil
    factors: tuple[Float[Array, "_ _"], ...]
    noise: Float[Array, ""]

    def multiply(self, V: Float[Array, "N k"]) -> Float[Array, "N k"]:
        smooth = self.stencil.interpolate(kronecker_product(self.factors, self.stencil.spread(V)))
        return smooth + self.noise * V

    def bilinear(self, U: Float[Array, "N k"], V: Float[Array, "N k"]) -> Float[Array, ""]:
        """`sum_i u_i^T K_hat v_i`."""
        smooth = self.stencil.spread(U) * kronecker_product(self.factors, self.stencil.spread(V))
        return jnp.sum(smooth) + self.noise * jnp.sum(U * V)


def negative_log_marginal(
    hyper: Hyperparameters,
    grid: Grid,
    X: Float[Array, "N D"],
    y: Float[Array, "N P"],
    key: Array,
    *,
    rank: int = PRECONDITIONER_RANK,
    num_probes: int = NUM_PROBES,
    tolerance: float = TRAINING_TOLERANCE,
) -> Float[Array, ""]:
    """`-log p(y | X)`, an estimate in its log-determinant, with an unbiased gradient for `hyper` and X.

    With `a = K^-1 y` and probes `z ~ N(0, P)`: `d = -1/2 a^T dK a + 1/2 mean_i (K^-1 z_i)^T dK (P^-1 z_i)`.
    """
    (num_rows, num_targets), frozen = y.shape, jax.lax.stop_gradient((hyper, X))
    covariance, P = _covariance(*frozen, grid, min(rank, grid.num_points))
    probes = P.sample(key, num_probes)
    solution = conjugate_gradients(
        covariance.multiply,
        P.solve,
        jnp.concatenate([y, probes], axis=1),
        tolerance=tolerance,
        max_iterations=TRAINING_ITERATIONS,
    )
    alpha, solved = solution.X[:, :num_targets], solution.X[:, num_targets:]
    whitened = P.solve(probes)
    size = jnp.sum(probes * whitened, axis=0)
    correction = size * lanczos_log(solution.diagonal[:, num_targets:], solution.below[:, num_targets:])
    log_det = P.log_det() + jnp.mean(correction)
    value = 0.5 * (jnp.sum(y * alpha) + num_targets * (log_det + num_rows * LOG_2PI))

    live = Covariance(grid.stencil(X), grid.factors(hyper.kernel), hyper.noise)
    left = jnp.concatenate([alpha, solved], axis=1)
    right = jnp.concatenate([-alpha, (num_targets / num_probes) * whitened], axis=1)
    slope = 0.5 * live.bilinear(*jax.lax.stop_gradient((left, right)))
    return jax.lax.stop_gradient(value - slope) + slope


def _covariance(hyper: Hyperparameters, X, grid: Grid, rank: int) -> tuple[Covariance, Preconditioner]:
    factors = grid.factors(hyper.kernel)
    Phi, _ = SpectralBasis.leading(factors, rank).features(grid.weights(X))
    return Covariance(grid.stencil(X), factors, hyper.noise), Preconditioner.build(Phi, hyper.noise)


def condition(hyper: Hyperparameters, grid: Grid, X: Float[Array, "N D"], y: Float[Array, "N P"]) -> GridGP:
    """The GP with these hyper-parameters, given the data. All targets have one noise: the solves are then shared."""
    return _condition(hyper, grid, X, y, enough_rank(grid.factors(hyper.kernel), float(hyper.noise)))


def enough_rank(factors: tuple[Float[Array, "_ _"], ...], noise: float) -> int:
    """How many eigenvectors of `K_grid` leave out a prior variance that is nothing beside the noise, if few enough."""
    spectrum = np.ones(1)
    for factor in factors:
        spectrum = np.outer(spectrum, np.maximum(np.linalg.eigvalsh(np.asarray(factor)), 0.0)).ravel()
    left_out = np.cumsum(np.sort(spectrum)) / spectrum.size  # the mean over the grid, without the 1, 2, ... smallest
    needed = int(np.sum(left_out > LEFT_OUT * noise))
    return min(RANK_UNIT * (-(-needed // RANK_UNIT)), MOST_RANK, spectrum.size)


@eqx.filter_jit
def _condition(hyper: Hyperparameters, grid: Grid, X, y, rank: int) -> GridGP:
    covariance, P = _covariance(hyper, X, grid, min(PRECONDITIONER_RANK, grid.num_points))
    alpha = conjugate_gradients(
        covariance.multiply, P.solve, y, tolerance=PREDICTION_TOLERANCE, max_iterations=PREDICTION_ITERATIONS
    ).X
    mean = kronecker_product(covariance.factors, covariance.stencil.spread(alpha))
    basis = SpectralBasis.leading(covariance.factors, rank)
    # the weights' posterior covariance (I + Phi^T Phi / noise)^-1 is noise (L L^T)^-1 with the L of a preconditioner
    lower, noise = cholesky_of_gram(_gram(basis, grid, X), hyper.noise)
    root = jnp.sqrt(noise) * solve_triangular(lower, jnp.eye(rank, dtype=X.dtype), lower=True)
    num_targets = y.shape[1]
    likelihood = Gaussian(hyper.noise[None], shared_by=num_targets if num_targets > 1 else None)
    return GridGP(hyper.kernel, likelihood, grid, mean, basis, root)


def _gram(basis: SpectralBasis, grid: Grid, X: Float[Array, "N D"]) -> Float[Array, "R R"]:
    """`Phi^T Phi`, by tiles of rows: Phi itself is large."""
    num_tiles = -(-X.shape[0] // ROWS_PER_TILE)
    missing = num_tiles * ROWS_PER_TILE - X.shape[0]
    rows = jnp.pad(X, ((0, missing), (0, 0))).reshape(num_tiles, ROWS_PER_TILE, X.shape[1])
    is_row = (jnp.arange(num_tiles * ROWS_PER_TILE) < X.shape[0]).astype(X.dtype).reshape(num_tiles, ROWS_PER_TILE)

    def add(total, tile):
        Phi = basis.features(grid.weights(tile[0]))[0] * tile[1][:, None]
        return total + Phi.T @ Phi, None

    rank = basis.picked.shape[0]
    return jax.lax.scan(add, jnp.zeros((rank, rank), X.dtype), (rows, is_row))[0]


def default_sizes(num_inputs: int) -> tuple[int, ...]:
    """About 10,000 points in all, and 1,000 where there is one dimension."""
    each = 1_000 if num_inputs == 1 else round(GRID_POINTS ** (1.0 / num_inputs))
    return (each,) * num_inputs


def check_gaussian(method: str, likelihood: AbstractLikelihood) -> Gaussian:
    if not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"`{method}` needs a Gaussian likelihood, got {type(likelihood).__name__}: its posterior is exact for no "
            "other. Use `bsgp` or `svgp` for this target."
        )
    return likelihood


def check_data(X, y, likelihood: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Both in the precision of X, float32 where JAX runs without float64."""
    X = np.asarray(jnp.asarray(check_matrix("X", X)))
    y = check_matrix("y", likelihood.check_targets(y), rows=X.shape[0])
    return X, np.asarray(y, X.dtype)


def check_sizes(sizes: tuple[int, ...], num_inputs: int) -> tuple[int, ...]:
    if len(sizes) != num_inputs:
        raise ValueError(
            f"`grid_sizes` must have one number for each of the {num_inputs} inputs, got {sizes}. "
            f"Pass for instance {default_sizes(num_inputs)}."
        )
    return tuple(check_count("grid_sizes", size, minimum=FEWEST_POINTS) for size in sizes)


def fit_kiss_gp(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    grid_sizes: tuple[int, ...] | None = None,
    num_steps: int = 100,
    learning_rate: float = 0.1,
    report: Report,
    clock: Clock,
) -> Fit:
    """Adam on the marginal likelihood of all rows; `grid_sizes` points in each dimension, some 10,000 in all."""
    gaussian = check_gaussian("kiss-gp", likelihood)
    X, y = check_data(X, y, gaussian)
    num_rows, num_inputs = X.shape
    if num_inputs > MOST_INPUTS:
        raise ValueError(
            f"`kiss-gp` takes at most {MOST_INPUTS} inputs, got {num_inputs}: the points of a grid multiply with every "
            "one. Use `bsgp`, `svgp` or `dkl`."
        )
    grid = Grid.around(X, check_sizes(grid_sizes or default_sizes(num_inputs), num_inputs))
    lengthscales = np.full(num_inputs, num_inputs**0.5)
    hyper = Hyperparameters.start(lengthscales, float(jnp.mean(gaussian.noise_variance)), X.dtype)
    num_steps = check_count("num_steps", num_steps)

    def loss(hyper, batch, step_key):
        return negative_log_marginal(hyper, grid, batch.X, batch.y, step_key) / num_rows

    data = Batch(jnp.asarray(X), jnp.asarray(y))
    done = minimise(
        loss, hyper, cosine_adam(learning_rate, num_steps), data, key,
        num_steps=num_steps, batch_size=num_rows, report=report, clock=clock, chunk=CHUNK,
    )  # fmt: skip
    return Fit(Posterior.from_single(condition(done.state, grid, data.X, data.y)), done.history(clock.seconds))
