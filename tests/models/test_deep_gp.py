from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import optimal_u, regression, shallow, tiny_target
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk_kernels

from bsgp import Batch, Target, init_deep_gp
from bsgp.models.deep_gp import DeepGP, linear_mean
from bsgp.models.kernels import RBF, Matern32, stationary
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.gaussian_noise import gaussian


def gaussian_posterior_of_v(target: Target, batch: Batch, key):
    """With everything else fixed the log joint is quadratic in V: its mode and curvature are the posterior."""
    position = target.unconstrain(target.model)
    shape = position.layers[0].V.shape

    def log_joint(flat):
        return target.log_joint(eqx.tree_at(lambda p: p.layers[0].V, position, flat.reshape(shape)), batch, key)

    zero = jnp.zeros(shape[0] * shape[1])
    gradient = jax.grad(log_joint)
    slope, curvature = jax.jit(lambda at: (gradient(at), jax.jacrev(gradient)(at)))(zero)
    covariance = jnp.linalg.inv(-curvature)
    return covariance @ slope, covariance


def predictive(model: DeepGP, X, mean_v, covariance_v):
    """Predictive mean and variance of y when V is Gaussian (supplement, eq. 13), from the model's own conditional."""
    with_mean = eqx.tree_at(lambda m: m.layers[0].V, model, mean_v[:, None])
    f = with_mean.layers[0].conditional(jnp.asarray(X))
    weights = jax.vmap(
        lambda e: eqx.tree_at(lambda m: m.V, model.layers[0], e[:, None]).conditional(jnp.asarray(X)).mean[:, 0]
    )
    A = weights(jnp.eye(mean_v.shape[0]))  # [M N]
    return f.mean[:, 0], f.variance[:, 0] + jnp.sum(A * (covariance_v @ A), axis=0) + model.likelihood.noise_variance[0]


@pytest.mark.parametrize("objective", ["fitc", "vfe"])
def test_with_z_at_x_the_predictive_is_the_exact_gp(objective, getkey):
    X, y = regression(30)
    X_new = np.linspace(-3, 3, 50)[:, None]
    model = shallow(X, jitter=1e-12)
    target = Target(model, 30, objective=objective, treatment={"Z": "fix", "theta": "fix", "noise": "fix"})
    v = gaussian_posterior_of_v(target, Batch(jnp.asarray(X), jnp.asarray(y)), getkey())
    mean, variance = predictive(model, X_new, *v)
    exact = GaussianProcessRegressor(0.8 * sk_kernels.RBF(0.7), alpha=0.2, optimizer=None).fit(X, y[:, 0])
    exact_mean, exact_sd = exact.predict(X_new, return_std=True)
    assert_allclose(mean, exact_mean, atol=1e-6)
    assert_allclose(variance, exact_sd**2 + 0.2, atol=1e-6)


@pytest.mark.parametrize("objective", ["fitc", "vfe"])
def test_the_quadratic_log_joint_has_the_supplements_posterior(objective, getkey):
    X, y = regression(40)
    Z = np.linspace(-1.8, 1.8, 4)[:, None]
    model = shallow(Z)
    target = Target(model, 40, objective=objective, treatment={"Z": "fix", "theta": "fix", "noise": "fix"})
    mean_v, covariance_v = gaussian_posterior_of_v(target, Batch(jnp.asarray(X), jnp.asarray(y)), getkey())
    Lz = jnp.linalg.cholesky(model.layers[0].kernel(model.layers[0].Z, model.layers[0].Z))
    mean, covariance = optimal_u(model, X, jnp.asarray(y), objective)
    assert_allclose(Lz @ mean_v, mean[:, 0], atol=1e-7)
    assert_allclose(Lz @ covariance_v @ Lz.T, covariance, atol=1e-7)


def test_fitc_and_vfe_differ_with_few_inducing_points():
    X, y = regression(40)
    model = shallow(np.linspace(-1.8, 1.8, 4)[:, None])
    fitc, vfe = (optimal_u(model, X, jnp.asarray(y), objective) for objective in ("fitc", "vfe"))
    assert np.abs(fitc[0] - vfe[0]).max() > 0.05
    assert np.abs(fitc[1] / vfe[1] - 1).max() > 0.1


def test_conditional_is_the_gaussian_conditional_and_joint_agrees_with_it(rng, getkey):
    Z, X = rng.standard_normal((5, 2)), jnp.asarray(rng.standard_normal((7, 2)))
    model = shallow(Z, num_outputs=2, jitter=1e-12)
    layer = eqx.tree_at(lambda m: m.V, model.layers[0], jnp.asarray(rng.standard_normal((5, 2))))
    Kzz, Kzx = layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, X)
    U = jnp.linalg.cholesky(Kzz) @ layer.V
    f = layer.conditional(X)
    covariance = layer.kernel(X, X) - Kzx.T @ jnp.linalg.solve(Kzz, Kzx)
    assert_allclose(f.mean, Kzx.T @ jnp.linalg.solve(Kzz, U), atol=1e-8)
    assert_allclose(f.variance, np.tile(np.diag(covariance)[:, None], 2), atol=1e-8)
    joint_mean, joint_covariance = layer.joint(X)
    assert_allclose(joint_mean, f.mean, atol=1e-12)
    assert_allclose(joint_covariance, covariance, atol=1e-8)
    samples = jax.vmap(lambda k: layer.sample_joint(X, k))(jax.random.split(getkey(), 20_000))
    assert_allclose(np.cov(samples[:, :, 0].T), covariance, atol=0.03)


