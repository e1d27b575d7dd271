"""The part that regressor and classifier share: parameters, the way of a table to a fit, encoding new rows."""

import abc
import logging
import os
import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import bsgp
from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.target_summary import TargetState
from bsgp.data.encoding.targets import Targets
from bsgp.data.store.sources import ArraySource
from bsgp.data.store.store import Store
from bsgp.data.tables.columns import Table, from_array, from_frame, is_frame
from bsgp.estimators.baselines import Baseline
from bsgp.estimators.convergence import diagnose, energy_trace
from bsgp.estimators.persistence import save_estimator
from bsgp.estimators.probes import MAX_CANDIDATES, Probes, choose_probes
from bsgp.estimators.settings import NOT_IN_CHECKPOINTS, Settings
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import silent
from bsgp.methods.fit import Fit
from bsgp.methods.parallel_chains import fit_chains_in_parallel
from bsgp.methods.recipe import add_draws
from bsgp.methods.registry import fit_method
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.linalg.numerics import Marginals
from bsgp.runtime.compilation import release_compiled_programs
from bsgp.runtime.progress import progress_bar

logger = logging.getLogger("bsgp")

NUM_BACKGROUND_ROWS = 100
"""Training rows kept with a model: diagnostics and the report's partial effects are averages over them."""
MAX_DRAWS = 512
"""Draws of all chains together that a model keeps, unless `warm_start` adds some: its size and the time of predictions
grow with their number."""
MAX_BASELINE_ROWS = 20_000
"""Rows of a table on disk that the baselines are fitted to."""


class _Session(NamedTuple):
    """The last fit, which `warm_start` continues."""

    fitted: Fit
    fingerprint: str
    settings: Settings


