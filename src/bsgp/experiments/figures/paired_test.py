"""Tests of paired scores over folds, and their correction for the number of cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np

MIN_FOLDS = 5


def paired_p_value(differences: np.ndarray) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test. None with fewer than five folds, or without a difference."""
    from scipy.stats import wilcoxon

    if differences.size < MIN_FOLDS or not np.isfinite(differences).all() or not differences.any():
        return None
    result: Any = wilcoxon(differences)  # SciPy's annotations lack its attributes
    return float(result.pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values after Holm's correction over all cells that were tested; None stays None."""
    tested = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        corrected[place] = largest
    return corrected
