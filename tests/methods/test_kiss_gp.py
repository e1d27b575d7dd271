"""Grids, interpolation, conjugate gradients and kiss-gp against dense linear algebra."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp.inference.history import silent
from bsgp.inference.host_loop import Clock
from bsgp.methods.kiss_gp import (
    MIN_NOISE,
    Covariance,
    Hyperparameters,
    condition_on_data,
    default_sizes,
    fit_kiss_gp,
    negative_log_marginal,
    variance_rank,
)
from bsgp.models.grid_gp import Grid, GridGP, SpectralBasis, Stencil, kronecker_product
from bsgp.models.kernels import RBF
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.conjugate_gradients import Preconditioner, conjugate_gradients, lanczos_log


def uniform(rng, num_rows, num_dims):
    return rng.uniform(-1.0, 1.0, (num_rows, num_dims))


def dense_weights(grid, X):
    """W [N G], as the row-wise Kronecker product of the weights of each dimension."""
    W = np.ones((X.shape[0], 1))
    for weight in jax.jit(Grid.weights)(grid, jnp.asarray(X)):
        W = (W[:, :, None] * np.asarray(weight)[:, None, :]).reshape(X.shape[0], -1)
    return W


def points(grid):
    axes = [
        float(lower) + float(h) * np.arange(g) for lower, h, g in zip(grid.lower, grid.spacing, grid.sizes, strict=True)
    ]
    return np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)


def hyperparameters(num_dims, lengthscale=0.7, variance=0.9, noise=0.1):
    hyper = Hyperparameters.start(np.full(num_dims, lengthscale), noise, np.float64)
    return hyper._replace(log_variance=jnp.log(variance))


def exact_gp(hyper, X, y, X_new):
    """Mean and variance of the exact GP."""
    kernel, X, X_new = hyper.kernel, jnp.asarray(X), jnp.asarray(X_new)
    K = kernel(X, X) + hyper.noise * jnp.eye(X.shape[0])
    cross = kernel(X_new, X)
    return cross @ jnp.linalg.solve(K, jnp.asarray(y)), kernel.diag(X_new) - jnp.sum(
        cross * jnp.linalg.solve(K, cross.T).T, axis=1
    )


@pytest.mark.parametrize("sizes", [(12,), (9, 7), (6, 7, 8)])
def test_interpolation_is_exact_for_quadratics(rng, sizes):
    X = uniform(rng, 50, len(sizes))
    grid = Grid.around(X, sizes)
    stencil = jax.jit(Grid.stencil)(grid, jnp.asarray(X))

    def quadratic(P):
        return np.prod(1.0 + P + 0.7 * P**2, axis=1)[:, None]

    values = np.concatenate([np.ones((grid.num_points, 1)), quadratic(points(grid))], axis=1)
    got = jax.jit(Stencil.interpolate)(stencil, jnp.asarray(values))
    assert_allclose(got[:, 0], 1.0, rtol=1e-12)
    assert_allclose(got[:, 1:], quadratic(X), rtol=1e-10)


def test_interpolation_of_a_smooth_function_is_of_third_order(rng):
    X = uniform(rng, 400, 1)

    def worst(size):
        grid = Grid.around(X, (size,))
        return np.abs(grid.stencil(jnp.asarray(X)).interpolate(jnp.sin(3.0 * points(grid))) - np.sin(3.0 * X)).max()

    assert 6.0 < worst(53) / worst(103) < 11.0  # half the spacing, an eighth of the error


@pytest.mark.parametrize("sizes", [(15,), (7, 9), (6, 7, 6, 6)])
def test_sparse_products_are_the_dense_ones(rng, sizes):
    X = uniform(rng, 30, len(sizes))
    grid = Grid.around(X, sizes)
    W, stencil = dense_weights(grid, X), jax.jit(Grid.stencil)(grid, jnp.asarray(X))
    kernel = RBF(jnp.asarray(1.3), jnp.asarray(rng.uniform(0.3, 1.0, len(sizes))))
    P = jnp.asarray(points(grid))
    V, U = rng.standard_normal((grid.num_points, 3)), rng.standard_normal((30, 3))
    assert_allclose(jax.jit(Stencil.interpolate)(stencil, jnp.asarray(V)), W @ V, rtol=1e-10, atol=1e-10)
    assert_allclose(jax.jit(Stencil.spread)(stencil, jnp.asarray(U)), W.T @ U, rtol=1e-10, atol=1e-10)
    K = np.asarray(kernel(P, P))
    covariance = Covariance(stencil, jax.jit(Grid.factors)(grid, kernel), jnp.asarray(0.2))
    assert_allclose(kronecker_product(covariance.factors, jnp.asarray(V)), K @ V, rtol=1e-10, atol=1e-9)
    K_hat = W @ K @ W.T + 0.2 * np.eye(30)
    assert_allclose(jax.jit(Covariance.multiply)(covariance, jnp.asarray(U)), K_hat @ U, rtol=1e-10, atol=1e-10)
    bilinear = jax.jit(Covariance.bilinear)(covariance, jnp.asarray(U), jnp.asarray(U))
    assert_allclose(bilinear, np.sum(U * (K_hat @ U)), rtol=1e-10)


@pytest.mark.parametrize(("sizes", "lengthscale"), [((1000,), 0.7), ((100, 100), 2.0)])
def test_a_fine_grid_is_the_kernel_itself(rng, sizes, lengthscale):
    X = jnp.asarray(uniform(rng, 60, len(sizes)))
    grid, hyper = Grid.around(np.asarray(X), sizes), hyperparameters(len(sizes), lengthscale)
    v = jnp.asarray(rng.standard_normal((60, 2)))
    K = hyper.kernel(X, X)
    got = Covariance(grid.stencil(X), grid.factors(hyper.kernel), jnp.asarray(0.0)).multiply(v)
    assert np.abs(got - K @ v).max() < 1e-6 * np.abs(K @ v).max()


def test_all_eigenvectors_are_the_grid_and_fewer_leave_a_part_out(rng):
    X = uniform(rng, 25, 2)
    grid, kernel = Grid.around(X, (8, 9)), hyperparameters(2, 0.5).kernel
    weights, factors = grid.weights(jnp.asarray(X)), grid.factors(kernel)
    W, P = dense_weights(grid, X), jnp.asarray(points(grid))
    K = W @ np.asarray(kernel(P, P)) @ W.T
    Phi, prior = SpectralBasis.leading(factors, 72).features(weights)
    assert_allclose(Phi @ Phi.T, K, atol=1e-10)
    few, still = SpectralBasis.leading(factors, 10).features(weights)
    assert_allclose(prior, np.diag(K), rtol=1e-10)
    assert_allclose(still, prior, rtol=1e-10)
    assert np.linalg.eigvalsh(K - np.asarray(few @ few.T)).min() > -1e-10


@partial(jax.jit, static_argnums=(0, 3))
def system(sizes, hyper, X, rank):
    """Covariance, preconditioner, and the covariance as a matrix."""
    low, high = jnp.min(X, axis=0), jnp.max(X, axis=0)
    spacing = (high - low) / (jnp.asarray(sizes, X.dtype) - 3.0)
    grid = Grid(low - spacing, spacing, sizes)
    covariance = Covariance(grid.stencil(X), grid.factors(hyper.kernel), hyper.noise)
    Phi, _ = SpectralBasis.leading(covariance.factors, rank).features(grid.weights(X))
    return grid, covariance, Preconditioner.build(Phi, hyper.noise), covariance.multiply(jnp.eye(X.shape[0]))


def small_system(rng, rank):
    X, hyper = jnp.asarray(uniform(rng, 40, 2)), hyperparameters(2)
    return X, hyper, *system((10, 11), hyper, X, rank)


@partial(jax.jit, static_argnums=3)
def solve(covariance, P, B, tolerance):
    return conjugate_gradients(covariance.multiply, P.solve, B, tolerance=tolerance, max_iterations=120)


def test_the_preconditioner_is_its_own_inverse_determinant_and_covariance(rng, getkey):
    *_, P, _ = small_system(rng, 12)
    dense = P.Phi @ P.Phi.T + P.noise * jnp.eye(40)
    assert_allclose(P.solve(dense), np.eye(40), atol=1e-8)
    assert_allclose(P.log_det(), np.linalg.slogdet(dense)[1], rtol=1e-10)
    draws = P.sample(getkey(), 20_000)
    assert np.abs(draws @ draws.T / 20_000 - dense).max() < 0.06


@pytest.mark.parametrize("rank", [1, 12])
def test_conjugate_gradients_solve(rng, rank):
    *_, covariance, P, K_hat = small_system(rng, rank)
    B = jnp.asarray(rng.standard_normal((40, 3)) * np.asarray([[1.0, 100.0, 1e-3]]))
    solution = solve(covariance, P, B, 1e-12)
    expected = np.linalg.solve(K_hat, B)
    assert (np.abs(solution.X - expected).max(axis=0) < 1e-7 * np.abs(expected).max(axis=0)).all()
    assert int(solution.iterations) < 60


def test_a_better_preconditioner_needs_fewer_steps(rng):
    B = jnp.asarray(rng.standard_normal((40, 3)))
    steps = []
    for rank in (1, 12, 110):
        *_, covariance, P, _ = small_system(np.random.default_rng(1), rank)
        steps.append(int(solve(covariance, P, B, 1e-12).iterations))
    assert steps[0] > 20
    assert steps[0] > steps[1] > steps[2]
    assert steps[2] <= 3  # with all eigenvectors the preconditioner is the matrix


def test_zero_columns_stay_zero(rng):
    *_, covariance, P, _ = small_system(rng, 12)
    assert_allclose(solve(covariance, P, jnp.zeros((40, 3)), 1e-12).X, 0.0)


def test_the_lanczos_matrices_give_the_logarithm(rng):
    *_, covariance, P, K_hat = small_system(rng, 12)
    B = jnp.asarray(rng.standard_normal((40, 3)))
    solved = solve(covariance, P, B, 1e-12)
    dense = np.asarray(P.Phi @ P.Phi.T + P.noise * jnp.eye(40))
    values, vectors = np.linalg.eigh(dense)
    half = vectors / np.sqrt(values)[None, :] @ vectors.T
    values, vectors = np.linalg.eigh(half @ np.asarray(K_hat) @ half)
    start = half @ np.asarray(B)
    expected = np.log(values) @ (vectors.T @ (start / np.linalg.norm(start, axis=0))) ** 2
    assert_allclose(lanczos_log(solved.diagonal, solved.off_diagonal), expected, rtol=1e-6)


def test_the_marginal_likelihood_and_its_gradient_are_the_dense_ones(rng, getkey, monkeypatch):
    """With probes whose second moment is P itself and not an estimate of it, there is nothing random left."""
    X, hyper, grid, *_ = small_system(rng, 12)
    y = jnp.asarray(np.sin(2.0 * np.asarray(X)) + 0.3 * rng.standard_normal((40, 2)))

    def all_probes(self, key, num):
        assert num == 40
        return 40**0.5 * jnp.linalg.cholesky(self.Phi @ self.Phi.T + self.noise * jnp.eye(40))

    monkeypatch.setattr(Preconditioner, "sample", all_probes)

    def dense(hyper, X):
        covariance = Covariance(grid.stencil(X), grid.factors(hyper.kernel), hyper.noise)
        lower = jnp.linalg.cholesky(covariance.multiply(jnp.eye(40)))
        white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
        return 0.5 * jnp.sum(white**2) + 2.0 * (jnp.sum(jnp.log(jnp.diag(lower))) + 20.0 * jnp.log(2.0 * jnp.pi))

    def structured(hyper, X):
        return negative_log_marginal(hyper, grid, X, y, key, rank=12, num_probes=40, tolerance=1e-10)

    key = getkey()
    value, slope = jax.jit(jax.value_and_grad(structured, argnums=(0, 1)))(hyper, X)
    expected, dense_slope = jax.jit(jax.value_and_grad(dense, argnums=(0, 1)))(hyper, X)
    assert_allclose(value, expected, rtol=1e-6)
    for got, want in zip(jax.tree.leaves(slope), jax.tree.leaves(dense_slope), strict=True):
        assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_prediction_is_that_of_the_exact_gp(rng, getkey):
    X, X_new = uniform(rng, 80, 2), 0.8 * uniform(rng, 30, 2)
    y = np.concatenate([np.sin(3.0 * X[:, :1]), X[:, :1] ** 2], axis=1) + 0.3 * rng.standard_normal((80, 2))
    hyper = hyperparameters(2)
    model = condition_on_data(hyper, Grid.around(X, (60, 60)), jnp.asarray(X), jnp.asarray(y))
    mean, variance = exact_gp(hyper, X, y, X_new)
    f = jax.jit(GridGP.propagate)(model, jnp.asarray(X_new), getkey())
    assert_allclose(f.mean, mean, atol=2e-4)
    assert_allclose(f.variance[:, 0], variance, atol=2e-3 * 0.1)  # what the rank leaves out is below that of the noise
    assert_allclose(f.variance[:, 0], f.variance[:, 1])


def test_what_the_rank_leaves_out_is_variance(rng, monkeypatch):
    X, y = uniform(rng, 60, 2), rng.standard_normal((60, 1))
    grid, hyper = Grid.around(X, (10, 10)), hyperparameters(2, lengthscale=0.4)
    variances = []
    for most in (10, 100):
        monkeypatch.setattr("bsgp.methods.kiss_gp.MAX_RANK", most)
        monkeypatch.setattr("bsgp.methods.kiss_gp.MAX_OMITTED", 0.0)
        model = condition_on_data(hyper, grid, jnp.asarray(X), jnp.asarray(y))
        assert model.root.shape == (most, most)
        variances.append(np.asarray(jax.jit(GridGP.marginals)(model, jnp.asarray(X)).variance))
    assert (variances[0] > variances[1]).all()
    W, P = dense_weights(grid, X), jnp.asarray(points(grid))
    K = W @ np.asarray(hyper.kernel(P, P)) @ W.T
    exact = np.diag(K - K @ np.linalg.solve(K + float(hyper.noise) * np.eye(60), K))
    assert_allclose(variances[1][:, 0], exact, rtol=1e-6)


def test_the_rank_of_the_variance_follows_noise_and_lengthscale(rng):
    grid = Grid.around(uniform(rng, 10, 2), (40, 40))
    ranks = [variance_rank(grid.factors(hyperparameters(2, scale).kernel), noise) for scale, noise in
             ((1.0, 0.1), (0.2, 0.1), (0.2, 0.001))]  # fmt: skip
    assert ranks == sorted(ranks)
    assert ranks[0] == 128
    assert ranks[1] < ranks[2] < 1600


def test_rows_beyond_the_grid_are_those_at_its_edge(rng):
    X, y = uniform(rng, 40, 2), rng.standard_normal((40, 1))
    grid = Grid.around(X, (12, 12))
    model = condition_on_data(hyperparameters(2), grid, jnp.asarray(X), jnp.asarray(y))
    edge = grid.lower + (12 - 2) * grid.spacing
    far, near = (jax.jit(GridGP.marginals)(model, jnp.asarray([[0.0, v]])) for v in (50.0, float(edge[1])))
    assert_allclose(far.mean, near.mean, rtol=1e-12)
    assert_allclose(far.variance, near.variance, rtol=1e-12)


def test_functions_have_the_joint_posterior(rng, getkey):
    X, y = uniform(rng, 40, 2), rng.standard_normal((40, 1))
    hyper = hyperparameters(2)
    model = condition_on_data(hyper, Grid.around(X, (12, 12)), jnp.asarray(X), jnp.asarray(y))
    X_new = jnp.asarray(0.8 * uniform(rng, 5, 2))
    draws = np.asarray(jax.lax.map(lambda key: model.sample_function(X_new, key), jr.split(getkey(), 4_000)))[:, :, 0]
    mean, _ = exact_gp(hyper, X, y, X_new)
    cross = hyper.kernel(X_new, jnp.asarray(X))
    K_hat = hyper.kernel(jnp.asarray(X), jnp.asarray(X)) + hyper.noise * jnp.eye(40)
    covariance = hyper.kernel(X_new, X_new) - cross @ jnp.linalg.solve(K_hat, cross.T)
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean[:, 0]) < 0.1 * sd).all()
    assert (np.abs(np.cov(draws.T) - covariance) < 0.1 * np.outer(sd, sd)).all()


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    X = uniform(rng, 150, 2)
    clean = np.concatenate([np.sin(3.0 * X[:, :1]), np.cos(2.0 * X[:, 1:])], axis=1)
    y = clean + 0.2 * rng.standard_normal(clean.shape)
    said = []

    def report(*line):
        said.append(line)

    fit = fit_kiss_gp(X, y, Gaussian(jnp.ones(2)), jr.key(0), grid_sizes=(20, 20), report=report, clock=Clock())
    return fit, said, X, y, clean


def test_the_fit_finds_noise_and_function(fitted, getkey):
    fit, said, X, _, clean = fitted
    model = fit.posterior.model
    assert_allclose(model.likelihood.noise_variance[0, 0], 0.04, rtol=0.2)
    assert np.sqrt(np.mean((fit.posterior.predict(X, getkey()).mean - clean) ** 2)) < 0.08
    energy = fit.history.energy["optimise"]
    assert energy.shape == (1, 100)
    assert fit.history.evaluations == 100
    assert energy[0, -10:].mean() < energy[0, :10].mean() - 1.0
    assert [line[:3] for line in said] == [("optimise", done, 100) for done in range(10, 101, 10)]
    assert model.support == "a grid of 20 x 20"
    assert (model.depth, model.num_inputs, model.num_latent) == (1, 2, 2)
    assert isinstance(model.input_kernel, RBF)


def test_the_posterior_does_all_that_posteriors_do(fitted, getkey):
    fit, _, X, y, _ = fitted
    posterior = fit.posterior
    p = posterior.predict(X, getkey())
    sd = np.sqrt(p.variance)
    expected = -0.5 * (np.log(2.0 * np.pi * p.variance) + (y - p.mean) ** 2 / p.variance)
    assert_allclose(posterior.log_density(X, y, getkey()), expected, rtol=1e-8)
    quantiles = posterior.quantiles(X, [0.05, 0.5], getkey())
    assert_allclose(quantiles, np.stack([p.mean - 1.6448536 * sd, p.mean], axis=-1), atol=1e-6)
    draws = posterior.sample(X[:5], getkey(), num=1_000)
    assert_allclose(draws.mean(axis=0), p.mean[:5], atol=0.05)
    assert_allclose(draws.var(axis=0), p.variance[:5], rtol=0.25)
    assert posterior.sample_functions(X[:5], getkey(), num=2).shape == (2, 5, 2)


def test_a_time_limit_ends_it_early_with_a_model_in_the_precision_of_the_data(rng, getkey):
    X = uniform(rng, 100, 1).astype(np.float32)
    likelihood = Gaussian(jnp.full(1, 0.1, jnp.float32))
    fit = fit_kiss_gp(X, np.sin(X), likelihood, getkey(), grid_sizes=(50,), report=silent, clock=Clock(max_seconds=0.0))
    assert fit.history.interrupted
    assert fit.history.evaluations == 10
    assert {leaf.dtype.name for leaf in jax.tree.leaves(fit.posterior.model)} == {"float32", "int32"}
    assert np.abs(fit.posterior.predict(X, getkey()).mean - np.sin(X)).max() < 0.05


def test_noise_has_a_floor():
    hyper = hyperparameters(1, noise=1e-12)
    assert MIN_NOISE < float(hyper.noise) < 3.0 * MIN_NOISE
    assert_allclose(hyperparameters(1, noise=0.3).noise, 0.3)


def test_default_grids_have_about_ten_thousand_points():
    assert default_sizes(4) == (10,) * 4
    assert default_sizes(3) == (22,) * 3
    assert default_sizes(2) == (100, 100)
    assert default_sizes(1) == (1_000,)


@pytest.mark.parametrize(
    ("num_dims", "likelihood", "options", "message"),
    [
        (5, Gaussian(jnp.ones(1)), {}, r"at most 4 inputs for `kiss-gp`, got 5.*Use `bsgp`, `svgp` or `dkl`"),
        (2, Bernoulli(), {}, r"`kiss-gp` is for regression with Gaussian noise, got a Bernoulli.*Use `bsgp` or `svgp`"),
        (2, Gaussian(jnp.ones(1)), {"grid_sizes": (10,)}, r"one number for each of the 2 inputs, got \(10,\)"),
        (
            2,
            Gaussian(jnp.ones(1)),
            {"grid_sizes": (10, 3)},
            r"`grid_sizes` must be a whole .* at least 6, got 3",
        ),
        (2, Gaussian(jnp.ones(1)), {"num_steps": 0}, r"`num_steps` must be a whole number of at least 1, got 0"),
    ],
)
def test_refusals(rng, getkey, num_dims, likelihood, options, message):
    y = (rng.uniform(size=(30, 1)) > 0.5).astype(float)
    with pytest.raises(ValueError, match=message):
        fit_kiss_gp(uniform(rng, 30, num_dims), y, likelihood, getkey(), **options, report=silent, clock=Clock())
