"""The part that regressor and classifier share: parameters, the way of a table to a fit, encoding new rows."""

import abc
import logging
import os
import warnings
from contextlib import nullcontext
from typing import Any

import jax
import jax.random as jr
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.target_summary import TargetState
from bsgp.data.encoding.weight_columns import left_out_note
from bsgp.data.store.sources import ArraySource, Rows
from bsgp.data.store.store import Store
from bsgp.data.tables.columns import Table, from_array, from_frame, is_frame
from bsgp.estimators.baselines import Baseline
from bsgp.estimators.convergence import diagnose, energy_trace
from bsgp.estimators.exposure import with_offset
from bsgp.estimators.persistence import identity_of_run, save_estimator
from bsgp.estimators.pickling import PicklesDraws
from bsgp.estimators.probes import MAX_CANDIDATES, Probes, choose_probes
from bsgp.estimators.session import Session
from bsgp.estimators.settings import Settings
from bsgp.estimators.table_kernel import with_columns
from bsgp.estimators.training_rows import TrainingRows, training_rows, unless_all_one
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import silent
from bsgp.methods.fit import Fit
from bsgp.methods.parallel_chains import fit_chains_in_parallel
from bsgp.methods.recipe import add_draws
from bsgp.methods.registry import fit_method
from bsgp.models.likelihoods.base import AbstractLikelihood
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


