"""Predictions as columns of a table."""

import numpy as np

from bsgp.data.tables import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def prediction_columns(model: BSGPRegressor | BSGPClassifier, X: Table, chunk: int = 0) -> dict[str, np.ndarray]:
    """`mean, std, q05, q50, q95`, behind the target's name if there are several; or `p_<class>` and `label`.

    `chunk` is the place of these rows among those of a larger table.
    """
    key = model.key_of_chunk(chunk)
    inputs = model.encode(X)
    mean, variance = model.posterior_.predict(inputs, key)
    if isinstance(model, BSGPClassifier):
        return _class_columns(model.classes_, np.asarray(mean, np.float64))
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
    """Of two classes the model predicts the second alone."""
    if probability.shape[1] == 1:
        probability = np.concatenate([1.0 - probability, probability], axis=1)
    else:
        probability = probability / probability.sum(axis=1, keepdims=True)
    columns = {f"p_{label}": probability[:, index] for index, label in enumerate(classes)}
    return {**columns, "label": classes[np.argmax(probability, axis=1)]}
