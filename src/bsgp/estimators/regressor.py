"""Regression: means, quantiles, densities and draws in the units of the targets."""

from typing import Any

import jax.random as jr
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array

from bsgp.data.encoding.standardise import Standardiser
from bsgp.data.encoding.targets import Targets
from bsgp.data.store.sources import ArraySource
from bsgp.data.store.store import Store
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.baselines import regression_baselines
from bsgp.estimators.exposure import exposure_name, without_exposure
from bsgp.estimators.parameters import adds_to
from bsgp.estimators.training_rows import checked_noise_std, known_variance, target_names
from bsgp.models.likelihoods.noises import NOISES, Noise, TrainingTargets


class BSGPRegressor(RegressorMixin, BSGPEstimator):
    """Regression with a fully Bayesian sparse or deep Gaussian process; one target or several.

    Inputs may be numbers, booleans or categories, with missing values; inputs and targets are scaled inside.

    Parameters
    ----------
    method : str
        How u, Z and the kernel parameters are treated; `bsgp methods` lists the choices.
    depth : int
        Number of layers.
    kernel : str, bsgp.models.AbstractKernel, function or None
        Kernel in words, such as "linear + rbf" or "rbf(age, income) * periodic(12)(month)": sums and products of "rbf",
        "matern12", "matern32", "matern52", "rational-quadratic", "linear" and "periodic", each of all columns or of
        those that it names; the guide has the grammar. A kernel of `bsgp.models` is for the encoded inputs of the first
        layer, a function `(num_dims, dtype) -> kernel` makes one for every layer. None: "rbf".
    num_inducing : int or None
        Number of inducing points. None: the recipe's choice.
    num_chains : int or None
        Number of Markov chains, for methods that sample. They run side by side on the available cores, and their
        draws do not depend on how many that is. None: four, which a grade of "converged" needs.
    objective : str
        "fitc", "vfe" or "tighter-vfe". Only bsgp and its ablations have a choice.
    inducing_prior : str or None
        Prior on the inducing inputs: "normal", "determinantal", "strauss", "uniform" or "strauss-hard". None: normal,
        or, for classes with many rows, centred on cluster centres of the inputs. Only bsgp and its ablations use it.
    noise : str or None
        Kind of noise: "gaussian" (None), "student" for outliers, "heteroskedastic" for a scale that varies, "mixture"
        for any shape; "poisson" or "negative-binomial" for counts; "ordinal" for ordered levels. For counts and levels
        targets are not standardised; `predict` returns the mean count or the mean of the levels' numbers.
    likelihood : bsgp.models.AbstractLikelihood or None
        A likelihood of your own, instead of a noise by name. Targets are standardised if it `has_units`.
    exposure : str, int or None
        Column of X with the exposure of each row, for counts: hours, persons, area. The mean count is proportional to
        it. It is no input. New tables may leave it out: their predictions are for an exposure of 1.
    likelihood_power : float
        Power of the likelihood. Below 1 every row counts for less, and the posterior is wider.
    recipe : str
        "default", or "paper" for the authors' own settings. Only bsgp and its ablations use it.
    effort : float
        Factor on the number of updates.
    thinning : int or None
        Updates from one draw to the next, for bsgp, its ablations and sghmc-dgp. None: the recipe's choice.
    max_seconds : float or None
        Stop after this many seconds and keep the draws made so far.
    mesh : str or None
        Devices for chains and shares of each minibatch, "CHAINSxDATA", such as "2x1". None: one device.
    n_jobs : int or None
        Chains at a time, each in its own process, by joblib and whichever backend is set for it. None or 1: all in
        this process.
    precision : str
        "float64" or "float32".
    warm_start : bool
        Whether another `fit` on the same data adds draws to those of the last one.
    checkpoint : path or None
        Folder in which an unfinished run is kept until the model is saved. None: nowhere.
    checkpoint_seconds : float
        Seconds from one checkpoint to the next.
    resume : bool
        Whether to resume the run in `checkpoint`, bit for bit as if it had never stopped.
    verbose : bool
        Whether to show a progress bar, on a terminal.
    random_state : int, generator or None
        Seed.

    Attributes
    ----------
    posterior_ : bsgp.Posterior
        Draws, in standardised units.
    diagnostics_ : bsgp.estimators.diagnostics.Diagnostics
        R-hat, effective draws, a grade ("converged", "usable", "not converged", "not sampled") and a verdict in words.
        `fit` emits scikit-learn's `ConvergenceWarning` if the chains have not converged.
    notes_ : tuple of str
        What was done to the table, one sentence each.
    schema_ : bsgp.data.encoding.schema.InputSchema
        How columns became inputs.
    """

    @adds_to(BSGPEstimator.__init__)
    def __init__(self, *, noise=None, exposure=None, **parameters):
        super().__init__(**parameters)
        self.noise = noise
        self.exposure = exposure

    def fit(self, X, y=None, sample_weight=None, noise_std=None):
        """Draw from the posterior given a table `X` (DataFrame, array) and its targets `y`.

        The log likelihood of a row counts `sample_weight` times: a weight of 2 is the row twice, also for how inputs
        and targets are scaled. A fractional weight is a power of the row's likelihood. Rows of weight zero are as if
        absent.

        `noise_std` is the known standard deviation of each row's measurement, in the units of `y` and of its shape. The
        variance of a row is `noise_std ** 2` plus a noise variance that is learned.

        `X` may also be a table on disk opened by `bsgp.open_store`, which holds its targets and weights. After
        thousands of fits in one process, JAX's compiled programs are released before the system's limit of memory maps
        is reached.
        """
        return self._fit(X, y, sample_weight, noise_std)

    # `noise_std` of the methods below, in the units of y and of its shape, is the known noise of new measurements. By
    # default it is none, also after a fit with known noise: new measurements need not be as noisy as the old ones.

    def predict(self, X, return_std: bool | str = False, noise_std=None):
        """Mean of the predictive distribution, and its standard deviation if asked for.

        With `return_std="parts"` two standard deviations follow the mean: the epistemic one, which more data would
        reduce (spread of the function over the posterior), and the aleatoric one, which they would not (the noise).
        Their squares add up to that of `return_std=True`.

        `noise_std` is the known part of the noise of new measurements; without it, they have the learned noise only.
        """
        if isinstance(return_std, str):
            return self._mean_and_parts(X, return_std, noise_std)
        inputs = self.encode(X)
        mean, variance = self.posterior_.predict(inputs, self.key_of_chunk(), self._known_at(inputs, noise_std))
        mean = self._shaped(self._units.inverse(np.asarray(mean)))
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(variance) * self._units.scale)

    def predict_quantiles(self, X, levels=(0.05, 0.5, 0.95), noise_std=None) -> np.ndarray:
        """Quantiles of the predictive distribution: `[N Q]`, or `[N P Q]` for several targets."""
        inputs = self.encode(X)
        known = self._known_at(inputs, noise_std)
        quantiles = self.posterior_.quantiles(inputs, levels, self.key_of_chunk(), known)
        return self._shaped(quantiles * self._units.scale[:, None] + self._units.mean[:, None])

    def predict_interval(self, X, level: float = 0.9, noise_std=None) -> np.ndarray:
        """Central interval that holds `y` with probability `level`: `[N 2]`, or `[N P 2]` for several targets."""
        if not 0 < level < 1:
            raise ValueError(f"`level` must lie between 0 and 1, got {level}. Pass for instance 0.9.")
        return self.predict_quantiles(X, [0.5 - 0.5 * level, 0.5 + 0.5 * level], noise_std)

    def log_density(self, X, y, noise_std=None) -> np.ndarray:
        """Log predictive density of `y`, per row, and per target if there are several."""
        inputs = self.encode(X)
        y = self._standardised(y, inputs.shape[0])
        known = self._known_at(inputs, noise_std)
        log_density = self.posterior_.log_density(inputs, y, self.key_of_chunk(), known)
        return self._shaped(log_density - np.log(self._units.scale))

    def cdf(self, X, y, noise_std=None) -> np.ndarray:
        """`P(Y <= y)`, per row, and per target if there are several: uniform if predictions are calibrated."""
        inputs = self.encode(X)
        y, known = self._standardised(y, inputs.shape[0]), self._known_at(inputs, noise_std)
        return self._shaped(self.posterior_.cdf(inputs, y, self.key_of_chunk(), known))

    def crps(self, X, y, noise_std=None) -> np.ndarray:
        """Continuous ranked probability score in the units of y, per row, and per target if there are several."""
        inputs = self.encode(X)
        y, known = self._standardised(y, inputs.shape[0]), self._known_at(inputs, noise_std)
        standardised = self.posterior_.crps(inputs, y, self.key_of_chunk(), known)
        return self._shaped(standardised * self._units.scale)

    @property
    def target_mean(self) -> np.ndarray:
        """What is subtracted from each target, `[P]`: its mean in training, or 0 for counts and levels."""
        return self._units.mean

    @property
    def target_scale(self) -> np.ndarray:
        """What each target is divided by, `[P]`: its standard deviation, or 1 for counts and levels."""
        return self._units.scale

    @property
    def target_sd(self) -> np.ndarray:
        """Standard deviation of each target in training, `[P]`."""
        return self._target_sd

    def sample_y(self, X, n_samples: int = 1, random_state=0) -> np.ndarray:
        """Draws of y at all rows together, noise and all: `[N n_samples]`, or `[N P n_samples]`."""
        inputs = self.encode(X)
        key = jr.key(int(check_random_state(random_state).randint(2**31 - 1)))
        drawn = self.posterior_.sample(inputs, key, n_samples)  # [S N P]
        return self._shaped(np.moveaxis(drawn * self._units.scale + self._units.mean, 0, -1))

    # -- inside ------------------------------------------------------------------------------------------------

    _task = "regression"

    def _state_of(self, state):
        mean, scale = list(state.mean), list(state.scale)
        return {"names": list(state.names), "mean": mean, "scale": scale, "is_flat": len(state.names) == 1}

    def _mean_and_parts(self, X, return_std: str, noise_std) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, epistemic and aleatoric standard deviation."""
        if return_std != "parts":
            raise ValueError(f'`return_std` must be False, True or "parts", got {return_std!r}. Choose one of them.')
        inputs = self.encode(X)
        found = self.posterior_.variance_parts(inputs, self.key_of_chunk(), self._known_at(inputs, noise_std))
        deviations = (np.sqrt(part) * self._units.scale for part in (found.epistemic, found.aleatoric))
        mean, epistemic, aleatoric = map(self._shaped, (self._units.inverse(found.mean), *deviations))
        return mean, epistemic, aleatoric

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def _as_targets(self, y, num_rows: int) -> np.ndarray:
        options: dict[str, Any] = {"dtype": np.float64, "ensure_2d": False, "input_name": "y"}
        array = np.asarray(check_array(y, **options))
        array = array.reshape(-1, 1) if array.ndim == 1 else array
        if array.shape[0] != num_rows:
            raise ValueError(f"`y` must have one row per row of `X`, {num_rows}, got {array.shape[0]}. Align the two.")
        return array

    def _learn_targets(self, y, num_rows, weight):
        values = y.training_values(self._task) if isinstance(y, Targets) else y
        array = self._as_targets(values, num_rows)
        self._is_flat = np.asarray(values).ndim == 1
        self.target_names_ = target_names(y, array.shape[1])
        self.n_outputs_ = array.shape[1]
        self._target_sd = Standardiser.fit(array, weight).scale
        self._units = Standardiser.fit(array, weight) if self._has_units else Standardiser.none(array)
        return self._units.transform(array)

    def _standardised(self, y, num_rows: int) -> np.ndarray:
        values = self.posterior_.model.likelihood.check_values(self._as_targets(y, num_rows))
        return self._units.transform(values).astype(self.precision)

    @property
    def _has_units(self) -> bool:
        return self._noise.has_units if self.likelihood is None else self.likelihood.has_units

    @property
    def _noise(self) -> Noise:
        return NOISES[self.noise or "gaussian"]

    def _likelihood(self, source):
        if self.likelihood is not None:
            return self.likelihood
        if not isinstance(source, ArraySource) and not self._noise.has_units:
            raise ValueError(
                f"`noise` must be for standardised targets where rows stay on disk, got {self.noise!r}. "
                "Load the table into memory, or use `mixture`."
            )
        if self.n_outputs_ > 1 and not self._noise.takes_several_targets:
            raise ValueError(
                f"`noise` {self.noise!r} is for one target, got {self.n_outputs_}. Fit one target at a time."
            )
        rows = source.some_rows(2, 0) if isinstance(source, Store) else source.rows
        exposure = None if self.exposure is None else np.exp(rows.X[:, -1])
        return self._noise.start(TrainingTargets(rows.y, self.precision, exposure, rows.weight))

    def _without_offset(self, table, *, is_training):
        if is_training:
            self._exposure_name = exposure_name(table, self.exposure)
        return without_exposure(table, self._exposure_name, is_training=is_training)

    def _known_at(self, inputs: np.ndarray, noise_std) -> np.ndarray | None:
        """Known noise variance of new measurements, `[N P]` in standardised units."""
        return None if noise_std is None else self._known_variance(checked_noise_std(noise_std, inputs.shape[0]))

    def _known_variance(self, noise_std):
        return None if noise_std is None else known_variance(noise_std, self._units.scale)

    def _baselines(self, X, y, weight):
        return dict(regression_baselines(X, self._units.inverse(y), weight))

    def _target_state(self):
        return {
            "names": list(self.target_names_),
            "mean": self._units.mean.tolist(),
            "scale": self._units.scale.tolist(),
            "sd": self._target_sd.tolist(),
            "is_flat": self._is_flat,
            "exposure": self._exposure_name,
        }

    def _set_target_state(self, state):
        self.target_names_ = tuple(state["names"])
        self.n_outputs_ = len(self.target_names_)
        self._units = Standardiser(np.asarray(state["mean"], np.float64), np.asarray(state["scale"], np.float64))
        self._target_sd = np.asarray(state.get("sd", state["scale"]), np.float64)
        self._is_flat = state["is_flat"]
        self._exposure_name = state.get("exposure")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
