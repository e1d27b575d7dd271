"""Predictions as columns of a table."""

import numpy as np
from jaxtyping import Array

from bsgp.data.tables.columns import Table
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.classifier import BSGPClassifier
from bsgp.estimators.regressor import BSGPRegressor

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def prediction_columns(
    model: BSGPEstimator, X: Table, chunk: int = 0, *, has_parts: bool = False
) -> dict[str, np.ndarray]:
    """`mean, std, q05, q50, q95`, with the target's name in front if there are several; or `p_<class>` and `label`.

    Then `extrapolation`. With `has_parts`, the doubt is split into columns `epistemic` and `aleatoric`: standard
    deviations of each target, or entropies of the class. `chunk` is the number of these rows' chunk in a larger table.
    """
    key, inputs = model.key_of_chunk(chunk), model.encode(X)
    of_targets = _class_columns if isinstance(model, BSGPClassifier) else _target_columns
    columns = of_targets(model, inputs, key, has_parts)
    return {**columns, "extrapolation": model.posterior_.extrapolation(inputs, key)}


def _target_columns(model: BSGPEstimator, inputs: np.ndarray, key: Array, has_parts: bool) -> dict[str, np.ndarray]:
    assert isinstance(model, BSGPRegressor)  # for the type checker
    posterior, centre, scale = model.posterior_, model.target_mean, model.target_scale
    mean, *variances = posterior.variance_parts(inputs, key) if has_parts else posterior.predict(inputs, key)
    of_all = [np.sqrt(sum(variances)), *(np.sqrt(one) for one in variances if has_parts)]
    deviations = dict(zip(("std", "epistemic", "aleatoric"), (one * scale for one in of_all), strict=False))
    quantiles = posterior.quantiles(inputs, list(LEVELS.values()), key) * scale[:, None] + centre[:, None]
    found = {"mean": mean * scale + centre, **deviations}
    found |= {level: quantiles[:, :, k] for k, level in enumerate(LEVELS)}
    prefixes = [f"{name}_" if len(model.target_names_) > 1 else "" for name in model.target_names_]
    return {f"{prefix}{name}": values[:, k] for k, prefix in enumerate(prefixes) for name, values in found.items()}


def _class_columns(model: BSGPEstimator, inputs: np.ndarray, key: Array, has_parts: bool) -> dict[str, np.ndarray]:
    assert isinstance(model, BSGPClassifier)  # for the type checker
    probability = model.probabilities_at(inputs, key)
    columns = {f"p_{label}": probability[:, index] for index, label in enumerate(model.classes_)}
    columns["label"] = model.classes_[np.argmax(probability, axis=1)]
    if has_parts:
        entropy = model.posterior_.entropy_parts(inputs, key)
        columns |= {"epistemic": entropy.epistemic, "aleatoric": entropy.aleatoric}
    return columns
