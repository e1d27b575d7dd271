"""Predictions as columns of a table."""

import numpy as np
from jaxtyping import Array

from bsgp.data.tables.columns import Table
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.classifier import BSGPClassifier, of_all_classes
from bsgp.estimators.regressor import BSGPRegressor
from bsgp.models.linalg.numerics import Marginals

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def prediction_columns(
    model: BSGPEstimator, X: Table, chunk: int = 0, *, has_parts: bool = False
) -> dict[str, np.ndarray]:
    """`mean, std, q05, q50, q95`, with the target's name in front if there are several; or `p_<class>` and `label`.

    Then `extrapolation`. With `has_parts`, the doubt is split into columns `epistemic` and `aleatoric`: standard
    deviations of each target, or entropies of the class. `chunk` is the number of these rows' chunk in a larger table.
    """
    key, inputs = model.key_of_chunk(chunk), model.encode(X)
    predicted, extrapolation = model.posterior_.predict_and_extrapolation(inputs, key)
    of_targets = _class_columns if isinstance(model, BSGPClassifier) else _target_columns
    columns = of_targets(model, inputs, key, predicted, has_parts)
    return {**columns, "extrapolation": extrapolation}


def _target_columns(
    model: BSGPEstimator, inputs: np.ndarray, key: Array, predicted: Marginals, has_parts: bool
) -> dict[str, np.ndarray]:
    assert isinstance(model, BSGPRegressor)  # for the type checker
    posterior, centre, scale = model.posterior_, model.target_mean, model.target_scale
    found = {"mean": predicted.mean * scale + centre, "std": np.sqrt(predicted.variance) * scale}
    if has_parts:
        _, epistemic, aleatoric = posterior.variance_parts(inputs, key)
        found |= {"epistemic": np.sqrt(epistemic) * scale, "aleatoric": np.sqrt(aleatoric) * scale}
    quantiles = posterior.quantiles(inputs, list(LEVELS.values()), key) * scale[:, None] + centre[:, None]
    found |= {level: quantiles[:, :, k] for k, level in enumerate(LEVELS)}
    prefixes = [f"{name}_" if len(model.target_names_) > 1 else "" for name in model.target_names_]
    return {f"{prefix}{name}": values[:, k] for k, prefix in enumerate(prefixes) for name, values in found.items()}


def _class_columns(
    model: BSGPEstimator, inputs: np.ndarray, key: Array, predicted: Marginals, has_parts: bool
) -> dict[str, np.ndarray]:
    assert isinstance(model, BSGPClassifier)  # for the type checker
    probability = of_all_classes(predicted.mean)
    columns = {f"p_{label}": probability[:, index] for index, label in enumerate(model.classes_)}
    columns["label"] = model.classes_[np.argmax(probability, axis=1)]
    if has_parts:
        entropy = model.posterior_.entropy_parts(inputs, key)
        columns |= {"epistemic": entropy.epistemic, "aleatoric": entropy.aleatoric}
    return columns
