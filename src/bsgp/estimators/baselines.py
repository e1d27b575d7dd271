"""Baselines that any model must beat: a constant and a linear prediction, fitted with the model and kept with it."""

import warnings
from typing import NamedTuple

import numpy as np

MAX_ROWS = 20_000  # more rows hardly improve a line


class GaussianBaseline(NamedTuple):
    """`y ~ N(X weights + bias, sd^2)`, standardised inputs, targets in their own units."""

    weights: np.ndarray
    bias: np.ndarray
    sd: np.ndarray

    def mean(self, X: np.ndarray) -> np.ndarray:
        return X @ self.weights + self.bias


class ClassBaseline(NamedTuple):
    """`softmax(X weights + bias)` over the classes."""

    weights: np.ndarray
    bias: np.ndarray

    def probability(self, X: np.ndarray) -> np.ndarray:
        from scipy.special import softmax

        return softmax(X @ self.weights + self.bias, axis=1)


Baseline = GaussianBaseline | ClassBaseline


def regression_baselines(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> dict[str, GaussianBaseline]:
    """Constant and linear baselines of standardised `X [N D]` and raw `y [N P]`; weights count relative to their mean.

    Hence they depend on how rows compare, and not on the unit of the weights.
    """
    from sklearn.linear_model import Ridge

    X, y, weight = X[:MAX_ROWS], y[:MAX_ROWS], None if weight is None else relative(weight[:MAX_ROWS])
    num_rows, num_inputs = X.shape
    ridge = Ridge(alpha=1.0).fit(X, y, sample_weight=weight)  # a touch of shrinkage: one-hot columns are collinear
    residual = y - ridge.predict(X).reshape(y.shape)
    squares = residual**2 if weight is None else weight[:, None] * residual**2
    freedom = max(num_rows - num_inputs - 1, 1)
    mean = y.mean(axis=0) if weight is None else np.average(y, axis=0, weights=weight)
    spread = y.std(axis=0) if weight is None else np.sqrt(np.average((y - mean) ** 2, axis=0, weights=weight))
    sd = np.maximum(np.sqrt(np.sum(squares, axis=0) / freedom), 1e-6 * spread)
    weights = np.asarray(ridge.coef_).reshape(y.shape[1], num_inputs).T
    nothing = np.zeros((num_inputs, y.shape[1]))
    return {
        "constant": GaussianBaseline(nothing, mean, spread),
        "linear": GaussianBaseline(weights, np.atleast_1d(ridge.intercept_), sd),
    }


def relative(weight: np.ndarray) -> np.ndarray:
    """Weights divided by their mean."""
    return weight / weight.mean()


def class_baselines(
    X: np.ndarray, codes: np.ndarray, num_classes: int, weight: np.ndarray | None = None
) -> dict[str, ClassBaseline]:
    """Constant and linear baselines of standardised `X [N D]` and labels 0 to K - 1, with `relative` weights."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weight = None if weight is None else relative(weight)
    counts = np.bincount(codes, weight, minlength=num_classes) + 1.0
    nothing = np.zeros((X.shape[1], num_classes))
    constant = ClassBaseline(nothing, np.log(counts / counts.sum()))
    X, codes, weight = X[:MAX_ROWS], codes[:MAX_ROWS], None if weight is None else weight[:MAX_ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough for a baseline
        fitted = LogisticRegression(max_iter=500).fit(X, codes, sample_weight=weight)
    weights, bias = nothing.copy(), np.full(num_classes, -30.0)  # nearly zero for a class without rows here
    if len(fitted.classes_) == 2:  # scikit-learn keeps one row of weights, for the second class
        weights[:, fitted.classes_[1]] = fitted.coef_[0]
        bias[fitted.classes_] = [0.0, fitted.intercept_[0]]
    else:
        weights[:, fitted.classes_] = fitted.coef_.T
        bias[fitted.classes_] = fitted.intercept_
    return {"constant": constant, "linear": ClassBaseline(weights, bias)}


def to_arrays(baselines: dict[str, Baseline]) -> dict[str, np.ndarray]:
    """Arrays of the baselines under flat names, for storage."""
    return {
        f"baseline/{name}/{field}": value for name, one in baselines.items() for field, value in one._asdict().items()
    }


def from_arrays(arrays: dict[str, np.ndarray]) -> dict[str, Baseline]:
    """The baselines that `to_arrays` wrote, among other arrays."""
    fields: dict[str, dict[str, np.ndarray]] = {}
    for path, value in arrays.items():
        if path.startswith("baseline/"):
            _, name, field = path.split("/")
            fields.setdefault(name, {})[field] = value
    return {name: GaussianBaseline(**one) if "sd" in one else ClassBaseline(**one) for name, one in fields.items()}
