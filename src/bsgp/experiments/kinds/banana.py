"""A classifier of the banana data under one prior on its inducing inputs."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from bsgp.experiments.experiment import read_fields

DATASET, METHOD = "banana", "bsgp"
NUM_INDUCING = 20
"""Small enough to tell them apart in a figure. Most of a larger number would have nothing to do and drift away."""
BINS = 60
"""Bins along each side of the grid of probabilities and of the histogram."""
MARGIN = 0.15
"""Margin of the grid on each side, as a share of the range of the data: some inducing inputs lie outside the data."""
NUM_GENERATED = 400
"""Generated rows to train on, and again to test on."""


@dataclass(frozen=True)
class BananaRun:
    """Settings of a classifier under one of the priors in `bsgp.models.inducing_priors`."""

    kind: ClassVar[str] = "banana"
    inducing_prior: str = "normal"
    num_inducing: int = NUM_INDUCING
    seed: int = 0
    scale: float = 1.0
    """Factor on the number of updates of every phase. The number of draws stays the same."""

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        parts = [self.kind, self.inducing_prior, f"M{self.num_inducing}", f"seed{self.seed}"]
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        return "/".join(parts)


Settings = BananaRun


class BananaRows(NamedTuple):
    """Points `[N 2]` and labels `[N 1]`, 0 or 1, to train and to test on, in raw units."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_rows(data_dir: str | os.PathLike | None) -> BananaRows:
    """Read the banana data: the classic 400 training rows, and the other 4,900."""
    from bsgp.experiments.datasets.named import load_named

    data = load_named(DATASET, data_dir)
    is_classic = data.other["gp400"] == 1
    return BananaRows(data.X[is_classic], data.y[is_classic], data.X[~is_classic], data.y[~is_classic])


def generate_rows(seed: int = 0) -> BananaRows:
    """Generate two noisy crescents that reach into each other, for those who do not have the banana data."""
    rng = np.random.default_rng(seed)
    y = np.arange(2 * NUM_GENERATED) % 2
    angle = rng.uniform(0.0, np.pi, len(y))
    side = np.where(y == 0, 1.0, -1.0)
    X = np.stack([np.cos(angle) * side + 0.5 * y, np.sin(angle) * side + 0.4 * y], axis=1) * 1.6
    X = X - X.mean(axis=0) + 0.35 * rng.standard_normal(X.shape)
    train, test = slice(NUM_GENERATED), slice(NUM_GENERATED, None)
    labels = y[:, None].astype(np.float64)
    return BananaRows(X[train], labels[train], X[test], labels[test])


def load_or_generate_rows(data_dir: str | os.PathLike | None) -> tuple[BananaRows, str]:
    """Read the banana data, or generate rows if no folder was named and none was found. Also returns their origin.

    A folder that the user named must have the data.
    """
    try:
        return load_rows(data_dir), "the classic ones of the banana data."
    except ValueError as error:
        if data_dir is not None:
            raise
        return generate_rows(), f"generated, since the banana data were not found. {error}"


def run(settings: BananaRun, data_dir: str | None, report=None) -> dict:
    """Fit the classic 400 rows and score the other 4,900."""
    return fit_rows(settings, load_rows(data_dir), report)


