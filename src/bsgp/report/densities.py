"""Predictive densities of a few test rows, for noise whose shape a mean and an interval do not tell."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from bsgp.data.tables.columns import Table
from bsgp.estimators import BSGPRegressor
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.posterior.posterior import evenly_spaced

NUM_ROWS = 5
NUM_GRID = 121
REACH = 3.5
"""Width of the grid on either side of the mean, in predictive standard deviations."""


@dataclass(frozen=True)
class RowDensity:
    """The predictive density of one test row."""

    at: np.ndarray
    """Values of the target, or the whole numbers that it can be."""
    density: np.ndarray
    """Density there, or probability of each number."""
    actual: float
    """The true value."""


def row_densities(model: BSGPRegressor, X: Table, y: np.ndarray, target: int) -> tuple[RowDensity, ...]:
    """Densities of rows whose predictions are spread over their range, smallest first; none under Gaussian noise."""
    likelihood = model.posterior_.model.likelihood
    if isinstance(likelihood, Gaussian):
        return ()
    mean, sd = (np.reshape(one, (X.num_rows, -1))[:, target] for one in model.predict(X, return_std=True))
    order = np.argsort(mean, kind="stable")
    rows = order[evenly_spaced(X.num_rows, NUM_ROWS + 2)][1:-1]  # the first and the last are odd ones
    grids = [_grid(likelihood, float(mean[row]), float(sd[row])) for row in rows]
    size = max(len(grid) for grid in grids)
    # rows of one table, each repeated for every value of its grid: one program serves all of them
    repeated = X.take(np.repeat(rows, size))
    values = y[np.repeat(rows, size)].astype(np.float64)
    values[:, target] = np.concatenate([np.pad(grid, (0, size - len(grid)), mode="edge") for grid in grids])
    found = np.reshape(model.log_density(repeated, values if values.shape[1] > 1 else values[:, 0]), values.shape)
    density = np.exp(found[:, target]).reshape(len(rows), size)
    return tuple(
        RowDensity(grid, one[: len(grid)], float(y[row, target]))
        for row, grid, one in zip(rows, grids, density, strict=True)
    )


def _grid(likelihood, mean: float, sd: float) -> np.ndarray:
    even = np.linspace(mean - REACH * sd, mean + REACH * sd, NUM_GRID)
    return np.unique(np.asarray(likelihood.nearest(jnp.asarray(even)))) if likelihood.is_discrete else even