def test_one_layer_of_a_deep_gp_is_the_shallow_model(getkey):
    target, X, _ = tiny_target(depth=1)
    X = jnp.asarray(X)
    deep, layer = target.model.propagate(X, getkey()), target.model.layers[0].conditional(X)
    assert_allclose(deep.mean, layer.mean)
    assert_allclose(deep.variance, layer.variance)


def test_hidden_layers_without_variance_leave_the_shallow_model(getkey):
    """A hidden layer without variance is its linear mean, here the identity."""
    target, X, _ = tiny_target(depth=3)
    hidden = [
        eqx.tree_at(lambda m: (m.kernel.variance, m.V), layer, (jnp.asarray(1e-20), layer.V * 0))
        for layer in target.model.layers[:-1]
    ]
    model = DeepGP((*hidden, target.model.layers[-1]), target.model.likelihood)
    f = model.propagate(jnp.asarray(X), getkey())
    expected = model.layers[-1].conditional(jnp.asarray(X))
    assert_allclose(f.mean, expected.mean, atol=1e-8)
    assert_allclose(f.variance, expected.variance, atol=1e-8)


def test_hidden_draws_have_the_moments_of_their_layer(getkey):
    target, X, _ = tiny_target(depth=2)
    hidden, last = target.model.layers
    point = jnp.tile(jnp.asarray(X[:1]), (50_000, 1))
    f = hidden.conditional(jnp.asarray(X[:1]))
    inputs = f.mean + jnp.sqrt(f.variance) * jax.random.normal(getkey(), (50_000, 2))
    means = last.conditional(inputs).mean
    got = target.model.propagate(point, getkey()).mean
    assert_allclose(got.mean(), means.mean(), atol=5 * means.std() / 50_000**0.5)
    assert_allclose(got.std(), means.std(), rtol=0.03)


def test_the_order_of_z_does_not_change_the_function(rng):
    """The whitened V depends on the order of Z; the function given U does not."""
    target, X, _ = tiny_target()
    layer = target.model.layers[0]
    order = rng.permutation(5)
    K = layer.kernel(layer.Z, layer.Z)
    U = jnp.linalg.cholesky(K) @ layer.V
    V = jnp.linalg.solve(jnp.linalg.cholesky(K[order][:, order]), U[order])
    permuted = eqx.tree_at(lambda m: (m.Z, m.V), layer, (layer.Z[order], V))
    assert_allclose(permuted.conditional(jnp.asarray(X)).mean, layer.conditional(jnp.asarray(X)).mean, atol=1e-5)
    assert_allclose(
        permuted.conditional(jnp.asarray(X)).variance, layer.conditional(jnp.asarray(X)).variance, atol=1e-5
    )


def test_linear_means(rng):
    X = rng.standard_normal((50, 4)) @ np.diag([5.0, 3.0, 1.0, 0.1])
    assert_allclose(linear_mean(X, 4), np.eye(4))
    assert_allclose(linear_mean(X, 6), np.eye(4, 6))
    narrow = linear_mean(X, 2)
    assert_allclose(narrow.T @ narrow, np.eye(2), atol=1e-12)
    assert np.abs(narrow[:2]).max() > 0.95  # the axes with the largest spread


@pytest.mark.parametrize(
    ("likelihood", "width", "depth", "shapes"),
    [
        (gaussian(2, np.float64), None, 1, [(3, 2)]),
        (gaussian(1, np.float64), 5, 3, [(3, 5), (5, 5), (5, 1)]),
        (Categorical(4), 2, 2, [(3, 2), (2, 4)]),
        (Bernoulli(), None, 2, [(3, 3), (3, 1)]),
    ],
)
def test_layers_fit_together(likelihood, width, depth, shapes, rng, getkey):
    X, key = rng.standard_normal((25, 3)), getkey()
    targets = 2 if shapes == [(3, 2)] else 1
    start = init_deep_gp(X, likelihood, getkey(), num_targets=targets, num_inducing=6, depth=depth, width=width)
    assert [(layer.Z.shape[1], layer.V.shape[1]) for layer in start.layers] == shapes
    assert not any(layer.V.any() for layer in start.layers)
    model = with_random_V(start, rng)
    f = model.propagate(jnp.asarray(X), key)
    H = X
    for layer, layer_key in zip(model.layers[:-1], jax.random.split(jax.random.clone(key), depth - 1), strict=True):
        mean, variance = dense_conditional(layer, sk_kernels.RBF, H)
        H = mean + np.sqrt(variance)[:, None] * np.asarray(jax.random.normal(layer_key, mean.shape))
    mean, variance = dense_conditional(model.layers[-1], sk_kernels.RBF, H)
    assert_allclose(f.mean, mean, atol=1e-6)
    assert_allclose(f.variance, np.broadcast_to(variance[:, None], mean.shape), atol=1e-6)


