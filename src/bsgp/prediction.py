"""Predictions as columns of a table."""

import numpy as np

from bsgp.data.tables import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def prediction_columns(model: BSGPRegressor | BSGPClassifier, X: Table) -> dict[str, np.ndarray]:
    """`mean, std, q05, q50, q95`, behind the target's name if there are several; or `p_<class>` and `label`."""
    if isinstance(model, BSGPClassifier):
        probability = model.predict_proba(X)
        columns = {f"p_{label}": probability[:, index] for index, label in enumerate(model.classes_)}
        return {**columns, "label": model.classes_[np.argmax(probability, axis=1)]}
    names = model.target_names_
    shape = (X.num_rows, len(names))
    mean, std = (np.reshape(part, shape) for part in model.predict(X, return_std=True))
    quantiles = np.reshape(model.predict_quantiles(X, list(LEVELS.values())), (*shape, len(LEVELS)))
    columns = {}
    for index, name in enumerate(names):
        prefix = f"{name}_" if len(names) > 1 else ""
        columns[f"{prefix}mean"], columns[f"{prefix}std"] = mean[:, index], std[:, index]
        columns |= {f"{prefix}{level}": quantiles[:, index, k] for k, level in enumerate(LEVELS)}
    return columns
