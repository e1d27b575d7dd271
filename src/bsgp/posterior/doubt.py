"""Compiled functions of what is in doubt about a prediction: its parts, and how far it lies from the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.linalg.numerics import Marginals, log_mean_exp
from bsgp.models.model import AbstractModel
from bsgp.posterior.mixture import class_log_probabilities, map_draws, repeat_draws

NUM_NODES, REACH = 64, 5.5
"""Even grid over one latent function, and its ends in standard deviations: fine enough where f is widely spread."""
MIN_POINTS = 1_024
"""Random points over several latent functions, all draws together; with few draws, each has more of them."""


@eqx.filter_jit
def variance_parts(model, tiling, key, X):
    """Mean of the mixture, and its variance in two parts, by the law of total variance.

    The first is the variance of `E[y | f]` over draws and over f given a draw, the second the mean of `Var[y | f]`.
    """

    def each(draw, f):
        return draw.likelihood.predict(f).mean, *draw.likelihood.variance_parts(f)

    mean, epistemic, aleatoric = map_draws(each, model, tiling, key, X)
    return jnp.mean(mean, axis=0), jnp.mean(epistemic, axis=0) + jnp.var(mean, axis=0), jnp.mean(aleatoric, axis=0)


@eqx.filter_jit
def extrapolation(model, tiling, key, X):
    """Share of the prior variance that the data leave unexplained, `[N]`: a mean over draws, each by its own kernel.

    Unexplained is the variance given a draw's inducing variables, and the draw's distance from the mean of all draws.
    """
    return _unexplained(
        map_draws(lambda draw, at: _after_and_before(draw, *at), model, tiling, key, X, with_prior=True)
    )


@eqx.filter_jit
def moments_and_extrapolation(model, tiling, key, X):
    """Mean and variance of the mixture, and `extrapolation`, in one pass of the rows through the draws."""

    def each(draw, at):
        return draw.likelihood.predict(at[0]), _after_and_before(draw, *at)

    (mean, variance), predictors = map_draws(each, model, tiling, key, X, with_prior=True)
    return jnp.mean(mean, axis=0), jnp.mean(variance, axis=0) + jnp.var(mean, axis=0), _unexplained(predictors)


def _after_and_before(draw: AbstractModel, f: Marginals, prior: Float[Array, "N 1"]) -> tuple[Marginals, Array]:
    """What the mean of y follows: its marginals under a draw, and its variance without any data."""
    predictors = draw.likelihood.predictors
    before = Marginals(jnp.zeros_like(f.mean), jnp.broadcast_to(prior, f.mean.shape))
    return predictors(f), predictors(before).variance


def _unexplained(predictors: tuple[Marginals, Float[Array, "S N P"]]) -> Float[Array, " N"]:
    """The share of the variance before any data that is left after them."""
    after, before = predictors
    left = after.variance + (after.mean - jnp.mean(after.mean, axis=0, keepdims=True)) ** 2
    return jnp.clip(jnp.mean(jnp.sum(left, axis=2) / jnp.sum(before, axis=2), axis=0), 0.0, 1.0)


@eqx.filter_jit
def entropy_parts(model, tiling, key, X):
    """Entropy of the mixture's class probabilities, and the mutual information between class and model, `[N]`."""
    row_key, point_key = jr.split(key)
    latent = map_draws(lambda draw, f: f, model, tiling, row_key, X)  # [S N L]
    likelihoods, num = repeat_draws(model.likelihood, tiling.passes), latent.mean.shape[0]

    def each(at):
        likelihood, f, draw_key = at
        return class_log_probabilities(likelihood, f), *_over_functions(likelihood, f, num, draw_key)

    exact, probability, entropy = jax.lax.map(each, (likelihoods, latent, jr.split(point_key, num)))
    total = _entropy(jax.nn.log_softmax(log_mean_exp(exact, axis=0), axis=1))
    # by the same points as the mean entropy: then it is not negative, whatever their error
    information = _entropy(jnp.log(jnp.mean(probability, axis=0))) - jnp.mean(entropy, axis=0)
    return total, jnp.clip(information, 0.0, total)


def _over_functions(
    likelihood: AbstractLikelihood, f: Marginals, num_draws: int, key: Array
) -> tuple[Float[Array, "N K"], Float[Array, " N"]]:
    """Means over f of the class probabilities and of their entropy."""

    def given(point):
        z, weight = point
        at = f.mean + jnp.sqrt(f.variance) * z
        log_probability = class_log_probabilities(likelihood, Marginals(at, jnp.zeros_like(at)))
        return weight * jnp.exp(log_probability), weight * _entropy(log_probability)

    def add(total, point):
        return jax.tree.map(jnp.add, total, given(point)), None

    points = _points(f, num_draws, key)
    start = jax.tree.map(jnp.zeros_like, jax.eval_shape(given, jax.tree.map(lambda one: one[0], points)))
    return jax.lax.scan(add, start, points)[0]


def _points(f: Marginals, num_draws: int, key: Array) -> tuple[Float[Array, "Q _ _"], Float[Array, " Q"]]:
    """Standard normal points and their weights: an even grid for one latent function, random pairs for several."""
    dtype = f.mean.dtype
    if f.mean.shape[1] == 1:
        nodes = np.linspace(-REACH, REACH, NUM_NODES)
        weights = np.exp(-0.5 * nodes**2)
        return jnp.asarray(nodes, dtype)[:, None, None], jnp.asarray(weights / weights.sum(), dtype)
    half = jr.normal(key, (-(-MIN_POINTS // (2 * num_draws)), *f.mean.shape), dtype)
    points = jnp.concatenate([half, -half])
    return points, jnp.full(points.shape[0], 1.0 / points.shape[0], dtype)


def _entropy(log_probability: Float[Array, "N K"]) -> Float[Array, " N"]:
    """Entropy of each row, in nats."""
    # a class without probability adds nothing, though its logarithm is infinite
    terms = jnp.where(jnp.isfinite(log_probability), jnp.exp(log_probability) * log_probability, 0.0)
    return -jnp.sum(terms, axis=1)
