"""A run on a large data set of two classes."""

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bsgp.experiments.experiment import read_fields
from bsgp.experiments.kinds.shared import MIN_RHAT_DRAWS

if TYPE_CHECKING:
    from bsgp.posterior.posterior import Posterior

TEST_SHARE = 0.1
"""Share of the rows that is held out."""
MAX_TEST_ROWS = {"airline": 100_000}
"""Upper limit of test rows by data set, from the paper. Other sets have no limit."""
MAX_STATISTICS_ROWS = 2_000_000
"""Rows for the mean and scale of X, which are computed in float64. More would not change them."""
NUM_RHAT_ROWS = 500
"""Test rows for R-hat, of which some are traced."""
TRACED = (0.2, 0.5, 0.8)
"""Probabilities near which a test row is traced."""


@dataclass(frozen=True)
class ClassificationRun:
    """Settings of a run on a large data set of two classes."""

    kind: ClassVar[str] = "classification"
    dataset: str
    method: str = "bsgp"
    seed: int = 0
    """Seed of the split and of the fit."""
    num_chains: int = 1
    num_inducing: int = 100
    scale: float = 1.0
    """Factor on the number of updates of every phase. The number of draws stays the same."""
    max_rows: int | None = None
    """Number of training and test rows together, picked at random. None: all rows."""
    thinning: int | None = None
    """Updates between draws. None: the method's own."""
    likelihood_power: float = 1.0
    """Power of the likelihood. A power below 1 down-weights every row."""

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        parts = [self.kind, self.dataset, self.method, f"seed{self.seed}", f"chains{self.num_chains}"]
        if self.num_inducing != 100:
            parts.append(f"M{self.num_inducing}")
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        if self.max_rows is not None:
            parts.append(f"rows{self.max_rows}")
        if self.thinning is not None:
            parts.append(f"thin{self.thinning}")
        if self.likelihood_power != 1.0:
            parts.append(f"power{self.likelihood_power:g}")
        return "/".join(parts)


Settings = ClassificationRun


class LoadedRows(NamedTuple):
    """`X [N D]` and `y [N 1]` in raw units."""

    X: np.ndarray
    y: np.ndarray
    origin: str
    """File that the rows come from: `original` or `staged`."""


def load_rows(dataset: str, data_dir: str | None) -> LoadedRows:
    """Read the original file if the data folder has it, else the staged one."""
    from bsgp.experiments.datasets.named import load_named
    from bsgp.experiments.datasets.originals import load_original

    original = load_original(dataset, data_dir)
    if original is not None:
        return LoadedRows(*original, "original")
    data = load_named(dataset, data_dir)
    return LoadedRows(data.X.astype(np.float32), data.y.astype(np.float32), "staged")


class HeldOut(NamedTuple):
    """Training rows and held-out test rows, X standardised by the training rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def hold_out(rows: LoadedRows, dataset: str, seed: int, max_rows: int | None = None) -> HeldOut:
    """Hold out a random tenth of the rows, or the paper's 100,000 flights."""
    from bsgp.data.encoding.standardise import Standardiser

    order = np.random.RandomState(seed).permutation(len(rows.X))[:max_rows]
    num_test = min(round(TEST_SHARE * len(order)), MAX_TEST_ROWS.get(dataset, len(order)))
    test, train = order[:num_test], order[num_test:]
    # float32 sums of millions of rows lose digits
    units = Standardiser.fit(rows.X[train[:MAX_STATISTICS_ROWS]].astype(np.float64))
    units = Standardiser(*(part.astype(rows.X.dtype) for part in units))
    return HeldOut(units.transform(rows.X[train]), rows.y[train], units.transform(rows.X[test]), rows.y[test])


