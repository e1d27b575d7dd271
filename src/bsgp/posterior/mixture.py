"""Compiled functions of the predictive distribution, the mixture over draws. Model arrays have one axis of draws."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PyTree

from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.classes import Categorical
from bsgp.models.linalg.numerics import Marginals, log_mean_exp
from bsgp.models.model import AbstractModel
from bsgp.posterior.roots import find_root

REACH = 40.0
"""Standard deviations from the mean within which quantiles are looked for."""


class Tiling(NamedTuple):
    """Split of the rows into tiles, and number of passes through each draw."""

    tiles: int
    """Number of equal parts that the rows are split into."""
    passes: int
    """Number of passes of all rows through each draw, each with new draws of the hidden layers."""


def map_draws(
    function: Callable,
    model: AbstractModel,
    tiling: Tiling,
    key: Array,
    X: Array,
    known: Array | None = None,
    *,
    with_prior: bool = False,
):
    """Stacks `function(draw, f)` over all draws and passes, where `f` are the latent marginals at X.

    With `with_prior`, f is the pair of `propagate_with_prior`.

    Each draw is factorised once, and X goes through it in tiles, so M x rows arrays exist for a single tile only. The
    `known` part of a Gaussian noise variance is added to that of f: nothing of y tells the two apart.
    """

    def one_draw(at):
        draw, draw_key = at
        factors = draw.factors()
        propagate = draw.propagate_with_prior if with_prior else draw.propagate

        def one_pass(pass_key):
            split = X.reshape(tiling.tiles, -1, X.shape[1]), jr.split(pass_key, tiling.tiles)
            f = jax.lax.map(lambda tile: propagate(*tile, factors), split)
            f = jax.tree.map(lambda a: a.reshape(X.shape[0], -1), f)
            return function(draw, f if known is None else Marginals(f.mean, f.variance + known))

        return jax.lax.map(one_pass, jr.split(draw_key, tiling.passes))

    each = jax.lax.map(one_draw, (model, jr.split(key, jax.tree.leaves(model)[0].shape[0])))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), each)


def repeat_draws(tree: PyTree, times: int) -> PyTree:
    """Repeats every draw `times` times along the first axis."""
    return tree if times == 1 else jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), tree)


@eqx.filter_jit
def per_draw_moments(model, tiling, key, X, known=None):
    """Mean and variance of y under every draw and pass."""
    return tuple(map_draws(lambda draw, f: draw.likelihood.predict(f), model, tiling, key, X, known))


@eqx.filter_jit
def moments(model, tiling, key, X, known=None):
    """Mean and variance of the mixture."""
    of_rows = {} if known is None else {"known": known}  # as others call it: one trace for all
    mean, variance = per_draw_moments(model, tiling, key, X, **of_rows)
    return jnp.mean(mean, axis=0), jnp.mean(variance, axis=0) + jnp.var(mean, axis=0)


@eqx.filter_jit
def log_density(model, tiling, key, X, y, known=None):
    """Log density of the mixture at y."""
    each = map_draws(lambda draw, f: draw.likelihood.log_expected_prob(y, f), model, tiling, key, X, known)
    return log_mean_exp(each, axis=0)


@eqx.filter_jit
def cdf(model, tiling, key, X, y, known=None):
    """Distribution function of the mixture at y."""
    return jnp.mean(map_draws(lambda draw, f: draw.likelihood.cdf(y, f), model, tiling, key, X, known), axis=0)


def _samples(model, tiling, key, X, per_draw, known=None):
    """Draws of y, `per_draw` of every draw of the model, `[S N P]`; rows are drawn apart."""
    row_key, latent_key, noise_key = jr.split(key, 3)
    latent = repeat_draws(map_draws(lambda draw, f: f, model, tiling, row_key, X, known), per_draw)  # [S N P]
    likelihoods = repeat_draws(model.likelihood, tiling.passes * per_draw)
    f = latent.mean + jnp.sqrt(latent.variance) * jr.normal(latent_key, latent.mean.shape, X.dtype)
    keys = jr.split(noise_key, latent.mean.shape[0])
    return jax.vmap(lambda likelihood, k, f: likelihood.sample(k, f))(likelihoods, keys, f)


@eqx.filter_jit
def crps(model, tiling, key, X, y, samples_per_draw, known=None):
    """`E|Y - y| - E|Y - Y'| / 2` from samples of y; the second mean, over pairs, comes from their order statistics."""
    drawn = _samples(model, tiling, key, X, samples_per_draw, known)
    num = drawn.shape[0]
    weights = jnp.asarray(2.0 * np.arange(1, num + 1) - num - 1.0, X.dtype)
    between = 2.0 * jnp.tensordot(weights, jnp.sort(drawn, axis=0), axes=1) / (num * max(num - 1.0, 1.0))
    return jnp.mean(jnp.abs(drawn - y[None]), axis=0) - 0.5 * between


@eqx.filter_jit
def quantiles_of_samples(model, tiling, key, X, levels, samples_per_draw):
    """Quantiles of samples of y: the smallest of which at least a share `level` is no larger."""
    drawn = jnp.sort(_samples(model, tiling, key, X, samples_per_draw), axis=0)
    places = jnp.ceil(jnp.asarray(levels, X.dtype) * drawn.shape[0]).astype(int) - 1
    return jnp.moveaxis(drawn[places], 0, -1)


@eqx.filter_jit
def quantiles(model, tiling, key, X, levels, known=None):
    """Quantiles by root finding on the mixture's distribution function, within 40 standard deviations of its mean."""
    latent = map_draws(lambda draw, f: f, model, tiling, key, X, known)  # [S N P]
    likelihoods = repeat_draws(model.likelihood, tiling.passes)

    def distribution(y):
        return jnp.mean(jax.vmap(lambda lik, f: lik.cdf(y, f))(likelihoods, latent), axis=0)

    each = jax.vmap(lambda lik, f: lik.predict(f))(likelihoods, latent)
    sd = jnp.sqrt(jnp.mean(each.variance, axis=0) + jnp.var(each.mean, axis=0))
    centre = jnp.mean(each.mean, axis=0)

    def quantile(level):
        ends = centre - REACH * sd, centre + REACH * sd
        found = find_root(lambda y: distribution(y) - level, *ends, guess=centre + ndtri(level) * sd)
        return model.likelihood.nearest(found)

    return jnp.moveaxis(jax.lax.map(quantile, jnp.asarray(levels, X.dtype)), 0, -1)


