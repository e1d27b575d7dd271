"""Weights of classes, as scikit-learn defines them, and how they become weights of rows."""

from typing import Any

import numpy as np

from bsgp.data.tables.columns import quoted


def weights_of_classes(class_weight: Any, classes: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weight of each class, `[K]`, given the class and the weight of each row.

    "balanced" is `N / (K N_k)` with N rows, K classes and N_k rows of class k, where a row of weight 2 is two rows. A
    dict has the weights of some classes; those of the others are 1.
    """
    if isinstance(class_weight, dict):
        return _from_dict(class_weight, classes)
    if class_weight != "balanced":
        raise ValueError(
            f"`class_weight` must be None, 'balanced' or a dict of weights by class, got {class_weight!r}. "
            "Choose one of them."
        )
    counts = np.bincount(codes, weight, minlength=len(classes))
    return counts.sum() / (len(classes) * counts)


def as_pairs(class_weight: dict) -> list[list]:
    """Labels and weights as JSON can hold them; its objects have text keys only."""
    return [[label.item() if isinstance(label, np.generic) else label, one] for label, one in class_weight.items()]


def _from_dict(class_weight: dict, classes: np.ndarray) -> np.ndarray:
    given = {label: float(one) for label, one in class_weight.items()}
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    if unknown:
        raise ValueError(
            f"`class_weight` must name classes of `y`, {quoted(known)}, got {quoted(unknown)}. Leave them out."
        )
    bad = [label for label, one in given.items() if not (np.isfinite(one) and one > 0)]
    if bad:
        raise ValueError(
            f"`class_weight` must be above zero, got {given[bad[0]]:g} for {quoted([bad[0]])}. "
            "Leave out the rows of a class that should not count."
        )
    return np.array([given.get(label, 1.0) for label in known])