def run(settings: ClassificationRun, data_dir: str | None, report=None) -> dict:
    """Fit and score. The record becomes one JSON line of the results."""
    import jax
    import jax.random as jr

    from bsgp.methods.options import Options
    from bsgp.methods.registry import fit_method
    from bsgp.models.likelihoods.classes import Bernoulli
    from bsgp.posterior.metrics import auc, error_rate

    rows = load_rows(settings.dataset, data_dir)
    num_rows, origin = len(rows.X), rows.origin
    held = hold_out(rows, settings.dataset, settings.seed, settings.max_rows)
    del rows  # the originals take a gigabyte
    options = Options(
        num_inducing=settings.num_inducing,
        num_chains=settings.num_chains,
        effort=settings.scale,
        thinning=settings.thinning,
        likelihood_power=settings.likelihood_power,
    )
    began, cpu_began = time.monotonic(), time.process_time()
    with jax.enable_x64(False):  # no noise variance can become tiny, and float32 takes half the time
        fit_key, test_key, trace_key = jr.split(jr.key(settings.seed), 3)
        fitted = fit_method(settings.method, held.X, held.y, Bernoulli(), fit_key, options=options, report=report)
        posterior, history = fitted.posterior, fitted.history
        done, cpu_done = time.monotonic(), time.process_time()
        # one pass over the test rows gives all scores: the two classes' probabilities add up to 1
        log_density = posterior.log_density(held.X_test, held.y_test, test_key).astype(np.float64)
        agreement = {}
        if posterior.num_draws >= MIN_RHAT_DRAWS:
            traced = np.random.RandomState(settings.seed).permutation(len(held.X_test))[:NUM_RHAT_ROWS]
            draws = _in_float64(posterior).predictive_draws(held.X_test[traced], trace_key).mean[..., 0]
            agreement = _agreement(np.asarray(draws), held.y_test[traced, 0], traced)
    truth = held.y_test
    probability = np.where(truth == 1.0, np.exp(log_density), -np.expm1(log_density))
    return {
        **asdict(settings),
        "plan": None if fitted.run is None else fitted.run.plan.to_record(),
        "source": origin,
        "num_rows": num_rows,
        "num_train": len(held.X),
        "num_test": len(held.X_test),
        "num_draws": posterior.num_draws,
        "evaluations": history.evaluations,
        "seconds": round(done - began, 2),
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "prediction_cpu_seconds": round(time.process_time() - cpu_done, 2),
        "test_error": error_rate(truth, probability),
        "test_mnll": float(-np.mean(log_density)),
        "test_auc": auc(truth[:, 0] == 1.0, probability[:, 0]),
        "test_brier": float(np.mean((probability - truth) ** 2)),
        "step_size": history.step_size,
        "interrupted": history.interrupted,
        "warnings": list(history.warnings),
        **agreement,
    }


def _in_float64(posterior: "Posterior") -> "Posterior":
    """Draws in float64. In float32 a probability near 1 would round to exactly 1 in every draw."""
    import jax

    with jax.enable_x64(True):
        return jax.tree.map(lambda leaf: leaf.astype(np.float64), posterior)


def _agreement(draws: np.ndarray, truth: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """R-hat and ESS of the probabilities of some test rows, `draws [C S N]`, and the traces of three of them.

    The two halves of a single chain are compared with each other.
    """
    from bsgp.posterior.statistics import ess, rhat

    varies = np.ptp(draws, axis=1).min(axis=0) > 0  # a probability of 1 to the last digit has no R-hat
    if not varies.any():
        return {}
    draws, truth, rows = draws[:, :, varies], truth[varies], rows[varies]
    by_row, sizes = rhat(draws), ess(draws)
    mean, spread, picked = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)), []
    # far from all data a probability is 0.5 in every draw, and its trace shows nothing
    free = spread >= 0.5 * np.median(spread)
    for level in TRACED[: int(free.sum())]:
        nearest = int(np.argmin(np.where(free, np.abs(mean - level), np.inf)))
        free[nearest] = False
        picked.append(nearest)
    return {
        "rhat_rows": len(rows),
        "rhat_median": float(np.median(by_row)),
        "rhat_q90": float(np.quantile(by_row, 0.9)),
        "rhat_max": float(by_row.max()),
        "rhat_mean": float(by_row.mean()),
        "rhat_sd": float(by_row.std()),
        "ess_median": float(np.median(sizes)),
        "ess_min": float(sizes.min()),
        "traces": [
            {
                "test_row": int(rows[at]),
                "label": int(truth[at]),
                "mean": round(float(mean[at]), 4),
                "rhat": round(float(by_row[at]), 4),
                "draws": draws[:, :, at].round(4).tolist(),
            }
            for at in picked
        ],
    }


@dataclass(frozen=True)
class RowTrace:
    """Probabilities that each draw gives to one test row."""

    test_row: int
    label: int
    mean: float
    rhat: float
    draws: np.ndarray
    """`[C S]`."""


@dataclass(frozen=True)
class ClassificationRecord:
    """A recorded run, as the table and the traces use it."""

    settings: ClassificationRun
    source: str
    num_train: int
    num_test: int
    num_draws: int
    evaluations: int
    """Gradient evaluations of each chain."""
    cpu_seconds: float
    test_error: float
    test_mnll: float
    test_auc: float
    rhat_mean: float | None = None
    """R-hat is None for methods without chains."""
    rhat_sd: float | None = None
    rhat_q90: float | None = None
    traces: tuple[RowTrace, ...] = ()

    @classmethod
    def from_record(cls, record: dict) -> "ClassificationRecord":
        """Read a record of this kind."""
        traces = [read_fields(RowTrace, one, draws=np.asarray(one["draws"])) for one in record.get("traces", ())]
        return read_fields(cls, record, settings=read_fields(ClassificationRun, record), traces=tuple(traces))