@eqx.filter_jit
def sample_functions(model, X, keys):
    """One latent function per draw."""
    return jax.lax.map(lambda at: at[0].sample_function(X, at[1]), (model, keys))


@eqx.filter_jit
def sample_targets(model, X, keys):
    """One function per draw, with the likelihood's noise."""

    def one(at):
        draw, key = at
        function_key, noise_key = jr.split(key)
        return draw.likelihood.sample(noise_key, draw.sample_function(X, function_key))

    return jax.lax.map(one, (model, keys))


@eqx.filter_jit
def at_targets(model, tiling, key, X, y, known=None):
    """Mean of the mixture, and its log density and distribution function at y."""

    def each(draw, f):
        likelihood = draw.likelihood
        return likelihood.predict(f).mean, likelihood.log_expected_prob(y, f), likelihood.cdf(y, f)

    mean, log_density, cdf = map_draws(each, model, tiling, key, X, known)
    return jnp.mean(mean, axis=0), log_mean_exp(log_density, axis=0), jnp.mean(cdf, axis=0)


@eqx.filter_jit
def log_probabilities(model, tiling, key, X, known=None):
    """Log probability of every class under the mixture; for two classes both, because `1 - p` loses digits near 1."""
    del known  # classes have no noise

    each = map_draws(lambda draw, f: class_log_probabilities(draw.likelihood, f), model, tiling, key, X)
    return log_mean_exp(each, axis=0)


def class_log_probabilities(likelihood: AbstractLikelihood, f: Marginals) -> Float[Array, "N K"]:
    """Log probability of every class under the marginals of one draw."""
    if isinstance(likelihood, Categorical):
        return likelihood.log_probabilities(f)
    labels = jnp.zeros_like(f.mean), jnp.ones_like(f.mean)
    return jnp.concatenate([likelihood.log_expected_prob(label, f) for label in labels], axis=1)
