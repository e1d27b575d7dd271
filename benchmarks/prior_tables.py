"""Small two-class tables for `prior_study.py`: scikit-learn's own, and simulated ones of known kinds."""

import zlib
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_classification
from sklearn.model_selection import train_test_split

NUM_SIMULATED = 625
NUM_SPLITS = 5

Table = tuple[np.ndarray, np.ndarray]


def _loaded(load: Callable, classes: tuple[int, int] | None, positive: int) -> Table:
    """A table of scikit-learn as one class against another, or against all others."""
    X, y = load(return_X_y=True)
    kept = np.ones(len(y), bool) if classes is None else np.isin(y, classes)
    return X[kept], (y[kept] == positive).astype(float)


def _simulated(name: str, num_inputs: int, score: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Table:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    X = rng.standard_normal((NUM_SIMULATED, num_inputs))
    return X, (score(X, rng) + rng.standard_normal(NUM_SIMULATED) > 0).astype(float)


def _line(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    weights = rng.standard_normal(X.shape[1])
    return 3.0 * X @ weights / np.linalg.norm(weights)


def _waves(X: np.ndarray, rng: np.random.Generator, pace: float = 1.2) -> np.ndarray:
    """A draw from a Gaussian process, about: 200 random cosines on the scale of the inputs."""
    directions = pace * rng.standard_normal((X.shape[1], 200)) / X.shape[1] ** 0.5
    phases, weights = rng.uniform(0, 2 * np.pi, 200), rng.standard_normal(200)
    return 2.5 * np.cos(X @ directions + phases) @ weights * (2 / 200) ** 0.5


def _three_matter(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return _waves(X[:, :3], rng) + 1.5 * X[:, 0]


def _quick_waves(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return _waves(X, rng, pace=1.8)


def _clusters(num_inputs: int, num_informative: int) -> Table:
    X, y = make_classification(
        NUM_SIMULATED, num_inputs, n_informative=num_informative, n_redundant=num_inputs // 5, class_sep=1.0,
        random_state=num_inputs,
    )  # fmt: skip
    return X, y.astype(float)


TABLES: dict[str, Callable[[], Table]] = {
    "breast cancer": lambda: _loaded(load_breast_cancer, None, 1),
    "wine 1 or another": lambda: _loaded(load_wine, None, 1),
    "iris 1 or 2": lambda: _loaded(load_iris, (1, 2), 2),
    "line, 5 inputs": lambda: _simulated("line, 5 inputs", 5, _line),
    "line, 10 inputs": lambda: _simulated("line, 10 inputs", 10, _line),
    "line, 30 inputs": lambda: _simulated("line, 30 inputs", 30, _line),
    "line, 60 inputs": lambda: _simulated("line, 60 inputs", 60, _line),
    "waves, 2 inputs": lambda: _simulated("waves, 2 inputs", 2, _waves),
    "waves, 5 inputs": lambda: _simulated("waves, 5 inputs", 5, _waves),
    "quick waves, 3 inputs": lambda: _simulated("quick waves, 3 inputs", 3, _quick_waves),
    "quick waves, 8 inputs": lambda: _simulated("quick waves, 8 inputs", 8, _quick_waves),
    "3 of 10 matter": lambda: _simulated("3 of 10 matter", 10, _three_matter),
    "3 of 30 matter": lambda: _simulated("3 of 30 matter", 30, _three_matter),
    "clusters, 10 inputs": lambda: _clusters(10, 5),
    "clusters, 30 inputs": lambda: _clusters(30, 8),
    "clusters, 60 inputs": lambda: _clusters(60, 10),
}


def training_and_test(name: str, split: int) -> tuple[Table, Table]:
    """Training rows and test rows (a fifth) of one of `NUM_SPLITS` splits."""
    X, y = TABLES[name]()
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=split, stratify=y)
    return (X, y), (X_test, y_test)


def fitting_and_validation(name: str, split: int, most: int) -> tuple[Table, Table]:
    """Two thirds of the training rows of a split, but at most `most`, and the others. Test rows are left out."""
    (X, y), _ = training_and_test(name, split)
    num_fitted = min(most, 2 * len(X) // 3)
    X, X_held, y, y_held = train_test_split(X, y, train_size=num_fitted, random_state=split, stratify=y)
    return (X, y), (X_held, y_held)
