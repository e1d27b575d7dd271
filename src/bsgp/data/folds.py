"""The authors' train/test splits, and a split that is ready to be fitted."""

import math
from typing import NamedTuple

import numpy as np

from bsgp.checks import check_count
from bsgp.data.standardise import Standardiser

NUM_FOLDS = 8
TEST_SHARE = 0.2


def fold_rows(num_rows: int, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Train and test row numbers of a fold: repeated random hold-outs of a fifth, not a partition."""
    order = np.random.RandomState(check_count("fold", fold, 0)).permutation(num_rows)
    num_test = math.ceil(TEST_SHARE * num_rows)
    return order[num_test:], order[:num_test]


class Split(NamedTuple):
    """Standardised train and test rows, and the units to go back to."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    x_units: Standardiser
    y_units: Standardiser


def split(X: np.ndarray, y: np.ndarray, fold: int, *, full_data_x: bool = False) -> Split:
    """A fold of `X [N D]`, `y [N P]`. `full_data_x` takes the statistics of X from all rows, as the authors did."""
    train, test = fold_rows(X.shape[0], fold)
    x_units = Standardiser.fit(X if full_data_x else X[train])
    y_units = Standardiser.fit(y[train])
    return Split(
        x_units.transform(X[train]),
        y_units.transform(y[train]),
        x_units.transform(X[test]),
        y_units.transform(y[test]),
        x_units,
        y_units,
    )
