"""Small problems and closed forms that several test files share."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bsgp import Target, init_deep_gp
from bsgp.models.deep_gp import DeepGP
from bsgp.models.kernels import RBF
from bsgp.models.layer import Layer
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.posterior.statistics import ess

U_ONLY = {"u": "sample", "Z": "fix", "theta": "fix", "noise": "fix"}


def regression(num_rows=40, num_dims=1, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (num_rows, num_dims))
    y = np.sin(2.0 * X[:, :1]) + noise * rng.standard_normal((num_rows, 1))
    return X, (y - y.mean(axis=0)) / y.std(axis=0)


def shallow(Z, num_outputs=1, variance=0.8, lengthscale=0.7, noise=0.2, jitter=1e-10):
    """A sparse GP with everything but V set by hand."""
    num_dims = Z.shape[1]
    kernel = RBF(jnp.asarray(variance), jnp.full(num_dims, lengthscale))
    layer = Layer(kernel, jnp.asarray(Z), jnp.zeros((Z.shape[0], num_outputs)), None, jitter)
    return DeepGP((layer,), Gaussian(jnp.full(num_outputs, noise)))


def optimal_u(model: DeepGP, X, y, objective: str, power: float = 1.0):
    """Mean and covariance of the optimal q(u) in the paper's supplement (eq. 12 for VFE, eq. 17 for FITC).

    A power of a Gaussian likelihood is one of the variance divided by it.
    """
    layer, noise = model.layers[0], model.likelihood.noise_variance[0]
    X = jnp.asarray(X)
    Kzz, Kzx = layer.kernel(layer.Z, layer.Z), layer.kernel(layer.Z, X)
    Lambda = jnp.full(X.shape[0], noise)
    if objective == "fitc":
        Lambda = Lambda + layer.kernel.diag(X) - jnp.sum(Kzx * jnp.linalg.solve(Kzz, Kzx), axis=0)
    Lambda = Lambda / power
    Sigma = jnp.linalg.inv(Kzz + (Kzx / Lambda[None, :]) @ Kzx.T)
    return Kzz @ Sigma @ (Kzx / Lambda[None, :]) @ y, Kzz @ Sigma @ Kzz


def whitened_moments(draws, mean, covariance):
    """Mean and second moments of draws `[C S M]` in coordinates where they should be 0 and I, each with its error."""
    white = (draws - np.asarray(mean)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    products = np.einsum("csi,csj->csij", white, white)
    errors = white.std(axis=(0, 1)) / np.sqrt(ess(white)), products.std(axis=(0, 1)) / np.sqrt(ess(products, "mean"))
    return (white.mean(axis=(0, 1)), errors[0]), (products.mean(axis=(0, 1)), errors[1])


def assert_moments(draws, mean, covariance, *, width=1.0):
    """Draws `[C S M]` have this mean and this covariance times `width`, within four Monte-Carlo errors."""
    (white_mean, mean_error), (second, second_error) = whitened_moments(draws, mean, covariance)
    assert (np.abs(white_mean) < 4 * mean_error).all()
    assert (np.abs(second - width * np.eye(len(second))) < 4 * second_error).all()


def tiny_target(depth=1, num_rows=30, num_inducing=5, num_dims=2, **options):
    """A target with a bit of everything in its position, and its data."""
    X, y = regression(num_rows, num_dims)
    model = init_deep_gp(X, Gaussian(jnp.full(1, 0.3)), jr.key(0), num_inducing=num_inducing, depth=depth)
    rng = np.random.default_rng(1)
    layers = tuple(
        eqx.tree_at(lambda m: m.V, layer, jnp.asarray(rng.standard_normal(layer.V.shape))) for layer in model.layers
    )
    return Target(DeepGP(layers, model.likelihood), num_rows, **options), X, y