def with_random_V(model: DeepGP, rng) -> DeepGP:
    values = [jnp.asarray(rng.standard_normal(layer.V.shape)) for layer in model.layers]
    return eqx.tree_at(lambda m: [layer.V for layer in m.layers], model, values)


def dense_conditional(layer, sk_kernel, X):
    """Mean `[N P]` and variance `[N]` of a layer from NumPy and scikit-learn's kernel: `K_xz Kzz^-1 u` and so on."""
    kernel = float(layer.kernel.variance) * sk_kernel(np.asarray(layer.kernel.lengthscales))(
        np.concatenate([layer.Z, X])
    )
    num_inducing = layer.Z.shape[0]
    Kzz = kernel[:num_inducing, :num_inducing] + layer.jitter * float(layer.kernel.variance) * np.eye(num_inducing)
    Kzx, u = kernel[:num_inducing, num_inducing:], np.linalg.cholesky(Kzz) @ np.asarray(layer.V)
    mean = Kzx.T @ np.linalg.solve(Kzz, u) + (0.0 if layer.W is None else X @ np.asarray(layer.W))
    return mean, float(layer.kernel.variance) - np.sum(Kzx * np.linalg.solve(Kzz, Kzx), axis=0)


def rbf_times_matern(num_dims, dtype):
    return stationary(RBF, num_dims, dtype) * stationary(Matern32, num_dims, dtype, variance=1.0)


@pytest.mark.parametrize(
    ("kernel", "sk_kernel", "variances"),
    [
        (Matern32, partial(sk_kernels.Matern, nu=1.5), [0.1]),
        (rbf_times_matern, lambda scale: sk_kernels.RBF(scale) * sk_kernels.Matern(scale, nu=1.5), [0.1, 1.0]),
    ],
    ids=["a class", "a function"],
)
def test_the_log_joint_with_any_kernel(kernel, sk_kernel, variances, rng, getkey):
    """Likelihood, priors and Jacobians of a shallow model, from NumPy, SciPy and scikit-learn."""
    X, y = rng.standard_normal((25, 2)), rng.standard_normal((25, 1))
    start = init_deep_gp(X, gaussian(1, X.dtype, noise_variance=0.3), getkey(), num_inducing=4, kernel=kernel)
    model = with_random_V(start, rng)
    target, layer = Target(model, 25), model.layers[0]
    got = target.log_joint(target.unconstrain(model), Batch(jnp.asarray(X), jnp.asarray(y)), getkey())

    lengthscales, variance = np.full(2, 2**0.5), np.prod(variances)  # where `stationary` starts
    K = variance * sk_kernel(lengthscales)(np.concatenate([layer.Z, X]))
    Kzz, Kzx = K[:4, :4] + layer.jitter * variance * np.eye(4), K[:4, 4:]
    mean = Kzx.T @ np.linalg.solve(Kzz, np.linalg.cholesky(Kzz) @ np.asarray(layer.V))
    residual = variance - np.sum(Kzx * np.linalg.solve(Kzz, Kzx), axis=0)
    log_likelihood = norm.logpdf(y, mean, np.sqrt(residual + 0.3)[:, None]).sum()
    # a log-normal parameter is normal on the log scale, where it is sampled
    log_theta = len(variances) * norm.logpdf(np.log(lengthscales)).sum()
    log_theta += norm.logpdf(np.log(variances[0]), np.log(0.05))
    log_theta += norm.logpdf(np.log(variances[1:]), 0.0, 0.3).sum()  # the first factor carries the variance
    log_noise = norm.logpdf(np.log(0.3), np.log(0.01), 3.0)
    log_u, log_Z = norm.logpdf(layer.V).sum(), -0.5 * np.sum(layer.Z**2)  # the prior of Z is not normalised
    assert_allclose(got, log_likelihood + log_theta + log_noise + log_u + log_Z, rtol=1e-8)


def test_float32_data_give_a_float32_model(rng, getkey):
    X = rng.standard_normal((20, 2)).astype(np.float32)
    model = init_deep_gp(X, gaussian(1, X.dtype), getkey(), num_inducing=5)
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {np.dtype(np.float32)}
    assert model.layers[0].jitter > 1e-4
    assert model.propagate(jnp.asarray(X), getkey()).mean.dtype == np.float32


def test_fewer_distinct_rows_than_inducing_points(rng, getkey):
    X = np.repeat(rng.standard_normal((3, 2)), 10, axis=0)
    Z = init_deep_gp(X, gaussian(1, X.dtype), getkey(), num_inducing=8).layers[0].Z
    assert len(np.unique(Z, axis=0)) == 8