class BSGPEstimator(PicklesDraws, BaseEstimator, abc.ABC):
    """Base of the regressor and the classifier, which differ in what y is and in what they predict of it."""

    def __init__(
        self,
        *,
        method="bsgp",
        depth=1,
        kernel="rbf",
        num_inducing=None,
        num_chains=None,
        objective="fitc",
        inducing_prior=None,
        likelihood=None,
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
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.num_chains = num_chains
        self.objective = objective
        self.inducing_prior = inducing_prior
        self.likelihood = likelihood
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

    def fit(self, X, y=None, sample_weight=None):
        """Draw from the posterior given a table `X` (DataFrame, array) and its targets `y`.

        The log likelihood of a row counts `sample_weight` times: a weight of 2 is the row twice, also for how inputs
        and targets are scaled. A fractional weight is a power of the row's likelihood. Rows of weight zero are as if
        absent.

        `X` may also be a table on disk opened by `bsgp.open_store`, which holds its targets and weights. After
        thousands of fits in one process, JAX's compiled programs are released before the system's limit of memory maps
        is reached.
        """
        return self._fit(X, y, sample_weight, None)

    def _fit(self, X, y, sample_weight, noise_std):
        settings = Settings.of(self.get_params(deep=False))
        if isinstance(X, Store):
            source, notes = self._opened(X, sample_weight, noise_std)
        else:
            source, notes = self._encoded(training_rows(X, y, sample_weight, noise_std))
        self.notes_ = tuple(notes)
        for note in notes:
            logger.warning(note)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        release_compiled_programs()
        with self._precision, progress_bar() if self.verbose else nullcontext(silent) as report:
            self._fit_source(source, settings, report)
        rows = source.some_rows(MAX_BASELINE_ROWS, self._seed) if isinstance(source, Store) else source.rows
        rows = jax.tree.map(lambda part: part.astype(np.float64), rows)
        self.baselines_ = self._baselines(rows.X, rows.y, rows.weight)
        if not self.diagnostics_.is_settled:
            warnings.warn(self.diagnostics_.verdict, ConvergenceWarning, stacklevel=3)
        return self

    def _encoded(self, rows: TrainingRows) -> tuple[ArraySource, list]:
        table = self._training_table(rows.X, rows.y)
        weight = unless_all_one(rows.weight)
        target = self._learn_targets(rows.y, table.num_rows, weight)
        weight = unless_all_one(self._weight_of_rows(target, weight))
        columns, offset = self._without_offset(table, is_training=True)
        self.schema_, notes = InputSchema.learn(columns, weight)
        if rows.num_left_out:
            notes = [left_out_note(rows.num_left_out), *notes]
        known = self._known_variance(rows.noise_std)
        encoded = Rows(with_offset(self.schema_.encode(columns)[0], offset), target, weight, known)
        return ArraySource(*jax.tree.map(lambda part: part.astype(self.precision), encoded)), notes

    def _opened(self, store: Store, sample_weight, noise_std) -> tuple[Store, list]:
        if sample_weight is not None or noise_std is not None:
            raise ValueError(
                "`sample_weight` and `noise_std` must come with rows in memory, got a table on disk. "
                "Name a column of weights when it is opened: `open_store(..., weights=...)`."
            )
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
        self.background_ = self._some_inputs(source, rows_key)[:, : self.schema_.width].astype(self.precision)
        self.diagnostics_ = diagnose(
            fitted.posterior, fitted.history, self._probes(source), diagnosis_key, kept=self.posterior_
        )
        self.energy_ = energy_trace(fitted.history)
        self.num_rows_ = source.num_rows
        self._session = Session(fitted, fingerprint, settings) if self.warm_start else None

    def _fit_from_scratch(self, source: ArraySource | Store, settings: Settings, key, report) -> Fit:
        likelihood, options = self._likelihood(source), with_columns(settings.options, self.schema_)
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
        settings = identity_of_run(self, source, fingerprint)
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
        """New rows as the model's matrix of inputs `[N D]`; columns are found by name if they have names.

        If counts have an exposure, its logarithm is the last column.
        """
        check_is_fitted(self, "posterior_")
        names = getattr(self, "feature_names_in_", None)
        if isinstance(X, Table) or is_frame(X):
            table = X if isinstance(X, Table) else from_frame(X)
            if names is None and not isinstance(X, Table):  # fitted on an array: by position, and scikit-learn warns
                table = from_array(self._check_array(X, reset=False))
        else:
            table = from_array(self._check_array(X, reset=False), names=None if names is None else list(names))
        columns, offset = self._without_offset(table, is_training=False)
        encoded, notes = self.schema_.encode(columns)
        for note in notes:
            logger.warning(note)
        return with_offset(encoded, offset).astype(self.precision)

    def notes_on(self, table: Table) -> list:
        """What `encode` does to a new table, one sentence each."""
        return self.schema_.encode(self._without_offset(table, is_training=False)[0])[1]

    def _without_offset(self, table: Table, *, is_training: bool) -> tuple[Table, np.ndarray | None]:
        """The columns that are inputs, and an offset of the latent function if there is one."""
        return table, None

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

    # -- what the subclasses know ------------------------------------------------------------------------------

    _task: str
    """`regression` or `classification`."""
    target_names_: tuple[str, ...]
    """Names of the target columns."""

    @abc.abstractmethod
    def _state_of(self, state: TargetState) -> dict[str, Any]:
        """`_target_state` from the targets of a table on disk."""

    @abc.abstractmethod
    def _learn_targets(self, y, num_rows: int, weight: np.ndarray | None) -> np.ndarray:
        """Check y, keep what is needed to return to its units, and return it as `[N P]` for the model."""

    def _weight_of_rows(self, target: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
        """Weight of each row, given the y of `_learn_targets`."""
        return weight

    def _known_variance(self, noise_std: np.ndarray | None) -> np.ndarray | None:
        """Known noise variance `[N P]` in standardised units."""
        assert noise_std is None  # only regressors take it
        return None

    @abc.abstractmethod
    def _likelihood(self, source: ArraySource | Store) -> AbstractLikelihood:
        """The likelihood of a fit, at its start."""

    @abc.abstractmethod
    def _baselines(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> dict[str, Baseline]:
        """Simple models of the same inputs and the y of `_learn_targets`, for comparison."""

    @abc.abstractmethod
    def _target_state(self) -> dict[str, Any]:
        """What `_learn_targets` kept, as JSON."""

    @abc.abstractmethod
    def _set_target_state(self, state: dict[str, Any]) -> None:
        """Take over what `_target_state` returned."""

    # -- files -------------------------------------------------------------------------------------------------

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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
