"""Predictions as columns of a table."""

import numpy as np

from bsgp.data.tables.columns import Table
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.classifier import BSGPClassifier
from bsgp.estimators.regressor import BSGPRegressor

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def prediction_columns(model: BSGPEstimator, X: Table, chunk: int = 0) -> dict[str, np.ndarray]:
    """`mean, std, q05, q50, q95`, with the target's name in front if there are several; or `p_<class>` and `label`.

    `chunk` is the number of these rows' chunk in a larger table.
    """
    key, inputs = model.key_of_chunk(chunk), model.encode(X)
    if isinstance(model, BSGPClassifier):
        return _class_columns(model.classes_, model.probabilities_at(inputs, key))
    assert isinstance(model, BSGPRegressor)  # for the type checker
    mean, variance = model.posterior_.predict(inputs, key)
    centre, scale = model.target_mean, model.target_scale
    mean, std = mean * scale + centre, np.sqrt(variance) * scale
    quantiles = model.posterior_.quantiles(inputs, list(LEVELS.values()), key) * scale[:, None] + centre[:, None]
    columns = {}
    for index, name in enumerate(model.target_names_):
        prefix = f"{name}_" if len(model.target_names_) > 1 else ""
        columns[f"{prefix}mean"], columns[f"{prefix}std"] = mean[:, index], std[:, index]
        columns |= {f"{prefix}{level}": quantiles[:, index, k] for k, level in enumerate(LEVELS)}
    return columns


def _class_columns(classes: np.ndarray, probability: np.ndarray) -> dict[str, np.ndarray]:
    columns = {f"p_{label}": probability[:, index] for index, label in enumerate(classes)}
    return {**columns, "label": classes[np.argmax(probability, axis=1)]}
