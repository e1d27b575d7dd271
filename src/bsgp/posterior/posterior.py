"""Draws of a fitted model and their predictions: the predictive distribution is the mixture over draws."""

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.linalg.numerics import Marginals
from bsgp.models.model import AbstractModel
from bsgp.models.parameters import leaf_name
from bsgp.posterior import doubt, mixture
from bsgp.posterior.results import AtTargets, Entropies, MeanAndVariances
from bsgp.posterior.statistics import ess, rhat
from bsgp.posterior.storage import load_stacked, save_stacked
from bsgp.runtime.checks import check_count, check_matrix

ROWS_PER_TILE = 1_024  # M x rows arrays of this size mostly stay in the CPU's cache
TILES_PER_CHUNK = 4
MAX_VALUES = 2**23
"""Numbers that all draws of a chunk of rows may have together, per array: many classes take fewer rows at a time."""
MAX_JOINT_ROWS = 5_000
NUM_PASSES = 100
MIN_QUANTILE_SAMPLES = 4_096  # of y, for counts: the quantiles' levels are right to half a percent
MIN_CRPS_SAMPLES = 256  # of y; with fewer draws, several samples are taken from each


@runtime_checkable
class HasDraws(Protocol):
    """An object that holds draws, such as a `bsgp.Run`."""

    @property
    def model(self) -> AbstractModel: ...