class BSGPEstimator(BaseEstimator, abc.ABC):
    """Base of the regressor and the classifier, which differ in what y is and in what they predict of it."""

    def __init__(
        self,
        *,
        method="bsgp",
        depth=1,
        num_inducing=None,
        num_chains=None,
        objective="fitc",
        inducing_prior=None,
        likelihood_power=1.0,
        recipe="default",
        effort=1.0,
        thinning=None,
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
        self.thinning = thinning
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

        `X` may also be a table on disk opened by `bsgp.open_store`, which holds its targets. After thousands of fits
        in one process, JAX's compiled programs are released before the system's limit of memory maps is reached.
        """
        settings = Settings(**self.get_params(deep=False))
        source, notes = self._opened(X) if isinstance(X, Store) else self._encoded(X, y)
        self.notes_ = tuple(notes)
        for note in notes:
            logger.warning(note)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        release_compiled_programs()
        with self._precision, progress_bar() if self.verbose else nullcontext(silent) as report:
            self._fit_source(source, settings, report)
        inputs, target = source.some_rows(MAX_BASELINE_ROWS, self._seed) if isinstance(source, Store) else source.rows
        self.baselines_ = self._baselines(inputs.astype(np.float64), target.astype(np.float64))
        if not self.diagnostics_.is_settled:
            warnings.warn(self.diagnostics_.verdict, ConvergenceWarning, stacklevel=2)
        return self

    def _encoded(self, X, y) -> tuple[ArraySource, list]:
        table = self._training_table(X, y)
        target = self._learn_targets(y, table.num_rows)
        self.schema_, notes = InputSchema.learn(table)
        inputs, _ = self.schema_.encode(table)
        return ArraySource(inputs.astype(self.precision), target.astype(self.precision)), notes

    def _opened(self, store: Store) -> tuple[Store, list]:
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

    def _fit_source(self, source: ArraySource | Store, settings: Settings, report) -> None:
        fit_key, rows_key, diagnosis_key = jr.split(jr.fold_in(jr.key(self._seed), 0), 3)
        before = getattr(self, "_session", None) if self.warm_start else None
        fingerprint = source.fingerprint if self.warm_start or self.checkpoint is not None else ""
        self._checkpoints = self._open_checkpoints(source, fingerprint)
        if before and before.fingerprint == fingerprint and settings.samples_the_target_of(before.settings):
            more_key = jr.fold_in(fit_key, before.fitted.posterior.num_draws)
            fitted = add_draws(before.fitted, source, None, more_key, report=report)
        else:
            if before is not None:
                logger.warning("The data or the model differ from those of the last fit: the chains start over.")
            fitted = self._fit_from_scratch(source, settings, fit_key, report)
        self.posterior_ = fitted.posterior if self.warm_start else fitted.posterior.subset(MAX_DRAWS)
        self.background_ = self._some_inputs(source, rows_key).astype(self.precision)
        self.diagnostics_ = diagnose(
            fitted.posterior, fitted.history, self._probes(source), diagnosis_key, kept=self.posterior_
        )
        self.energy_ = energy_trace(fitted.history)
        self.num_rows_ = source.num_rows
        self._session = _Session(fitted, fingerprint, settings) if self.warm_start else None

    def _fit_from_scratch(self, source: ArraySource | Store, settings: Settings, key, report) -> Fit:
        likelihood, options = self._likelihood(self.precision), settings.options
        if settings.n_jobs is not None and settings.is_parallel and settings.num_chains != 1:
            return fit_chains_in_parallel(
                settings.method, source, likelihood, key, options=options, n_jobs=settings.n_jobs
            )
        return fit_method(
            settings.method, source, None, likelihood, key,
            options=options, report=report, checkpoints=self._checkpoints,
        )  # fmt: skip

    def _probes(self, source: ArraySource | Store) -> Probes:
        rows = source.some_rows(MAX_CANDIDATES, self._seed) if isinstance(source, Store) else source.rows
        return choose_probes(rows, self._seed)

    def _some_inputs(self, source: ArraySource | Store, key) -> np.ndarray:
        if isinstance(source, Store):
            return source.some_rows(NUM_BACKGROUND_ROWS, int(jr.randint(key, (), 0, 2**31 - 1))).X
        return source.X[np.asarray(jr.permutation(key, source.num_rows))[:NUM_BACKGROUND_ROWS]]

    def _open_checkpoints(self, source: ArraySource | Store, fingerprint: str) -> Checkpoints | None:
        if self.checkpoint is None:
            return None
        settings = {
            "bsgp": bsgp.__version__,
            "estimator": type(self).__name__,
            **{name: value for name, value in self.get_params().items() if name not in NOT_IN_CHECKPOINTS},
            "seed": self._seed,
            "rows": source.num_rows,
            "inputs": list(self.schema_.encoded_names),
            "data": fingerprint,
        }
        return Checkpoints(self.checkpoint, settings, resume=self.resume, every=self.checkpoint_seconds)

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
        """New rows as the model's matrix of inputs `[N D]`; columns are found by name if they have names."""
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
        """A context with JAX in the model's precision, whatever the caller's is."""
        return jax.enable_x64(self.precision == "float64")

    def key_of_chunk(self, chunk: int = 0):
        """Key for predicting a chunk of a table: always the same for a chunk, and different between chunks.

        Hidden layers are drawn, and a prediction should not change when it is asked for again.
        """
        key = jr.fold_in(jr.key(self._seed), 1)
        return jr.fold_in(key, chunk) if chunk else key

    def extrapolation(self, X) -> np.ndarray:
        """How much of the uncertainty that the model started with is still there, from 0 to 1, for each row.

        A share of variance in the model's own lengthscales: a column that does not matter puts no row far out.
        """
        return self.posterior_.extrapolation(self.encode(X), self.key_of_chunk())

    def _marginals(self, X) -> Marginals:
        inputs = self.encode(X)
        return self.posterior_.predict(inputs, self.key_of_chunk())

    # -- what the subclasses know ------------------------------------------------------------------------------

    _task: str
    """`regression` or `classification`."""
    target_names_: tuple[str, ...]
    """Names of the target columns."""

    @abc.abstractmethod
    def _state_of(self, state: TargetState) -> dict[str, Any]:
        """`_target_state` from the targets of a table on disk."""

    @abc.abstractmethod
    def _learn_targets(self, y, num_rows: int) -> np.ndarray:
        """Check y, keep what is needed to return to its units, and return it as `[N P]` for the model."""

    @abc.abstractmethod
    def _likelihood(self, dtype) -> AbstractLikelihood: ...

    @abc.abstractmethod
    def _baselines(self, X: np.ndarray, y: np.ndarray) -> dict[str, Baseline]:
        """Simple models of the same inputs and the y of `_learn_targets`, for comparison."""

    @abc.abstractmethod
    def _target_state(self) -> dict[str, Any]:
        """What `_learn_targets` kept, as JSON."""

    @abc.abstractmethod
    def _set_target_state(self, state: dict[str, Any]) -> None:
        """Take over what `_target_state` returned."""

    # -- files and pickles -------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike, about: dict | None = None) -> None:
        """Write the model as a folder of arrays and JSON, whole or not at all; `bsgp.load` reads it on any machine.

        The folder holds a hundred training rows (inputs only, standardised), which the report needs. `about` is
        anything JSON can hold; it comes back as `about_`.
        """
        check_is_fitted(self, "posterior_")
        self.about_ = about or getattr(self, "about_", {})
        save_estimator(self, folder)
        checkpoints = getattr(self, "_checkpoints", None)
        if checkpoints is not None and not self.diagnostics_.interrupted:
            checkpoints.remove()  # an interrupted run can still be resumed

    def __getstate__(self):
        """JAX arrays are pickled as NumPy's: read without float64 they would silently lose half their digits."""
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
    """Names of the targets, from `y` itself if it has them."""
    if isinstance(y, Targets):
        return tuple(y.columns)
    if getattr(y, "columns", None) is not None:
        return tuple(str(name) for name in y.columns)
    if num_targets == 1 and getattr(y, "name", None) is not None:
        return (str(y.name),)
    return ("y",) if num_targets == 1 else tuple(f"y{index}" for index in range(num_targets))


def _as_numpy(leaf):
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _as_jax(leaf):
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
