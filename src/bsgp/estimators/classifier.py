"""Classification: probabilities of classes of any label."""

import jax.random as jr
import numpy as np
from jaxtyping import Array
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bsgp.data.encoding.targets import Targets
from bsgp.data.tables.columns import quoted
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.baselines import class_baselines
from bsgp.estimators.class_weights import weights_of_classes
from bsgp.estimators.parameters import adds_to
from bsgp.estimators.training_rows import target_names
from bsgp.models.likelihoods.classes import Bernoulli, Categorical
from bsgp.posterior.results import Entropies


class BSGPClassifier(ClassifierMixin, BSGPEstimator):
    """Classification with a fully Bayesian sparse or deep Gaussian process; two classes or more, of any label.

    Parameters and attributes are those of `BSGPRegressor`, and these.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Weights of classes, which multiply the weights of rows. "balanced": the same total weight for every class,
        `N / (K N_k)` with N rows, K classes and N_k rows of class k, where a row of weight 2 is two rows. A dict may
        leave out classes of weight 1. They change the posterior, not only the decision: probabilities are then those of
        a population with such shares.

    Attributes
    ----------
    classes_ : array
        The labels in order.
    """

    @adds_to(BSGPEstimator.__init__)
    def __init__(self, *, class_weight=None, **parameters):
        super().__init__(**parameters)
        self.class_weight = class_weight

    def predict_proba(self, X) -> np.ndarray:
        """Probability of each class, in the order of `classes_`, `[N K]`."""
        return self.probabilities_at(self.encode(X), self.key_of_chunk())

    def probabilities_at(self, inputs: np.ndarray, key) -> np.ndarray:
        """`predict_proba` of encoded rows `[N D]`."""
        return of_all_classes(self.posterior_.predict(inputs, key).mean)

    def predict_entropy(self, X) -> Entropies:
        """Doubt about the class of each row, in nats: `total`, and its parts `epistemic` and `aleatoric`, each `[N]`.

        `total` is the entropy of `predict_proba`: 0 if the class is certain, log K if all K classes are as likely. The
        epistemic part, which more data would reduce, is the mutual information between the class and the model: draws
        disagree. The aleatoric part, which they would not, is the mean entropy given a model: classes overlap.
        """
        return self.posterior_.entropy_parts(self.encode(X), self.key_of_chunk())

    def predict_log_proba(self, X) -> np.ndarray:
        return np.log(self.predict_proba(X))

    def predict(self, X) -> np.ndarray:
        """The most probable class."""
        probability = self.predict_proba(X)
        return self.classes_[np.argmax(probability, axis=1)]

    def log_density(self, X, y) -> np.ndarray:
        """Log probability of the labels `y`, per row."""
        inputs, codes = self.encode(X), self.codes(y)
        return self.posterior_.log_probabilities(inputs, self.key_of_chunk())[np.arange(len(codes)), codes]

    def sample_y(self, X, n_samples: int = 1, random_state=0) -> np.ndarray:
        """Labels drawn at all rows together, `[N n_samples]`."""
        inputs = self.encode(X)
        key = jr.key(int(check_random_state(random_state).randint(2**31 - 1)))
        drawn = self.posterior_.sample(inputs, key, n_samples)[:, :, 0]
        return self.classes_[drawn.T.astype(int)]

    # -- inside ------------------------------------------------------------------------------------------------

    _task = "classification"

    def _state_of(self, state):
        labels = state.labels
        return {"names": list(state.names), "classes": labels.tolist(), "dtype": labels.dtype.str}

    def _opened(self, store, sample_weight, noise_std):
        if self.class_weight is not None:
            raise ValueError(
                "`class_weight` must come with rows in memory, got a table on disk. "
                "Name a column of weights when it is opened: `open_store(..., weights=...)`."
            )
        return super()._opened(store, sample_weight, noise_std)

    def codes(self, y) -> np.ndarray:
        """Labels as numbers 0 to K - 1."""
        labels = column_or_1d(y)
        codes = np.searchsorted(self.classes_, labels)
        known = codes < len(self.classes_)
        known[known] = self.classes_[codes[known]] == labels[known]
        if not known.all():
            raise ValueError(
                f"`y` must hold the classes {quoted(self.classes_.tolist())}, got {quoted([labels[~known][0]])} in row "
                f"{int(np.argmin(known)) + 1}. Leave such rows out."
            )
        return codes

    def _learn_targets(self, y, num_rows, weight):
        self.target_names_ = target_names(y, 1)
        labels = y.training_values(self._task) if isinstance(y, Targets) else column_or_1d(y, warn=True)
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError("Input y contains NaN or infinity. Fill or drop these rows.")
        check_classification_targets(labels)
        if len(labels) != num_rows:
            raise ValueError(f"`y` must have one row per row of `X`, {num_rows}, got {len(labels)}. Align the two.")
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"`y` must hold at least two classes, got one class only: {quoted(self.classes_.tolist())}. "
                "Pass rows of others."
            )
        return codes[:, None].astype(np.float64)

    def _weight_of_rows(self, target, weight):
        if self.class_weight is None:
            return weight
        codes, weight = target[:, 0].astype(int), np.ones(len(target)) if weight is None else weight
        return weight * weights_of_classes(self.class_weight, self.classes_, codes, weight)[codes]

    def _likelihood(self, source):
        if self.likelihood is not None:
            return self.likelihood
        return Bernoulli() if len(self.classes_) == 2 else Categorical(len(self.classes_))

    def _baselines(self, X, y, weight):
        return dict(class_baselines(X, y[:, 0].astype(int), len(self.classes_), weight))

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


def of_all_classes(mean: Array | np.ndarray) -> np.ndarray:
    """Probability of each class, `[N K]`, from the posterior's mean of y."""
    probability = np.asarray(mean, np.float64)
    if probability.shape[1] == 1:  # of two classes the model predicts the second
        return np.concatenate([1.0 - probability, probability], axis=1)
    return probability / probability.sum(axis=1, keepdims=True)
