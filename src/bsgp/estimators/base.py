"""What the regressor and the classifier share: settings, the table's way in, fitting, saving, pickling."""

import abc
import logging
import os
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import bsgp
from bsgp.apart import fit_chains_apart
from bsgp.baselines import Baseline, from_arrays, to_arrays
from bsgp.checkpoints import Checkpoints
from bsgp.checks import check_option, check_positive
from bsgp.convergence import Diagnostics, diagnose, energy_trace
from bsgp.data.schema import InputSchema
from bsgp.data.sources import ArraySource
from bsgp.data.store import Store
from bsgp.data.summaries import TargetState
from bsgp.data.tables import Table, from_array, from_frame, is_frame
from bsgp.fitted import Fit
from bsgp.fitting import Options, fit_method
from bsgp.inducing import INDUCING_PRIORS
from bsgp.likelihoods import AbstractLikelihood
from bsgp.methods import METHODS
from bsgp.model import AbstractModel
from bsgp.numerics import Marginals
from bsgp.posterior import Posterior
from bsgp.progress import progress_bar
from bsgp.recipes import extend
from bsgp.storage import save_stacked

logger = logging.getLogger("bsgp")

PRECISIONS = ("float64", "float32")
NUM_BACKGROUND_ROWS = 100
"""Training rows kept with a model: diagnostics and the report's partial effects are averages over them."""
MAX_BASELINE_ROWS = 20_000
"""Of a table on disk, to fit the baselines to."""


class _Session(NamedTuple):
    """What `warm_start` goes on from."""

    fitted: Fit
    fingerprint: str
    options: Options


def _have_one_target(before: Options, now: Options) -> bool:
    """Whether chains can go on under other options: how long they run and where is no part of what they draw from."""

    def of_target(options: Options) -> Options:
        return replace(options, effort=1.0, thinning=None, max_seconds=None, mesh=None)

    return of_target(before) == of_target(now)


