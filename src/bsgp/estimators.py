"""scikit-learn estimators: a table in, calibrated predictive distributions out, in the units of the table."""

import hashlib
import logging
import os
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

import bsgp
from bsgp.baselines import Baseline, class_baselines, from_arrays, regression_baselines, to_arrays
from bsgp.checks import check_count, check_option, check_positive
from bsgp.convergence import Diagnostics, diagnose, energy_trace
from bsgp.data.schema import InputSchema
from bsgp.data.standardise import Standardiser
from bsgp.data.tables import Table, from_array, from_frame, is_frame
from bsgp.inducing import AbstractInducingPrior, Determinantal, InducingNormal, InducingUniform, Strauss
from bsgp.likelihoods import AbstractLikelihood, Bernoulli, Categorical, gaussian
from bsgp.methods import METHODS
from bsgp.model import DeepGP
from bsgp.numerics import Marginals
from bsgp.posterior import Posterior
from bsgp.progress import progress_bar
from bsgp.recipes import RECIPES, Fit, Recipe, extend, fit, named_recipe, scaled
from bsgp.storage import load_stacked, save_stacked
from bsgp.target import OBJECTIVES

logger = logging.getLogger("bsgp")

INDUCING_PRIORS: dict[str, AbstractInducingPrior] = {
    "normal": InducingNormal(),
    "determinantal": Determinantal(),
    "strauss": Strauss(),
    "uniform": InducingUniform(),
}
PRECISIONS = ("float64", "float32")
NUM_BACKGROUND_ROWS = 100
"""Training rows kept with a model: diagnostics and the report's partial effects are averages over them."""


class _Session(NamedTuple):
    """What `warm_start` goes on from."""

    fitted: Fit
    fingerprint: str


