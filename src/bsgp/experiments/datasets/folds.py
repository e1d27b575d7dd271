"""The authors' train/test splits, and standardised splits of a table."""

import math
from typing import NamedTuple

import numpy as np

from bsgp.data.encoding.standardise import Standardiser
from bsgp.runtime.checks import check_count

TEST_SHARE = 0.2


def fold_rows(num_rows: int, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test row numbers of a fold. Folds are independent random hold-outs of a fifth, not a partition."""
    order = np.random.RandomState(check_count("fold", fold, 0)).permutation(num_rows)
    num_test = num_rows - num_train_rows(num_rows)
    return order[num_test:], order[:num_test]


def num_train_rows(num_rows: int) -> int:
    """Number of training rows in every fold."""
    return num_rows - math.ceil(TEST_SHARE * num_rows)


class Split(NamedTuple):
    """Standardised training and test rows, and the original units."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    x_units: Standardiser
    y_units: Standardiser


def split(X: np.ndarray, y: np.ndarray, fold: int, *, full_data_x: bool = False) -> Split:
    """Split `X [N D]` and `y [N P]`. With `full_data_x` all rows give the statistics of X, as the authors did."""
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
