"""Draws of a fitted model, and what they say about new rows: the predictive distribution is their mixture."""

import os
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.checks import check_count, check_matrix
from bsgp.diagnostics import ess, rhat
from bsgp.infer import Run
from bsgp.likelihoods import Categorical, nearest_target
from bsgp.model import AbstractModel
from bsgp.numerics import Marginals, log_mean_exp
from bsgp.storage import load_stacked, save_stacked
from bsgp.target import leaf_name

ROWS_PER_TILE = 1_024  # M x rows arrays of this many mostly stay in the cache
TILES_PER_CHUNK = 4
MAX_JOINT_ROWS = 5_000
NUM_BISECTIONS = 60
NUM_PASSES = 100
MIN_CRPS_DRAWS = 256  # of y: of a posterior with fewer draws each gives more than one


class AtTargets(NamedTuple):
    """The predictive distribution where targets are known."""

    mean: np.ndarray
    log_density: np.ndarray
    cdf: np.ndarray


class Posterior(eqx.Module):
    """A model whose arrays carry [C S] in front: C chains, S draws each. A point estimate is a single draw.

    Every method that passes rows through the model takes a key: hidden layers are drawn. Rows go through in
    chunks, so memory does not grow with their number.
    """

    model: AbstractModel

    @classmethod
    def from_run(cls, run: Run) -> "Posterior":
        return cls(run.model)

    @classmethod
    def from_single(cls, model: AbstractModel) -> "Posterior":
        """A point estimate: one chain of one draw."""
        return cls(jax.tree.map(lambda x: x[None, None], model))

    @property
    def num_chains(self) -> int:
        return jax.tree.leaves(self.model)[0].shape[0]

    @property
    def num_draws(self) -> int:
        """Per chain."""
        return jax.tree.leaves(self.model)[0].shape[1]

    @property
    def passes(self) -> int:
        """How often rows pass through each draw: hidden layers are drawn, and a single draw would be a single path."""
        return NUM_PASSES if self.num_chains * self.num_draws == 1 and self.model.depth > 1 else 1

    def predict(self, X, key: Array) -> Marginals:
        """Mean and variance of y under the mixture, `[N P]` (for classes: the probabilities, `[N K]`)."""
        return Marginals(*self._by_rows(_mixture_moments, key, X))

    def log_density(self, X, y, key: Array) -> np.ndarray:
        """`log (1/S) sum_s p(y | x, draw s)`: the mixture's density for each row and output, `[N P]`."""
        return self._by_rows(_mixture_log_density, key, X, y)

    def at_targets(self, X, y, key: Array) -> AtTargets:
        """What scores of a regression are made of, from one pass of the rows: each `[N P]`."""
        return AtTargets(*self._by_rows(_at_targets, key, X, y))

    def log_probabilities(self, X, key: Array) -> np.ndarray:
        """Of all classes, `[N K]`, to the last digit near 0 and 1."""
        return self._by_rows(_log_probabilities, key, X)

    def quantiles(self, X, levels, key: Array) -> np.ndarray:
        """Quantiles of the mixture, `[N P Q]`."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(
                f"`levels` must lie between 0 and 1, got {levels.tolist()}. Pass for instance [0.05, 0.95]."
            )
        return self._by_rows(_mixture_quantiles, key, X, levels=levels)

    def cdf(self, X, y, key: Array) -> np.ndarray:
        """`P(Y <= y)` under the mixture, `[N P]`: uniform if the predictions are calibrated."""
        return self._by_rows(_mixture_cdf, key, X, y)

    def crps(self, X, y, key: Array) -> np.ndarray:
        """Continuous ranked probability score of the mixture, `[N P]`, estimated without bias from draws of y."""
        each = -(-MIN_CRPS_DRAWS // (self.num_chains * self.num_draws * self.passes))
        return self._by_rows(_mixture_crps, key, X, y, each=each)

    def predictive_draws(self, X, key: Array) -> Marginals:
        """What every draw alone predicts for y: mean and variance `[C S N P]`, for traces and R-hat. Few rows.

        Of a single deep draw they are its passes.
        """
        mean, variance = self._by_rows(_per_draw_moments, key, X, axis=1)
        shape = (self.num_chains, self.num_draws * self.passes, *mean.shape[1:])
        return Marginals(mean.reshape(shape), variance.reshape(shape))

    def sample_functions(self, X, key: Array, num: int = 10) -> np.ndarray:
        """`num` latent functions `[num N P]`, each from one draw's joint conditional over all rows of X."""
        return self._sample(_sample_functions, X, key, num)

    def sample(self, X, key: Array, num: int = 10) -> np.ndarray:
        """`num` draws of y `[num N P]`: as `sample_functions`, with what the likelihood adds to each row."""
        return self._sample(_sample_targets, X, key, num)

    def _sample(self, function: Callable, X, key: Array, num: int) -> np.ndarray:
        X = self._check_inputs(X)
        if X.shape[0] > MAX_JOINT_ROWS:
            raise ValueError(
                f"`X` must have at most {MAX_JOINT_ROWS} rows to be sampled jointly (memory grows with its square), "
                f"got {X.shape[0]}. Pass fewer rows, or use `predict`."
            )
        total = self.num_chains * self.num_draws
        num = check_count("num", num)
        with self._precision:
            pick_key, sample_key = jr.split(key)
            picked = jr.choice(pick_key, total, (num,), replace=num > total)
            return np.asarray(function(self._flat(picked), jnp.asarray(X), jr.split(sample_key, num)))

    def thin(self, num_draws: int, X, y, key: Array) -> "Thinned":
        """Keep `num_draws` in all, evenly spaced over the chains' lengths, and say what that costs in MNLL on `X, y`.

        Prediction costs in proportion to draws. Rows that were not trained on give the honest figure.
        """
        total = self.num_chains * self.num_draws
        if check_count("num_draws", num_draws) > total:
            raise ValueError(f"`num_draws` must be at most the {total} that there are, got {num_draws}. Lower it.")
        # draws in order of time, chains side by side: even spacing then takes every chain and every part of it
        order = np.arange(total).reshape(self.num_chains, self.num_draws).T.ravel()
        picked = order[np.round(np.linspace(0, total - 1, num_draws)).astype(int)]
        few = Posterior(jax.tree.map(lambda x: x[None], self._flat(jnp.asarray(np.sort(picked)))))
        before, after = (float(-np.mean(p.log_density(X, y, key))) for p in (self, few))
        return Thinned(few, before, after)

    def rhat(self) -> dict[str, np.ndarray]:
        """R-hat of every parameter, by name. Predictions are the better judge: permuting Z changes nothing there."""
        return {name: rhat(draws) for name, draws in self._named_draws().items()}

    def ess(self) -> dict[str, np.ndarray]:
        return {name: ess(draws) for name, draws in self._named_draws().items()}

    def predictive_rhat(self, X, key: Array) -> np.ndarray:
        """R-hat of each row's and output's predictive mean over draws, `[N P]`."""
        return rhat(self.predictive_draws(X, key).mean)

    def predictive_ess(self, X, key: Array) -> np.ndarray:
        return ess(self.predictive_draws(X, key).mean)

    def to_arviz(self, energy: np.ndarray | None = None):
        """An ArviZ `DataTree` with the draws, and with `energy [C S]` as a sample statistic if given."""
        from arviz_base import from_dict

        groups = {"posterior": self._named_draws()}
        if energy is not None:
            groups["sample_stats"] = {"energy": np.asarray(energy)}
        return from_dict(groups)

    def save(self, folder: str | os.PathLike) -> None:
        """Arrays and JSON in a folder, written whole or not at all."""
        save_stacked(self.model, folder, meta={"num_chains": self.num_chains, "num_draws": self.num_draws})

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Posterior":
        model = load_stacked(folder).module
        if not isinstance(model, AbstractModel):
            raise ValueError(
                f"`{folder}` must hold a model, got {type(model).__name__}. Pass a folder written by `save`."
            )
        return cls(model)

    # -- inside ------------------------------------------------------------------------------------------------

    def _named_draws(self) -> dict[str, np.ndarray]:
        """Every array that differs between draws, under its name, `[C S ...]`."""
        named = {leaf_name(path): np.asarray(leaf) for path, leaf in jtu.tree_leaves_with_path(self.model)}
        return {name: draws for name, draws in named.items() if np.ptp(draws, axis=(0, 1)).any()}

    def _flat(self, picked: Array | None = None) -> AbstractModel:
        """The model with chains and draws on one axis, or only the picked draws of it."""
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.model)
        return flat if picked is None else jax.tree.map(lambda x: x[picked], flat)

    def _check_inputs(self, X) -> np.ndarray:
        return check_matrix("X", X, columns=self.model.num_inputs).astype(self._dtype)

    @property
    def _dtype(self):
        return jax.tree.leaves(self.model)[0].dtype

    @property
    def _precision(self):
        """A context with JAX in the precision of the draws, whatever the caller's is."""
        return jax.enable_x64(self._dtype == np.float64)

    def _by_rows(self, function: Callable, key: Array, X, y=None, *, axis: int = 0, **options):
        """`function(model, route, key, X[, y])` over chunks of rows, joined along `axis` of its results."""
        with self._precision:
            return self._by_chunks(function, key, X, y, axis=axis, **options)

    def _by_chunks(self, function: Callable, key: Array, X, y=None, *, axis: int = 0, **options):
        X = self._check_inputs(X)
        inputs = [X] if y is None else [X, check_matrix("y", y, rows=X.shape[0]).astype(X.dtype)]
        num_rows = X.shape[0]
        num_tiles = -(-num_rows // ROWS_PER_TILE)
        num_chunks = -(-num_tiles // TILES_PER_CHUNK)
        tiles = -(-num_tiles // num_chunks)  # of each chunk; all alike, so that one program serves
        chunk = tiles * -(-num_rows // (num_chunks * tiles))
        flat, route, pieces = self._flat(), _Route(tiles, self.passes), []
        for index, start in enumerate(range(0, num_rows, chunk)):
            rows = [_pad_rows(a[start : start + chunk], chunk) for a in inputs]
            result = function(flat, route, jr.fold_in(key, index), *rows, **options)
            keep = (slice(None),) * axis + (slice(0, min(chunk, num_rows - start)),)
            pieces.append(jax.tree.map(lambda r, keep=keep: np.asarray(r[keep]), result))
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *pieces)


class Thinned(NamedTuple):
    """Fewer draws, on one chain's axis, and the MNLL (in the units of y as given) with all draws and with these."""

    posterior: Posterior
    mnll_of_all: float
    mnll: float

    @property
    def cost(self) -> float:
        return self.mnll - self.mnll_of_all


def _pad_rows(array: np.ndarray, num_rows: int) -> Array:
    """The last chunk is filled up with copies of its first row, so that every chunk has the compiled shape."""
    missing = num_rows - array.shape[0]
    return jnp.asarray(array if missing == 0 else np.concatenate([array, np.repeat(array[:1], missing, axis=0)]))


class _Route(NamedTuple):
    """How rows pass through each draw."""

    tiles: int
    passes: int


def _map_draws(function: Callable, model: AbstractModel, route: _Route, key: Array, X: Array):
    """`function(draw, f)` for every pass through every draw, one after the other, with `f` the latent marginals at X.

    A draw is factorised once and X passes through it in tiles: M x rows arrays exist for one tile of one draw.
    """

    def one_draw(at):
        draw, draw_key = at
        factors = draw.factors()

        def one_pass(pass_key):
            split = X.reshape(route.tiles, -1, X.shape[1]), jr.split(pass_key, route.tiles)
            f = jax.lax.map(lambda tile: draw.propagate(*tile, factors), split)
            return function(draw, jax.tree.map(lambda a: a.reshape(X.shape[0], -1), f))

        return jax.lax.map(one_pass, jr.split(draw_key, route.passes))

    each = jax.lax.map(one_draw, (model, jr.split(key, jax.tree.leaves(model)[0].shape[0])))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), each)


def _repeated(tree: PyTree, times: int) -> PyTree:
    """Every draw `times` in a row, along the first axis."""
    return tree if times == 1 else jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), tree)