def fit_rows(settings: BananaRun, raw: BananaRows, report=None) -> dict:
    """Fit and score some rows. The record holds everything that the figure needs."""
    import jax
    import jax.random as jr

    from bsgp.data.encoding.standardise import Standardiser
    from bsgp.methods.options import Options
    from bsgp.methods.registry import fit_method
    from bsgp.models.deep_gp import DeepGP
    from bsgp.models.likelihoods.classes import Bernoulli
    from bsgp.posterior.metrics import auc, error_rate

    began, cpu_began = time.monotonic(), time.process_time()
    units = Standardiser.fit(raw.X)
    X, y, X_test, y_test = units.transform(raw.X), raw.y, units.transform(raw.X_test), raw.y_test
    options = Options(
        num_chains=1,
        num_inducing=settings.num_inducing,
        inducing_prior=settings.inducing_prior,
        effort=settings.scale,
    )
    edges = _edges(X)
    with jax.enable_x64(True):
        fit_key, predict_key = jr.split(jr.key(settings.seed))
        fitted = fit_method(METHOD, X, y, Bernoulli(), fit_key, options=options, report=report)
        done, cpu_done = time.monotonic(), time.process_time()
        model = fitted.posterior.model
        assert isinstance(model, DeepGP)  # for the type checker
        Z = np.asarray(model.layers[0].Z).reshape(-1, settings.num_inducing, 2)  # draws of all chains in a row
        # one pass for both: the density of a label is its probability, and at the grid we ask for that of label 1
        rows, labels = np.concatenate([X_test, _centres(edges)]), np.concatenate([y_test, np.ones((BINS**2, 1))])
        log_density = fitted.posterior.log_density(rows, labels, predict_key)
    log_density, grid = log_density[: len(X_test)], np.exp(log_density[len(X_test) :]).reshape(BINS, BINS)
    probability = np.where(y_test == 1, np.exp(log_density), -np.expm1(log_density))
    counts, *_ = np.histogram2d(*Z.reshape(-1, 2).T, bins=edges)
    in_view = _is_inside(Z, edges)
    history = fitted.history
    return {
        **asdict(settings),
        "dataset": DATASET,
        "method": METHOD,
        "depth": 1,
        "num_train": len(X),
        "num_test": len(X_test),
        "num_draws": len(Z),
        "evaluations": history.evaluations,
        "seconds": round(done - began, 2),
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "test_error": error_rate(y_test, probability),
        "test_mnll": float(-np.mean(log_density)),
        "test_auc": auc(y_test[:, 0] == 1, probability[:, 0]),
        "extent": [float(edge) for each in edges for edge in (each[0], each[-1])],
        "probability": np.round(grid, 3).tolist(),  # [up][across], like the pixels of a picture
        "inducing_counts": counts.T.astype(int).tolist(),
        "nearest_neighbour": nearest_neighbour(Z, np.ones_like(in_view)),
        "nearest_neighbour_in_view": nearest_neighbour(Z, in_view),
        "share_in_view": float(in_view.mean()),
        "points": np.round(X, 3).tolist(),
        "labels": y[:, 0].astype(int).tolist(),
        "interrupted": history.interrupted,
        "warnings": list(history.warnings),
    }


def _edges(X: np.ndarray) -> list[np.ndarray]:
    """Edges of the bins along each input: the range of the data with a margin."""
    low, high = X.min(axis=0), X.max(axis=0)
    margin = MARGIN * (high - low)
    return [np.linspace(*ends, BINS + 1) for ends in zip(low - margin, high + margin, strict=True)]


def _centres(edges: Sequence[np.ndarray]) -> np.ndarray:
    """Centres of all bins `[BINS^2 2]`, row by row of a picture."""
    across, up = ((edge[1:] + edge[:-1]) / 2 for edge in edges)
    return np.stack([part.ravel() for part in np.meshgrid(across, up)], axis=1)


def _is_inside(Z: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    low, high = np.asarray([(edge[0], edge[-1]) for edge in edges]).T
    return (np.clip(Z, low, high) == Z).all(axis=-1)


def nearest_neighbour(Z: np.ndarray, is_counted: np.ndarray) -> float | None:
    """Mean distance from an inducing input to the nearest other one of its draw, `Z [S M 2]`.

    Only the inputs that `is_counted [S M]` marks are considered. None if no draw has two of them.
    """
    distance = np.linalg.norm(Z[:, :, None] - Z[:, None], axis=-1)
    is_pair = is_counted[:, :, None] & is_counted[:, None] & ~np.eye(Z.shape[1], dtype=bool)
    nearest = np.where(is_pair, distance, np.inf).min(axis=-1)
    nearest = nearest[np.isfinite(nearest)]
    return float(nearest.mean()) if nearest.size else None


@dataclass(frozen=True)
class BananaRecord:
    """A recorded run, as the figure and the table use it."""

    settings: BananaRun
    num_train: int
    num_test: int
    num_draws: int
    evaluations: int
    test_error: float
    test_mnll: float
    test_auc: float
    extent: tuple[float, float, float, float]
    """Left, right, bottom and top of the grid."""
    probability: np.ndarray
    """Probability of label 1 in each bin, `[up across]`."""
    inducing_counts: np.ndarray
    """Inducing inputs of all draws in each bin, `[up across]`."""
    nearest_neighbour: float
    nearest_neighbour_in_view: float | None
    share_in_view: float
    points: np.ndarray
    """Standardised training points `[N 2]`."""
    labels: np.ndarray

    @classmethod
    def from_record(cls, record: dict) -> "BananaRecord":
        """Read a record of this kind."""
        arrays = {name: np.asarray(record[name]) for name in ("probability", "inducing_counts", "points", "labels")}
        return read_fields(
            cls, record, settings=read_fields(BananaRun, record), extent=tuple(record["extent"]), **arrays
        )
