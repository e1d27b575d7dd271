"""kiss-gp (Wilson and Nickisch, 2015): inducing points on a grid, `K ~ W K_grid W^T`, solves by conjugate gradients.

The leading eigenvectors of `K_grid`, which its Kronecker structure makes cheap, precondition every solve:
`P = Phi Phi^T + s^2 I` with `Phi = W F`. The log-determinant is estimated with probes from `N(0, P)`, so that only the
part that P misses is random (Wenger et al., 2022).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.inference.history import Report
from bsgp.inference.host_loop import Clock
from bsgp.inference.optimise import cosine_adam, minimise
from bsgp.methods.fit import Fit
from bsgp.methods.method import Method, Task
from bsgp.models.batch import Batch
from bsgp.models.grid_gp import MIN_POINTS, Grid, GridGP, SpectralBasis, Stencil, kronecker_product
from bsgp.models.kernels import RBF
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import Gaussian, check_gaussian
from bsgp.models.linalg.conjugate_gradients import Preconditioner, cholesky_of_gram, conjugate_gradients, lanczos_log
from bsgp.models.linalg.numerics import LOG_2PI
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.checks import check_count, check_matrix

MAX_INPUTS = 4
GRID_POINTS = 10_000  # total, by default
NUM_PROBES = 8
PRECONDITIONER_RANK = 256
MAX_RANK, RANK_MULTIPLE = 2_048, 128  # of the predictive variance
MAX_OMITTED = 0.01  # prior variance that the predictive variance may leave unexplained, as a share of the noise
ROWS_PER_TILE = 1_024
TRAINING_TOLERANCE, PREDICTION_TOLERANCE = 1e-2, 1e-6  # of the residual, relative to the right-hand side
TRAINING_ITERATIONS, PREDICTION_ITERATIONS = 50, 1_000
MIN_NOISE = 1e-4  # of a standardised target: conjugate gradients need ever more iterations as the noise vanishes
CHUNK = 10  # steps per compiled call


class Hyperparameters(NamedTuple):
    """Logarithms of the kernel's parameters and the noise, which are optimised."""

    log_variance: Float[Array, ""]
    log_lengthscales: Float[Array, " D"]
    log_noise: Float[Array, ""]

    @classmethod
    def start(cls, lengthscales: np.ndarray, noise_variance: float, dtype) -> "Hyperparameters":
        """Starting values, with the variance of a standardised target."""
        zero = jnp.zeros((), dtype)
        return cls(zero, jnp.asarray(np.log(lengthscales), dtype), zero).with_noise(noise_variance)

    def with_noise(self, noise_variance: float) -> "Hyperparameters":
        """The hyperparameters with another noise variance, at least twice `MIN_NOISE`."""
        log_noise = np.log(max(noise_variance - MIN_NOISE, MIN_NOISE))
        return self._replace(log_noise=jnp.asarray(log_noise, self.log_noise.dtype))

    @property
    def kernel(self) -> RBF:
        return RBF(jnp.exp(self.log_variance), jnp.exp(self.log_lengthscales))

    @property
    def noise(self) -> Float[Array, ""]:
        """Noise variance, above `MIN_NOISE`."""
        return MIN_NOISE + jnp.exp(self.log_noise)


class Covariance(eqx.Module):
    """`K_hat = W K_grid W^T + noise I`, as an operator that is never formed."""

    stencil: Stencil
    factors: tuple[Float[Array, "_ _"], ...]
    noise: Float[Array, ""]

    def multiply(self, V: Float[Array, "N k"]) -> Float[Array, "N k"]:
        """`K_hat V`."""
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
    """`-log p(y | X)` with an estimated log-determinant, and an unbiased gradient with respect to `hyper` and X.

    With `a = K^-1 y` and probes `z_i ~ N(0, P)`, the differential is
    `-1/2 a^T dK a + 1/2 mean_i (K^-1 z_i)^T dK (P^-1 z_i)`.
    """
    (num_rows, num_targets), frozen = y.shape, jax.lax.stop_gradient((hyper, X))
    covariance, P = _preconditioned_covariance(*frozen, grid, min(rank, grid.num_points))
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
    correction = size * lanczos_log(solution.diagonal[:, num_targets:], solution.off_diagonal[:, num_targets:])
    log_det = P.log_det() + jnp.mean(correction)
    value = 0.5 * (jnp.sum(y * alpha) + num_targets * (log_det + num_rows * LOG_2PI))

    differentiable = Covariance(grid.stencil(X), grid.factors(hyper.kernel), hyper.noise)
    left = jnp.concatenate([alpha, solved], axis=1)
    right = jnp.concatenate([-alpha, (num_targets / num_probes) * whitened], axis=1)
    slope = 0.5 * differentiable.bilinear(*jax.lax.stop_gradient((left, right)))
    return jax.lax.stop_gradient(value - slope) + slope


def _preconditioned_covariance(hyper: Hyperparameters, X, grid: Grid, rank: int) -> tuple[Covariance, Preconditioner]:
    factors = grid.factors(hyper.kernel)
    Phi, _ = SpectralBasis.leading(factors, rank).features(grid.weights(X))
    return Covariance(grid.stencil(X), factors, hyper.noise), Preconditioner.build(Phi, hyper.noise)