@eqx.filter_jit
def _per_draw_moments(model, route, key, X):
    return tuple(_map_draws(lambda draw, f: draw.likelihood.predict(f), model, route, key, X))


@eqx.filter_jit
def _mixture_moments(model, route, key, X):
    mean, variance = _per_draw_moments(model, route, key, X)
    return jnp.mean(mean, axis=0), jnp.mean(variance, axis=0) + jnp.var(mean, axis=0)


@eqx.filter_jit
def _mixture_log_density(model, route, key, X, y):
    each = _map_draws(lambda draw, f: draw.likelihood.log_expected_prob(y, f), model, route, key, X)
    return log_mean_exp(each, axis=0)


@eqx.filter_jit
def _mixture_cdf(model, route, key, X, y):
    return jnp.mean(_map_draws(lambda draw, f: draw.likelihood.cdf(y, f), model, route, key, X), axis=0)


@eqx.filter_jit
def _mixture_crps(model, route, key, X, y, each):
    """`E|Y - y| - E|Y - Y'| / 2`, the second mean over pairs of different draws, from their order statistics."""
    row_key, latent_key, noise_key = jr.split(key, 3)
    latent = _repeated(_map_draws(lambda draw, f: f, model, route, row_key, X), each)  # [S N P]
    likelihoods = _repeated(model.likelihood, route.passes * each)
    num = latent.mean.shape[0]
    f = latent.mean + jnp.sqrt(latent.variance) * jr.normal(latent_key, latent.mean.shape, X.dtype)
    drawn = jax.vmap(lambda likelihood, k, f: likelihood.sample(k, f))(likelihoods, jr.split(noise_key, num), f)
    weights = jnp.asarray(2.0 * np.arange(1, num + 1) - num - 1.0, X.dtype)
    between = 2.0 * jnp.tensordot(weights, jnp.sort(drawn, axis=0), axes=1) / (num * max(num - 1.0, 1.0))
    return jnp.mean(jnp.abs(drawn - y[None]), axis=0) - 0.5 * between