class _BSGPEstimator(BaseEstimator):
    """What the regressor and the classifier share; they differ in what y is and in what is predicted of it."""

    def __init__(
        self,
        *,
        method="bsgp",
        depth=1,
        num_inducing=None,
        num_chains=1,
        objective="fitc",
        inducing_prior="normal",
        recipe="default",
        effort=1.0,
        max_seconds=None,
        precision="float64",
        warm_start=False,
        verbose=False,
        random_state=None,
    ):
        self.method = method
        self.depth = depth
        self.num_inducing = num_inducing
        self.num_chains = num_chains
        self.objective = objective
        self.inducing_prior = inducing_prior
        self.recipe = recipe
        self.effort = effort
        self.max_seconds = max_seconds
        self.precision = precision
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    # -- fitting -----------------------------------------------------------------------------------------------

    def fit(self, X, y):
        """Draw from the posterior given a table `X` (DataFrame, array) and its targets `y`."""
        self._check_settings()
        table = self._training_table(X, y)
        target = self._learn_targets(y, table.num_rows)
        self.schema_, notes = InputSchema.learn(table)
        inputs, _ = self.schema_.encode(table)
        self.notes_ = tuple(notes)
        for note in notes:
            logger.warning(note)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with self._precision, progress_bar(disable=not self.verbose) as report:
            self._fit_arrays(inputs.astype(self.precision), target.astype(self.precision), report)
        self.baselines_ = self._baselines(inputs, target)
        return self

    def _fit_arrays(self, X: np.ndarray, y: np.ndarray, report) -> None:
        fit_key, rows_key, diagnosis_key = jr.split(jr.fold_in(jr.key(self._seed), 0), 3)
        fingerprint = hashlib.sha256(X.tobytes() + y.tobytes()).hexdigest()
        before = getattr(self, "_session", None) if self.warm_start else None
        if before is not None and before.fingerprint == fingerprint:
            more_key = jr.fold_in(fit_key, self.posterior_.num_draws)
            fitted = extend(before.fitted, X, y, more_key, report=report)
        else:
            if before is not None:
                logger.warning("The data are not those of the last fit: the chains begin anew.")
            likelihood = self._likelihood(X.dtype)
            fitted = fit(
                X, y, likelihood, fit_key,
                recipe=self._chosen_recipe(X, y, likelihood),
                depth=self.depth,
                inducing_prior=INDUCING_PRIORS[self.inducing_prior],
                num_chains=self.num_chains,
                report=report,
            )  # fmt: skip
        rows = np.asarray(jr.permutation(rows_key, X.shape[0]))[:NUM_BACKGROUND_ROWS]
        self.posterior_ = fitted.posterior
        self.background_ = X[rows]
        self.diagnostics_ = diagnose(fitted.posterior, fitted.run, self.background_, diagnosis_key)
        self.energy_ = energy_trace(fitted.run)
        self.num_rows_ = X.shape[0]
        self._session = _Session(fitted, fingerprint) if self.warm_start else None

    def _check_settings(self) -> None:
        check_option("method", self.method, list(METHODS))
        check_option("objective", self.objective, OBJECTIVES)
        check_option("inducing_prior", self.inducing_prior, list(INDUCING_PRIORS))
        check_option("recipe", self.recipe, list(RECIPES))
        check_option("precision", self.precision, PRECISIONS)
        check_count("depth", self.depth)
        check_count("num_chains", self.num_chains)
        check_positive("effort", self.effort)
        if self.num_inducing is not None:
            check_count("num_inducing", self.num_inducing)
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds)

    def _chosen_recipe(self, X: np.ndarray, y: np.ndarray, likelihood: AbstractLikelihood) -> Recipe:
        recipe = named_recipe(self.recipe, X, y, likelihood, self.depth)
        num_inducing = min(self.num_inducing or recipe.num_inducing, X.shape[0])
        recipe = scaled(recipe, num_inducing, self.effort)
        plan = replace(recipe.plan, max_seconds=self.max_seconds)
        return replace(recipe, plan=plan, objective=self.objective)

    def _training_table(self, X, y) -> Table:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Pass the targets."
            )
        if isinstance(X, Table) or is_frame(X):
            table = X if isinstance(X, Table) else from_frame(X)
            self.feature_names_in_ = np.asarray(list(table.columns), dtype=object)
            self.n_features_in_ = len(table.columns)
            if table.num_rows < 2:
                raise ValueError(f"`X` must have at least 2 rows, got {table.num_rows} sample(s). Pass more data.")
            return table
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return from_array(self._check_array(X, reset=True))

    def _check_array(self, X, *, reset: bool) -> np.ndarray:
        options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return np.asarray(validate_data(self, X, reset=reset, ensure_min_samples=2 if reset else 1, **options))

    # -- predicting --------------------------------------------------------------------------------------------

    def encode(self, X) -> np.ndarray:
        """New rows as the model wants them `[N D]`, found by name where they have names."""
        check_is_fitted(self, "posterior_")
        names = getattr(self, "feature_names_in_", None)
        if isinstance(X, Table) or is_frame(X):
            table = X if isinstance(X, Table) else from_frame(X)
            if names is None and not isinstance(X, Table):  # fitted on an array: by position, and scikit-learn warns
                table = from_array(self._check_array(X, reset=False))
        else:
            table = from_array(self._check_array(X, reset=False), names=None if names is None else list(names))
        encoded, notes = self.schema_.encode(table)
        for note in notes:
            logger.warning(note)
        return encoded.astype(self.precision)

    @property
    def _precision(self):
        """JAX in the precision of the model, whatever the caller's is."""
        return jax.enable_x64(self.precision == "float64")

    @property
    def _predict_key(self):
        """Always the same: hidden layers are drawn, and a prediction should not change when it is asked for again."""
        return jr.fold_in(jr.key(self._seed), 1)

    def _marginals(self, X) -> Marginals:
        inputs = self.encode(X)
        return self.posterior_.predict(inputs, self._predict_key)

    # -- what the subclasses know ------------------------------------------------------------------------------

    def _learn_targets(self, y, num_rows: int) -> np.ndarray:
        """Check y, keep what is needed to go back to its units, and return it as `[N P]` for the model."""
        raise NotImplementedError

    def _likelihood(self, dtype) -> AbstractLikelihood:
        raise NotImplementedError

    def _baselines(self, X: np.ndarray, y: np.ndarray) -> dict[str, Baseline]:
        """Simple predictions from the same inputs and `_learn_targets`' y, to be compared with."""
        raise NotImplementedError

    def _target_state(self) -> dict[str, Any]:
        """What `_learn_targets` kept, as JSON."""
        raise NotImplementedError

    def _set_target_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike, about: dict | None = None) -> None:
        """Write the model as a folder of arrays and JSON, whole or not at all; `bsgp.load` reads it on any machine.

        It holds a hundred training rows (inputs only, standardised), which the report draws on. `about` is anything
        JSON can hold: it comes back as `about_`.
        """
        check_is_fitted(self, "posterior_")
        params = self.get_params()
        if not isinstance(params["random_state"], int | None):
            params["random_state"] = None  # a generator cannot be written down
        names = getattr(self, "feature_names_in_", None)
        meta = {
            "estimator": type(self).__name__,
            "bsgp": bsgp.__version__,
            "params": params,
            "schema": self.schema_.to_json(),
            "target": self._target_state(),
            "diagnostics": self.diagnostics_.to_json(),
            "notes": list(self.notes_),
            "num_rows": self.num_rows_,
            "seed": self._seed,
            "feature_names": None if names is None else list(names),
            "num_features": self.n_features_in_,
            "about": about or getattr(self, "about_", {}),
        }
        energy = {f"energy/{phase}": values for phase, values in self.energy_.items()}
        extras = {"background": self.background_, **energy, **to_arrays(self.baselines_)}
        save_stacked(self.posterior_.model, folder, meta, extras)

    def _restore(self, model: DeepGP, meta: dict, extras: dict[str, np.ndarray]) -> None:
        self.posterior_ = Posterior(model)
        self.schema_ = InputSchema.from_json(meta["schema"])
        self.diagnostics_ = Diagnostics.from_json(meta["diagnostics"])
        self.notes_ = tuple(meta["notes"])
        self.num_rows_, self._seed = meta["num_rows"], meta["seed"]
        self.background_ = extras["background"]
        self.energy_ = {
            name.removeprefix("energy/"): values for name, values in extras.items() if name.startswith("energy/")
        }
        self.baselines_ = from_arrays(extras)
        if meta["feature_names"] is not None:
            self.feature_names_in_ = np.asarray(meta["feature_names"], dtype=object)
        self.n_features_in_ = meta["num_features"]
        self.about_ = meta["about"]
        self._set_target_state(meta["target"])

    def __getstate__(self):
        """JAX arrays are pickled as NumPy's: read without float64 they would lose half their digits in silence."""
        state: dict[str, Any] = {**super().__getstate__()}  # type: ignore[dict-item]
        for name in ("posterior_", "_session"):
            if state.get(name) is not None:
                state[name] = jax.tree.map(_as_numpy, state[name])
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        with jax.enable_x64(True):
            for name in ("posterior_", "_session"):
                if state.get(name) is not None:
                    setattr(self, name, jax.tree.map(_as_jax, state[name]))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class BSGPRegressor(RegressorMixin, _BSGPEstimator):
    """Regression with a fully Bayesian sparse or deep Gaussian process; one target or several.

    Inputs may be numbers, booleans or categories, with missing values; inputs and targets are scaled inside.

    Parameters
    ----------
    method : how u, Z and the kernel parameters are treated; `bsgp methods` lists them.
    depth : layers of the Gaussian process.
    num_inducing : inducing points; None lets the recipe choose.
    num_chains : Markov chains. Two or more make the convergence diagnostics sharper.
    objective : "fitc" or "vfe".
    inducing_prior : "normal", "determinantal", "strauss" or "uniform".
    recipe : "default", or "paper" for what the authors did.
    effort : multiplies the recipe's number of updates.
    max_seconds : stop sampling then, and predict with what was drawn by that time.
    precision : "float64" or "float32".
    warm_start : whether another `fit` on the same data adds draws to those that there are.
    verbose : whether to show a progress bar (on a terminal).
    random_state : seed.

    Attributes
    ----------
    posterior_ : `bsgp.Posterior`, in standardised units.
    diagnostics_ : `bsgp.convergence.Diagnostics`: R-hat, effective draws, a verdict in words.
    notes_ : what was done to the table, one sentence each.
    schema_ : how columns became inputs.
    """

    def predict(self, X, return_std: bool = False):
        """Mean of the predictive distribution, and its standard deviation if asked for."""
        mean, variance = self._marginals(X)
        mean = self._shaped(self._units.inverse(np.asarray(mean)))
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(variance) * self._units.scale)

    def predict_quantiles(self, X, levels=(0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of the predictive distribution: `[N Q]`, or `[N P Q]` for several targets."""
        inputs = self.encode(X)
        quantiles = self.posterior_.quantiles(inputs, levels, self._predict_key)
        return self._shaped(quantiles * self._units.scale[:, None] + self._units.mean[:, None])

    def log_density(self, X, y) -> np.ndarray:
        """Log predictive density of `y`, per row, and per target if there are several."""
        inputs = self.encode(X)
        y = self._standardised(y, inputs.shape[0])
        log_density = self.posterior_.log_density(inputs, y, self._predict_key)
        return self._shaped(log_density - np.log(self._units.scale))

    def cdf(self, X, y) -> np.ndarray:
        """`P(Y <= y)`, per row, and per target if there are several: uniform if predictions are calibrated."""
        inputs = self.encode(X)
        return self._shaped(self.posterior_.cdf(inputs, self._standardised(y, inputs.shape[0]), self._predict_key))

    def crps(self, X, y) -> np.ndarray:
        """Continuous ranked probability score in the units of y, per row, and per target if there are several."""
        inputs = self.encode(X)
        standardised = self.posterior_.crps(inputs, self._standardised(y, inputs.shape[0]), self._predict_key)
        return self._shaped(standardised * self._units.scale)

    @property
    def target_mean(self) -> np.ndarray:
        """Mean of each target in training, `[P]`."""
        return self._units.mean

    @property
    def target_scale(self) -> np.ndarray:
        """Standard deviation of each target in training, `[P]`."""
        return self._units.scale

    def sample_y(self, X, n_samples: int = 1, random_state=0) -> np.ndarray:
        """Draws of y at all rows together, noise and all: `[N n_samples]`, or `[N P n_samples]`."""
        inputs = self.encode(X)
        key = jr.key(int(check_random_state(random_state).randint(2**31 - 1)))
        drawn = self.posterior_.sample(inputs, key, n_samples)  # [S N P]
        return self._shaped(np.moveaxis(drawn * self._units.scale + self._units.mean, 0, -1))

    # -- inside ------------------------------------------------------------------------------------------------

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def _as_targets(self, y, num_rows: int) -> np.ndarray:
        options: dict[str, Any] = {"dtype": np.float64, "ensure_2d": False, "input_name": "y"}
        array = np.asarray(check_array(y, **options))
        array = array.reshape(-1, 1) if array.ndim == 1 else array
        if array.shape[0] != num_rows:
            raise ValueError(f"`y` must have one row per row of `X`, {num_rows}, got {array.shape[0]}. Align the two.")
        return array

    def _learn_targets(self, y, num_rows):
        array = self._as_targets(y, num_rows)
        self._is_flat = np.asarray(y).ndim == 1
        self.target_names_ = _target_names(y, array.shape[1])
        self.n_outputs_ = array.shape[1]
        self._units = Standardiser.fit(array)
        return self._units.transform(array)

    def _standardised(self, y, num_rows: int) -> np.ndarray:
        return self._units.transform(self._as_targets(y, num_rows)).astype(self.precision)

    def _likelihood(self, dtype):
        return gaussian(self.n_outputs_, dtype)

    def _baselines(self, X, y):
        return dict(regression_baselines(X, self._units.inverse(y)))

    def _target_state(self):
        return {
            "names": list(self.target_names_),
            "mean": self._units.mean.tolist(),
            "scale": self._units.scale.tolist(),
            "is_flat": self._is_flat,
        }

    def _set_target_state(self, state):
        self.target_names_ = tuple(state["names"])
        self.n_outputs_ = len(self.target_names_)
        self._units = Standardiser(np.asarray(state["mean"], np.float64), np.asarray(state["scale"], np.float64))
        self._is_flat = state["is_flat"]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class BSGPClassifier(ClassifierMixin, _BSGPEstimator):
    """Classification with a fully Bayesian sparse or deep Gaussian process; two classes or more, of any label.

    The parameters and attributes are those of `BSGPRegressor`, and `classes_`.
    """

    def predict_proba(self, X) -> np.ndarray:
        """Probability of each class, in the order of `classes_`, `[N K]`."""
        probability = np.asarray(self._marginals(X).mean, np.float64)
        if probability.shape[1] == 1:
            return np.concatenate([1.0 - probability, probability], axis=1)
        return probability / probability.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X) -> np.ndarray:
        return np.log(self.predict_proba(X))

    def predict(self, X) -> np.ndarray:
        """The most probable class."""
        probability = self.predict_proba(X)
        return self.classes_[np.argmax(probability, axis=1)]

    def log_density(self, X, y) -> np.ndarray:
        """Log probability of the labels `y`, per row."""
        inputs = self.encode(X)
        return self.posterior_.log_density(inputs, self.codes(y)[:, None], self._predict_key)[:, 0]

    def sample_y(self, X, n_samples: int = 1, random_state=0) -> np.ndarray:
        """Labels drawn at all rows together, `[N n_samples]`."""
        inputs = self.encode(X)
        key = jr.key(int(check_random_state(random_state).randint(2**31 - 1)))
        drawn = self.posterior_.sample(inputs, key, n_samples)[:, :, 0]
        return self.classes_[drawn.T.astype(int)]

    # -- inside ------------------------------------------------------------------------------------------------

    def codes(self, y) -> np.ndarray:
        """Labels as numbers 0 to K - 1."""
        labels = column_or_1d(y)
        codes = np.searchsorted(self.classes_, labels)
        known = codes < len(self.classes_)
        known[known] = self.classes_[codes[known]] == labels[known]
        if not known.all():
            raise ValueError(
                f"`y` must hold the classes {_shortened(self.classes_)}, got {labels[~known][0]!r} at row "
                f"{int(np.argmin(known))}. Leave such rows out."
            )
        return codes

    def _learn_targets(self, y, num_rows):
        self.target_names_ = _target_names(y, 1)
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError("Input y contains NaN or infinity. Fill or drop these rows.")
        check_classification_targets(labels)
        if len(labels) != num_rows:
            raise ValueError(f"`y` must have one row per row of `X`, {num_rows}, got {len(labels)}. Align the two.")
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"`y` must hold at least two classes, got one class only: {self.classes_[0]!r}. Pass rows of others."
            )
        return codes[:, None].astype(np.float64)

    def _likelihood(self, dtype):
        return Bernoulli() if len(self.classes_) == 2 else Categorical(len(self.classes_))

    def _baselines(self, X, y):
        return dict(class_baselines(X, y[:, 0].astype(int), len(self.classes_)))

    def _target_state(self):
        kind = self.classes_.dtype.kind
        return {
            "names": list(self.target_names_),
            "classes": [str(c) for c in self.classes_] if kind not in "biuf" else self.classes_.tolist(),
            "dtype": "object" if kind == "O" else self.classes_.dtype.str,
        }

    def _set_target_state(self, state):
        self.target_names_ = tuple(state["names"])
        self.classes_ = np.asarray(state["classes"], dtype=state["dtype"])


ESTIMATORS: dict[str, type[_BSGPEstimator]] = {"BSGPRegressor": BSGPRegressor, "BSGPClassifier": BSGPClassifier}


def load(folder: str | os.PathLike) -> BSGPRegressor | BSGPClassifier:
    """A model that `save` or `bsgp fit` wrote, or a `ValueError` that says what is wrong with the folder."""
    stored = load_stacked(folder)
    meta, model = stored.meta, stored.module
    if meta.get("estimator") not in ESTIMATORS or not isinstance(model, DeepGP):
        raise ValueError(
            f"`{folder}` must hold a fitted estimator, got another kind of posterior. "
            "Read it with `bsgp.Posterior.load`, or pass a folder that `bsgp fit` wrote."
        )
    try:
        estimator = ESTIMATORS[meta["estimator"]](**meta["params"])
        estimator._restore(model, meta, stored.extras)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{folder}` must hold a complete model, got {error!r}: it is damaged. Save it again."
        ) from error
    return estimator  # type: ignore[return-value]


def _as_numpy(leaf):
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _as_jax(leaf):
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _target_names(y, num_targets: int) -> tuple[str, ...]:
    if getattr(y, "columns", None) is not None:
        return tuple(str(name) for name in y.columns)
    if num_targets == 1 and getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if num_targets == 1 else tuple(f"y{index}" for index in range(num_targets))


def _shortened(values, most: int = 8) -> str:
    shown = ", ".join(repr(str(value)) for value in values[:most])
    return shown + (", ..." if len(values) > most else "")
