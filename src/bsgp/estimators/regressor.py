"""Regression: means, quantiles, densities and draws in the units of the targets."""

from typing import Any

import jax.random as jr
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array

from bsgp.baselines import regression_baselines
from bsgp.data.standardise import Standardiser
from bsgp.estimators.base import BSGPEstimator, target_names
from bsgp.likelihoods import gaussian


class BSGPRegressor(RegressorMixin, BSGPEstimator):
    """Regression with a fully Bayesian sparse or deep Gaussian process; one target or several.

    Inputs may be numbers, booleans or categories, with missing values; inputs and targets are scaled inside.

    Parameters
    ----------
    method : how u, Z and the kernel parameters are treated; `bsgp methods` lists them.
    depth : layers of the Gaussian process.
    num_inducing : inducing points; None lets the recipe choose.
    num_chains : Markov chains, of methods that sample. Two or more make the convergence diagnostics sharper.
    objective : "fitc" or "vfe", of bsgp and its ablations; others have their own.
    inducing_prior : "normal", "determinantal", "strauss", "uniform" or "strauss-hard", of bsgp and its ablations;
        None is normal, around cluster centres of the inputs where there are many rows of classes.
    likelihood_power : below 1 the data count for fewer rows than they are and the posterior is wider, above 1 for
        more; of methods that write checkpoints.
    recipe : "default", or "paper" for what the authors did; of bsgp and its ablations.
    effort : multiplies the number of updates.
    max_seconds : stop then, and predict with what there is by that time.
    mesh : devices to spread the chains and their minibatches over, "CHAINSxDATA"; of methods that write checkpoints.
    n_jobs : chains at a time, each in a process of its own, by joblib and whatever backend is set for it; None or 1
        keeps them in this process.
    precision : "float64" or "float32".
    warm_start : whether another `fit` on the same data adds draws to those that there are.
    checkpoint : folder in which the run is kept as it goes, until the model is saved; None keeps nothing.
    checkpoint_seconds : from one checkpoint to the next.
    resume : whether to go on with the run in `checkpoint`: the draws are those of a run that never stopped.
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

    _task = "regression"

    def _state_of(self, state):
        mean, scale = list(state.mean), list(state.scale)
        return {"names": list(state.names), "mean": mean, "scale": scale, "is_flat": len(state.names) == 1}

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
        self.target_names_ = target_names(y, array.shape[1])
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