@eqx.filter_jit
def _mixture_quantiles(model, route, key, X, levels):
    """Bisection of the mixture's distribution function, from a bracket of 40 standard deviations."""
    latent = _map_draws(lambda draw, f: f, model, route, key, X)  # [S N P]
    likelihoods = _repeated(model.likelihood, route.passes)

    def mixture_cdf(y):
        return jnp.mean(jax.vmap(lambda lik, f: lik.cdf(y, f))(likelihoods, latent), axis=0)

    each = jax.vmap(lambda lik, f: lik.predict(f))(likelihoods, latent)
    reach = 40.0 * jnp.sqrt(jnp.mean(each.variance, axis=0) + jnp.var(each.mean, axis=0))
    centre = jnp.mean(each.mean, axis=0)

    def bisect(level):
        def halve(bracket, _):
            low, high = bracket
            middle = 0.5 * (low + high)
            above = mixture_cdf(middle) > level
            return (jnp.where(above, low, middle), jnp.where(above, middle, high)), None

        (low, high), _ = jax.lax.scan(halve, (centre - reach, centre + reach), None, length=NUM_BISECTIONS)
        return nearest_target(likelihoods, 0.5 * (low + high))

    return jnp.moveaxis(jax.lax.map(bisect, jnp.asarray(levels, X.dtype)), 0, -1)