class BSGPEstimator(BaseEstimator, abc.ABC):
    """What the regressor and the classifier share; they differ in what y is and in what is predicted of it."""

    def __init__(
        self,
        *,
        method="bsgp",
        depth=1,
        num_inducing=None,
        num_chains=1,
        objective="fitc",
        inducing_prior=None,
        likelihood_power=1.0,
        recipe="default",
        effort=1.0,
        max_seconds=None,
        mesh=None,
        n_jobs=None,
        precision="float64",
        warm_start=False,
        checkpoint=None,
        checkpoint_seconds=60.0,
        resume=False,
        verbose=False,
        random_state=None,
    ):
        self.method = method
        self.depth = depth
        self.num_inducing = num_inducing
        self.num_chains = num_chains
        self.objective = objective
        self.inducing_prior = inducing_prior
        self.likelihood_power = likelihood_power
        self.recipe = recipe
        self.effort = effort
        self.max_seconds = max_seconds
        self.mesh = mesh
        self.n_jobs = n_jobs
        self.precision = precision
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.resume = resume
        self.verbose = verbose
        self.random_state = random_state

    # -- fitting -----------------------------------------------------------------------------------------------

    def fit(self, X, y=None):
        """Draw from the posterior given a table `X` (DataFrame, array) and its targets `y`.

        `X` may also be a table on disk that `bsgp.open_store` opened, which knows its targets.
        """
        self._check_settings()
        source, notes = self._opened(X) if isinstance(X, Store) else self._encoded(X, y)
        self.notes_ = tuple(notes)
        for note in notes:
            logger.warning(note)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with self._precision, progress_bar(disable=not self.verbose) as report:
            self._fit_source(source, report)
        inputs, target = source.some_rows(MAX_BASELINE_ROWS, self._seed) if isinstance(source, Store) else source.rows
        self.baselines_ = self._baselines(inputs.astype(np.float64), target.astype(np.float64))
        return self

    def _encoded(self, X, y) -> tuple[ArraySource, list[str]]:
        table = self._training_table(X, y)
        target = self._learn_targets(y, table.num_rows)
        self.schema_, notes = InputSchema.learn(table)
        inputs, _ = self.schema_.encode(table)
        return ArraySource(inputs.astype(self.precision), target.astype(self.precision)), notes

    def _opened(self, store: Store) -> tuple[Store, list[str]]:
        if store.task != self._task:
            raise ValueError(
                f"{type(self).__name__} must have a source for {self._task}, got one for {store.task}. "
                f"Open it with `task={self._task!r}`."
            )
        self.schema_ = store.schema
        self._set_target_state(self._state_of(store.target_state))
        self.feature_names_in_ = np.asarray([*store.schema.names, *store.schema.dropped], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        return store, store.notes

    def _fit_source(self, source: ArraySource | Store, report) -> None:
        fit_key, rows_key, diagnosis_key = jr.split(jr.fold_in(jr.key(self._seed), 0), 3)
        before = getattr(self, "_session", None) if self.warm_start else None
        fingerprint = source.fingerprint if self.warm_start or self.checkpoint is not None else ""
        self._checkpoints = self._open_checkpoints(source, fingerprint)
        options = self._options()
        if before is not None and before.fingerprint == fingerprint and _have_one_target(before.options, options):
            more_key = jr.fold_in(fit_key, self.posterior_.num_draws)
            fitted = extend(before.fitted, source, None, more_key, report=report)
        else:
            if before is not None:
                logger.warning("The data or the model are not those of the last fit: the chains begin anew.")
            fitted = self._fit_anew(source, fit_key, report)
        self.posterior_ = fitted.posterior
        self.background_ = self._some_inputs(source, rows_key).astype(self.precision)
        self.diagnostics_ = diagnose(fitted.posterior, fitted.history, self.background_, diagnosis_key)
        self.energy_ = energy_trace(fitted.history)
        self.num_rows_ = source.num_rows
        self._session = _Session(fitted, fingerprint, options) if self.warm_start else None

    def _fit_anew(self, source: ArraySource | Store, key, report) -> Fit:
        likelihood, options = self._likelihood(self.precision), self._options()
        if self.n_jobs not in (None, 1) and self.num_chains > 1:
            return fit_chains_apart(self.method, source, likelihood, key, options=options, n_jobs=self.n_jobs)
        return fit_method(
            self.method, source, None, likelihood, key, options=options, report=report, checkpoints=self._checkpoints
        )

    def _some_inputs(self, source: ArraySource | Store, key) -> np.ndarray:
        if isinstance(source, Store):
            return source.some_rows(NUM_BACKGROUND_ROWS, int(jr.randint(key, (), 0, 2**31 - 1))).X
        return source.X[np.asarray(jr.permutation(key, source.num_rows))[:NUM_BACKGROUND_ROWS]]

    def _open_checkpoints(self, source: ArraySource | Store, fingerprint: str) -> Checkpoints | None:
        """What a run may differ in from the one that it goes on with: how long it may take, and what it says."""
        if self.checkpoint is None:
            return None
        free = (
            *("max_seconds", "mesh", "n_jobs", "warm_start", "checkpoint", "checkpoint_seconds", "resume", "verbose"),
            "random_state",
        )
        settings = {
            "bsgp": bsgp.__version__,
            "estimator": type(self).__name__,
            **{name: value for name, value in self.get_params().items() if name not in free},
            "seed": self._seed,
            "rows": source.num_rows,
            "inputs": list(self.schema_.encoded_names),
            "data": fingerprint,
        }
        return Checkpoints(self.checkpoint, settings, resume=self.resume, every=self.checkpoint_seconds)

    def _check_settings(self) -> None:
        check_option("method", self.method, list(METHODS))
        if self.inducing_prior is not None:
            check_option("inducing_prior", self.inducing_prior, list(INDUCING_PRIORS))
        check_option("precision", self.precision, PRECISIONS)
        self._options()  # which checks the others
        check_positive("checkpoint_seconds", self.checkpoint_seconds)
        if self.resume and self.checkpoint is None:
            raise ValueError("`resume` must come with the folder that the run was kept in. Pass it as `checkpoint`.")
        if self.checkpoint is not None and not METHODS[self.method].can_resume:
            raise ValueError(
                f"`checkpoint` keeps chains, got the method `{self.method}`, which has none to keep. Use `bsgp`."
            )
        if self.n_jobs not in (None, 1) and (self.checkpoint is not None or self.mesh is not None or self.warm_start):
            raise ValueError(
                f"`n_jobs` runs every chain on its own, got {self.n_jobs} with `checkpoint`, `mesh` or `warm_start`, "
                "which keep them together. Leave it out."
            )
        if self.warm_start and not METHODS[self.method].can_resume:
            raise ValueError(
                f"`warm_start` adds draws to chains, got the method `{self.method}`, which cannot. Use `bsgp`."
            )

    def _options(self) -> Options:
        return Options(
            depth=self.depth,
            num_inducing=self.num_inducing,
            objective=self.objective,
            inducing_prior=None if self.inducing_prior is None else INDUCING_PRIORS[self.inducing_prior],
            likelihood_power=self.likelihood_power,
            recipe=self.recipe,
            num_chains=self.num_chains,
            effort=self.effort,
            max_seconds=self.max_seconds,
            mesh=self.mesh,
        )

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

    def key_of_chunk(self, chunk: int):
        """For rows that are a part of a larger table: were it the same for all, hidden draws would repeat."""
        return jr.fold_in(self._predict_key, chunk) if chunk else self._predict_key

    def _marginals(self, X) -> Marginals:
        inputs = self.encode(X)
        return self.posterior_.predict(inputs, self._predict_key)

    # -- what the subclasses know ------------------------------------------------------------------------------

    _task: str
    """`regression` or `classification`."""

    @abc.abstractmethod
    def _state_of(self, state: TargetState) -> dict[str, Any]:
        """What `_target_state` would be, of the targets of a table on disk."""

    @abc.abstractmethod
    def _learn_targets(self, y, num_rows: int) -> np.ndarray:
        """Check y, keep what is needed to go back to its units, and return it as `[N P]` for the model."""

    @abc.abstractmethod
    def _likelihood(self, dtype) -> AbstractLikelihood: ...

    @abc.abstractmethod
    def _baselines(self, X: np.ndarray, y: np.ndarray) -> dict[str, Baseline]:
        """Simple predictions from the same inputs and `_learn_targets`' y, to be compared with."""

    @abc.abstractmethod
    def _target_state(self) -> dict[str, Any]:
        """What `_learn_targets` kept, as JSON."""

    @abc.abstractmethod
    def _set_target_state(self, state: dict[str, Any]) -> None: ...

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike, about: dict | None = None) -> None:
        """Write the model as a folder of arrays and JSON, whole or not at all; `bsgp.load` reads it on any machine.

        It holds a hundred training rows (inputs only, standardised), which the report draws on. `about` is anything
        JSON can hold: it comes back as `about_`.
        """
        check_is_fitted(self, "posterior_")
        self.about_ = about or getattr(self, "about_", {})
        params = {**self.get_params(), "checkpoint": None, "resume": False}  # of a run that is over
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
            "about": self.about_,
        }
        energy = {f"energy/{phase}": values for phase, values in self.energy_.items()}
        extras = {"background": self.background_, **energy, **to_arrays(self.baselines_)}
        save_stacked(self.posterior_.model, folder, meta, extras)
        checkpoints = getattr(self, "_checkpoints", None)
        if checkpoints is not None and not self.diagnostics_.interrupted:
            checkpoints.remove()  # what was cut short can still be gone on with

    def restore(self, model: AbstractModel, meta: dict, extras: dict[str, np.ndarray]) -> None:
        """Take over what `save` wrote."""
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
        state = dict(cast(dict[str, Any], super().__getstate__()))
        state.pop("_checkpoints", None)
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


def target_names(y, num_targets: int) -> tuple[str, ...]:
    if getattr(y, "columns", None) is not None:
        return tuple(str(name) for name in y.columns)
    if num_targets == 1 and getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if num_targets == 1 else tuple(f"y{index}" for index in range(num_targets))


def _as_numpy(leaf):
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _as_jax(leaf):
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