class Posterior(eqx.Module):
    """A model whose arrays have leading axes [C S]: C chains of S draws. A point estimate is a single draw.

    Methods that take rows also take a key, because hidden layers are drawn. Rows are processed in chunks, so memory
    does not grow with their number. `known_variance [N P]` is the known part of the noise variance of new measurements
    under a Gaussian likelihood, which adds to the learned one; without it, they have the learned one only.
    """

    model: AbstractModel

    @classmethod
    def from_run(cls, run: HasDraws) -> "Posterior":
        """The draws of a run of `bsgp.sample`."""
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
        """Number of draws per chain."""
        return jax.tree.leaves(self.model)[0].shape[1]

    @property
    def passes(self) -> int:
        """Number of passes of rows through each draw.

        More than one only for a point estimate of a deep model: one pass would be a single draw of the hidden layers.
        """
        return NUM_PASSES if self.num_chains * self.num_draws == 1 and self.model.depth > 1 else 1

    def predict(self, X, key: Array, known_variance=None) -> Marginals:
        """Mean and variance of y under the mixture, `[N P]`. For classes the mean is their probability, `[N K]`."""
        return Marginals(*self._by_rows(mixture.moments, key, X, known=known_variance))

    def variance_parts(self, X, key: Array, known_variance=None) -> MeanAndVariances:
        """Mean of y under the mixture, and its variance split into what is unknown about f and the noise."""
        mean, epistemic, aleatoric = self._by_rows(doubt.variance_parts, key, X)
        if known_variance is not None:
            aleatoric = aleatoric + self._check_known(known_variance, self._check_inputs(X))
        return MeanAndVariances(mean, epistemic, aleatoric)

    def entropy_parts(self, X, key: Array) -> Entropies:
        """Entropy of the classes under the mixture, split into what is unknown about f and what is left given f."""
        if not isinstance(self.model.likelihood, Bernoulli | Categorical):
            kind = type(self.model.likelihood).__name__
            raise ValueError(f"Entropies are those of classes, got a {kind} likelihood. Use `variance_parts`.")
        total, epistemic = self._by_rows(doubt.entropy_parts, key, X)
        return Entropies(total, epistemic, total - epistemic)

    def extrapolation(self, X, key: Array) -> np.ndarray:
        """Share of the latent function's prior variance that the data leave unexplained, from 0 to 1, `[N]`."""
        return self._by_rows(doubt.extrapolation, key, X)

    def predict_and_extrapolation(self, X, key: Array) -> tuple[Marginals, np.ndarray]:
        """`predict` and `extrapolation`, in the time of one of them."""
        mean, variance, score = self._by_rows(doubt.moments_and_extrapolation, key, X)
        return Marginals(mean, variance), score

    def log_density(self, X, y, key: Array, known_variance=None) -> np.ndarray:
        """`log (1/S) sum_s p(y | x, draw s)`: the log density of the mixture per row and output, `[N P]`."""
        return self._by_rows(mixture.log_density, key, X, y, known=known_variance)

    def at_targets(self, X, y, key: Array, known_variance=None) -> AtTargets:
        """Mean, log density and distribution function at the targets y, `[N P]`, in one pass: for regression scores."""
        return AtTargets(*self._by_rows(mixture.at_targets, key, X, y, known=known_variance))

    def log_probabilities(self, X, key: Array) -> np.ndarray:
        """Log probabilities of all classes, `[N K]`, accurate for probabilities near 0 and 1."""
        return self._by_rows(mixture.log_probabilities, key, X)

    def quantiles(self, X, levels, key: Array, known_variance=None) -> np.ndarray:
        """Quantiles of the mixture, `[N P Q]`; those of counts are quantiles of 4,096 draws of y or more."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(
                f"`levels` must lie between 0 and 1, got {levels.tolist()}. Pass for instance [0.05, 0.95]."
            )
        if self.model.likelihood.cdf_is_slow and known_variance is None:
            per_draw = self._samples_per_draw(MIN_QUANTILE_SAMPLES)
            return self._by_rows(mixture.quantiles_of_samples, key, X, levels=levels, samples_per_draw=per_draw)
        return self._by_rows(mixture.quantiles, key, X, known=known_variance, levels=levels)

    def cdf(self, X, y, key: Array, known_variance=None) -> np.ndarray:
        """`P(Y <= y)` under the mixture, `[N P]`: uniform if the predictions are calibrated."""
        return self._by_rows(mixture.cdf, key, X, y, known=known_variance)

    def crps(self, X, y, key: Array, known_variance=None) -> np.ndarray:
        """Continuous ranked probability score of the mixture, `[N P]`: an unbiased estimate from samples of y."""
        per_draw = self._samples_per_draw(MIN_CRPS_SAMPLES)
        return self._by_rows(mixture.crps, key, X, y, known=known_variance, samples_per_draw=per_draw)

    def _samples_per_draw(self, wanted: int) -> int:
        return -(-wanted // (self.num_chains * self.num_draws * self.passes))

    def predictive_draws(self, X, key: Array) -> Marginals:
        """Mean and variance of y under each draw, `[C S N P]`, for traces and R-hat. Meant for few rows.

        For a point estimate of a deep model, the passes take the place of draws.
        """
        mean, variance = self._by_rows(mixture.per_draw_moments, key, X, axis=1)
        shape = (self.num_chains, self.num_draws * self.passes, *mean.shape[1:])
        return Marginals(mean.reshape(shape), variance.reshape(shape))

    def sample_functions(self, X, key: Array, num: int = 10) -> np.ndarray:
        """`num` latent functions `[num N P]`, each from one draw's joint conditional over all rows of X."""
        return self._sample(mixture.sample_functions, X, key, num)

    def sample(self, X, key: Array, num: int = 10) -> np.ndarray:
        """`num` draws of y `[num N P]`: latent functions as in `sample_functions`, and the likelihood's noise."""
        return self._sample(mixture.sample_targets, X, key, num)

    def _sample(self, function: Callable, X, key: Array, num: int) -> np.ndarray:
        X = self._check_inputs(X)
        if X.shape[0] > MAX_JOINT_ROWS:
            raise ValueError(
                f"`X` must have at most {MAX_JOINT_ROWS} rows to be sampled jointly (memory grows with their square), "
                f"got {X.shape[0]}. Pass fewer rows, or use `predict`."
            )
        total = self.num_chains * self.num_draws
        num = check_count("num", num)
        with self._precision:
            pick_key, sample_key = jr.split(key)
            picked = jr.choice(pick_key, total, (num,), replace=num > total)
            return np.asarray(function(self._flat(picked), jnp.asarray(X), jr.split(sample_key, num)))

    def subset(self, num_draws: int) -> "Posterior":
        """Keep evenly spaced draws of every chain: at most `num_draws` in all, but at least one per chain."""
        kept = evenly_spaced(self.num_draws, max(1, num_draws // self.num_chains))
        with self._precision:
            return Posterior(jax.tree.map(lambda draws: jnp.asarray(np.asarray(draws)[:, kept]), self.model))

    def thin(self, num_draws: int, X, y, key: Array) -> "Thinned":
        """Keeps `num_draws` in total, evenly spaced along the chains, and measures the cost in MNLL on `X, y`.

        The time of predictions is proportional to the number of draws. Use rows that were not used for training.
        """
        total = self.num_chains * self.num_draws
        if check_count("num_draws", num_draws) > total:
            raise ValueError(f"`num_draws` must be at most the number of draws, {total}, got {num_draws}. Lower it.")
        # in order of time with chains interleaved, even spacing covers every chain and every part of it
        order = np.arange(total).reshape(self.num_chains, self.num_draws).T.ravel()
        picked = order[evenly_spaced(total, num_draws)]
        few = Posterior(jax.tree.map(lambda x: x[None], self._flat(jnp.asarray(np.sort(picked)))))
        before, after = (float(-np.mean(p.log_density(X, y, key))) for p in (self, few))
        return Thinned(few, before, after)

    def rhat(self) -> dict[str, np.ndarray]:
        """R-hat of every parameter, by name.

        `predictive_rhat` is the better measure: permuting Z changes parameters but not predictions.
        """
        return {name: rhat(draws) for name, draws in self._named_draws().items()}

    def ess(self) -> dict[str, np.ndarray]:
        """Effective sample size of every parameter, by name."""
        return {name: ess(draws) for name, draws in self._named_draws().items()}

    def predictive_rhat(self, X, key: Array) -> np.ndarray:
        """R-hat of the predictive mean, per row and output, `[N P]`."""
        return rhat(self.predictive_draws(X, key).mean)

    def predictive_ess(self, X, key: Array) -> np.ndarray:
        """Effective sample size of the predictive mean, per row and output, `[N P]`."""
        return ess(self.predictive_draws(X, key).mean)

    def to_arviz(self, energy: np.ndarray | None = None):
        """An ArviZ `DataTree` of the draws; `energy [C S]`, if given, becomes a sample statistic."""
        from arviz_base import from_dict

        groups = {"posterior": self._named_draws()}
        if energy is not None:
            groups["sample_stats"] = {"energy": np.asarray(energy)}
        return from_dict(groups)

    def save(self, folder: str | os.PathLike) -> None:
        """Saves the draws in a folder of arrays and JSON, completely or not at all."""
        save_stacked(self.model, folder, meta={"num_chains": self.num_chains, "num_draws": self.num_draws})

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Posterior":
        """Loads what `save` wrote."""
        model = load_stacked(folder).module
        if not isinstance(model, AbstractModel):
            raise ValueError(
                f"`{folder}` must hold a model, got {type(model).__name__}. Pass a folder written by `save`."
            )
        return cls(model)

    # -- internals ---------------------------------------------------------------------------------------------

    def _named_draws(self) -> dict[str, np.ndarray]:
        """Arrays that differ between draws, by name, `[C S ...]`."""
        named = {leaf_name(path): np.asarray(leaf) for path, leaf in jtu.tree_leaves_with_path(self.model)}
        return {name: draws for name, draws in named.items() if np.ptp(draws, axis=(0, 1)).any()}

    def _flat(self, picked: Array | None = None) -> AbstractModel:
        """The model with chains and draws merged into one axis; only the `picked` draws if given."""
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.model)
        return flat if picked is None else jax.tree.map(lambda x: x[picked], flat)

    def _check_inputs(self, X) -> np.ndarray:
        """Inputs of the model. Without a last column, the log of each row's exposure is 0."""
        if self.model.likelihood.has_exposure and np.shape(X)[1:] == (self.model.num_inputs - 1,):
            X = np.concatenate([X, np.zeros((len(X), 1))], axis=1)
        return check_matrix("X", X, columns=self.model.num_inputs).astype(self._dtype)

    def _check_known(self, known_variance, X: np.ndarray) -> np.ndarray:
        if not isinstance(self.model.likelihood, Gaussian):
            likelihood = type(self.model.likelihood).__name__
            raise ValueError(f"Known noise must go with Gaussian noise, got a {likelihood} likelihood. Leave it out.")
        known = check_matrix("known_variance", known_variance, rows=X.shape[0], columns=self.model.num_latent)
        return known.astype(X.dtype)

    @property
    def _dtype(self):
        return jax.tree.leaves(self.model)[0].dtype

    @property
    def _precision(self):
        """Context in which JAX uses the precision of the draws, independent of the caller's setting."""
        return jax.enable_x64(self._dtype == np.float64)

    @property
    def _rows_at_once(self) -> int:
        """Rows whose values under all draws are few enough to be held at a time."""
        values_of_a_row = self.num_chains * self.num_draws * self.passes * self.model.num_latent
        return max(1, MAX_VALUES // values_of_a_row)

    def _by_rows(self, function: Callable, key: Array, X, y=None, *, known=None, axis: int = 0, **options):
        """`function(model, tiling, key, X[, y])` on chunks of rows; concatenates the results along `axis`."""
        with self._precision:
            return self._by_chunks(function, key, X, y, known, axis=axis, **options)

    def _by_chunks(self, function: Callable, key: Array, X, y, known, *, axis: int = 0, **options):
        X = self._check_inputs(X)
        inputs = [X] if y is None else [X, check_matrix("y", y, rows=X.shape[0]).astype(X.dtype)]
        known = None if known is None else self._check_known(known, X)
        num_rows = X.shape[0]
        most = self._rows_at_once
        num_tiles = -(-num_rows // min(ROWS_PER_TILE, most))
        num_chunks = -(-num_tiles // min(TILES_PER_CHUNK, max(1, most // ROWS_PER_TILE)))
        tiles = -(-num_tiles // num_chunks)  # the same in every chunk, so that one compiled program serves them all
        chunk = tiles * -(-num_rows // (num_chunks * tiles))
        flat, tiling, pieces = self._flat(), mixture.Tiling(tiles, self.passes), []
        for index, start in enumerate(range(0, num_rows, chunk)):
            rows = [_pad_rows(a[start : start + chunk], chunk) for a in inputs]
            of_rows = {} if known is None else {"known": _pad_rows(known[start : start + chunk], chunk)}
            result = function(flat, tiling, jr.fold_in(key, index), *rows, **of_rows, **options)
            keep = (slice(None),) * axis + (slice(0, min(chunk, num_rows - start)),)
            pieces.append(jax.tree.map(lambda r, keep=keep: np.asarray(r[keep]), result))
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *pieces)


class Thinned(NamedTuple):
    """A posterior with fewer draws, and its cost. MNLLs are in the units of the given y."""

    posterior: Posterior
    """The draws that were kept, as one chain."""
    mnll_of_all: float
    """MNLL with all draws."""
    mnll: float
    """MNLL with the draws that were kept."""

    @property
    def cost(self) -> float:
        """Increase of the MNLL."""
        return self.mnll - self.mnll_of_all


def evenly_spaced(num: int, most: int) -> np.ndarray:
    """At most `most` of the positions 0 to `num - 1`, the first and the last among them."""
    return np.unique(np.round(np.linspace(0, num - 1, min(num, most))).astype(int))


def _pad_rows(array: np.ndarray, num_rows: int) -> Array:
    """Pads a chunk to `num_rows` with copies of its first row, so that every chunk has the compiled shape."""
    missing = num_rows - array.shape[0]
    return jnp.asarray(array if missing == 0 else np.concatenate([array, np.repeat(array[:1], missing, axis=0)]))