@eqx.filter_jit
def _sample_functions(model, X, keys):
    return jax.lax.map(lambda at: at[0].sample_function(X, at[1]), (model, keys))


@eqx.filter_jit
def _sample_targets(model, X, keys):
    def one(at):
        draw, key = at
        function_key, noise_key = jr.split(key)
        return draw.likelihood.sample(noise_key, draw.sample_function(X, function_key))

    return jax.lax.map(one, (model, keys))


@eqx.filter_jit
def _at_targets(model, route, key, X, y):
    """The mixture's mean, log density at y and distribution function at y."""

    def each(draw, f):
        likelihood = draw.likelihood
        return likelihood.predict(f).mean, likelihood.log_expected_prob(y, f), likelihood.cdf(y, f)

    mean, log_density, cdf = _map_draws(each, model, route, key, X)
    return jnp.mean(mean, axis=0), log_mean_exp(log_density, axis=0), jnp.mean(cdf, axis=0)


@eqx.filter_jit
def _log_probabilities(model, route, key, X):
    """The mixture's log probability of every class: of two classes both, since `1 - p` would lose digits near 1."""

    def each(draw, f):
        likelihood = draw.likelihood
        if isinstance(likelihood, Categorical):
            return likelihood.log_probabilities(f)
        labels = jnp.zeros_like(f.mean), jnp.ones_like(f.mean)
        return jnp.concatenate([likelihood.log_expected_prob(label, f) for label in labels], axis=1)

    return log_mean_exp(_map_draws(each, model, route, key, X), axis=0)