def condition_on_data(hyper: Hyperparameters, grid: Grid, X: Float[Array, "N D"], y: Float[Array, "N P"]) -> GridGP:
    """Posterior GP given the data. All targets share one noise, so that they share the solves."""
    return _condition_on_data(hyper, grid, X, y, variance_rank(grid.factors(hyper.kernel), float(hyper.noise)))


def variance_rank(factors: tuple[Float[Array, "_ _"], ...], noise: float) -> int:
    """Number of eigenvectors of `K_grid` for the predictive variance.

    It leaves at most `MAX_OMITTED` of the noise unexplained, is a multiple of `RANK_MULTIPLE`, and at most `MAX_RANK`.
    """
    spectrum = np.ones(1)
    for factor in factors:
        spectrum = np.outer(spectrum, np.maximum(np.linalg.eigvalsh(np.asarray(factor)), 0.0)).ravel()
    omitted = np.cumsum(np.sort(spectrum)) / spectrum.size  # mean over the grid, without the 1, 2, ... smallest
    needed = int(np.sum(omitted > MAX_OMITTED * noise))
    return min(RANK_MULTIPLE * (-(-needed // RANK_MULTIPLE)), MAX_RANK, spectrum.size)


@eqx.filter_jit
def _condition_on_data(hyper: Hyperparameters, grid: Grid, X, y, rank: int) -> GridGP:
    covariance, P = _preconditioned_covariance(hyper, X, grid, min(PRECONDITIONER_RANK, grid.num_points))
    alpha = conjugate_gradients(
        covariance.multiply, P.solve, y, tolerance=PREDICTION_TOLERANCE, max_iterations=PREDICTION_ITERATIONS
    ).X
    mean = kronecker_product(covariance.factors, covariance.stencil.spread(alpha))
    basis = SpectralBasis.leading(covariance.factors, rank)
    # posterior covariance of the weights: (I + Phi^T Phi / noise)^-1 = noise (L L^T)^-1, L as in a preconditioner
    lower, noise = cholesky_of_gram(_gram(basis, grid, X), hyper.noise)
    root = jnp.sqrt(noise) * solve_triangular(lower, jnp.eye(rank, dtype=X.dtype), lower=True)
    num_targets = y.shape[1]
    likelihood = Gaussian(hyper.noise[None], shared_by=num_targets if num_targets > 1 else None)
    return GridGP(hyper.kernel, likelihood, grid, mean, basis, root)


def _gram(basis: SpectralBasis, grid: Grid, X: Float[Array, "N D"]) -> Float[Array, "R R"]:
    """`Phi^T Phi`, summed over tiles of rows because Phi is large."""
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
    """Points in each dimension of the default grid: about 10,000 in total, 1,000 for a single input."""
    each = 1_000 if num_inputs == 1 else round(GRID_POINTS ** (1.0 / num_inputs))
    return (each,) * num_inputs


def check_data(X, y, likelihood: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Checked `X` and `y`, both in the precision of X, or in float32 if JAX runs without float64."""
    X = np.asarray(jnp.asarray(check_matrix("X", X)))
    y = check_matrix("y", likelihood.check_targets(y), rows=X.shape[0])
    return X, np.asarray(y, X.dtype)


def check_sizes(sizes: tuple[int, ...], num_inputs: int) -> tuple[int, ...]:
    """Sizes of a grid that has one for each input, each large enough for cubic interpolation."""
    if len(sizes) != num_inputs:
        raise ValueError(
            f"`grid_sizes` must have one number for each of the {num_inputs} inputs, got {sizes}. "
            f"Pass {default_sizes(num_inputs)}, for example."
        )
    return tuple(check_count("grid_sizes", size, minimum=MIN_POINTS) for size in sizes)


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
    """Maximises the marginal likelihood of all rows by Adam, with `grid_sizes` points in each dimension."""
    gaussian = check_gaussian("kiss-gp", likelihood)
    X, y = check_data(X, y, gaussian)
    num_rows, num_inputs = X.shape
    if num_inputs > MAX_INPUTS:
        raise ValueError(
            f"`X` must have at most {MAX_INPUTS} inputs for `kiss-gp`, got {num_inputs}: the number of grid "
            "points is exponential in it. Use `bsgp`, `svgp` or `dkl`."
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
    return Fit(Posterior.from_single(condition_on_data(done.state, grid, data.X, data.y)), done.history)


def _fit(task: Task) -> Fit:
    num_steps = task.times(100)
    return fit_kiss_gp(*task.rows, task.likelihood, task.key, num_steps=num_steps, report=task.report, clock=task.clock)


KISS_GP = Method(
    name="kiss-gp",
    about="Cubic interpolation on a grid, for at most four inputs.",
    objectives=("interpolated",),
    u="-",
    Z="grid",
    theta="optimise",
    noise="optimise",
    fit=_fit,
    needs_gaussian=True,
)
