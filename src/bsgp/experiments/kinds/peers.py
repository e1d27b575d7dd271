"""Well-known regressors with settings that a user would choose, and runs of them on the folds of the paper."""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bsgp.experiments.kinds.shared import INTERVAL

MAX_GP_ROWS = 1_000
"""Rows of the exact GP, whose memory and time grow with their square and cube."""
NUM_PARTS = 5
"""Parts of the training rows that are held out in turn to estimate the noise."""
MAX_ROWS_FOR_PARTS = 5_000
"""Most training rows for which every part is held out. With more rows one part is enough, and cheaper."""
MIN_SD = 0.01
"""Smallest standard deviation of a standardised target: quantiles fitted one by one can meet or cross."""
NORMAL_90 = 1.6448536269514722
"""0.95 quantile of the standard normal: half the width of its 90% interval."""


# -- the methods -----------------------------------------------------------------------------------------------------


class Prediction(NamedTuple):
    """Predictions of one standardised target: a normal for each row, `[N]`, and the ends of its 90% interval."""

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def normal(cls, mean: np.ndarray, sd: np.ndarray | float) -> "Prediction":
        sd = np.broadcast_to(sd, mean.shape)
        return cls(mean, sd, mean - NORMAL_90 * sd, mean + NORMAL_90 * sd)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return -0.5 * ((y - self.mean) / self.sd) ** 2 - np.log(self.sd) - 0.5 * np.log(2.0 * np.pi)


Predictor = Callable[[np.ndarray], Prediction]
"""Function from new rows `[N D]` to predictions."""


def _fit_gp(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Exact GP with a lengthscale for every input, its parameters at their most likely values."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    rows = np.random.default_rng(seed).permutation(len(X))[:MAX_GP_ROWS]
    # wider bounds than scikit-learn's: some inputs carry no information, some targets have almost no noise
    lengthscales = RBF(np.ones(X.shape[1]), (1e-2, 1e4))  # pyright: ignore[reportArgumentType]: it takes arrays
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * lengthscales + WhiteKernel(0.1, (1e-7, 10.0))
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=seed).fit(X[rows], y[rows])

    def predict(X: np.ndarray) -> Prediction:
        mean, sd = model.predict(X, return_std=True)[:2]  # includes the noise, which is part of the kernel
        return Prediction.normal(mean, np.maximum(sd, 1e-6))

    return predict


def _fit_mlp(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Network with early stopping on a tenth of its rows. Small batches give small tables enough updates."""
    from sklearn.neural_network import MLPRegressor

    options: Any = {"hidden_layer_sizes": (100, 100), "batch_size": 64, "max_iter": 500}
    options |= {"early_stopping": True, "n_iter_no_change": 20}
    return _with_constant_noise(lambda: MLPRegressor(random_state=seed, **options), X, y, seed)


def _fit_trees(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Gradient-boosted trees for the mean, with one noise variance."""
    return _with_constant_noise(lambda: _trees(seed), X, y, seed)


def _fit_quantile_trees(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Trees for the median and for both ends of the interval. The density is a normal of that median and width."""
    low, middle, high = (
        _trees(seed, loss="quantile", quantile=level).fit(X, y) for level in (INTERVAL[0], 0.5, INTERVAL[1])
    )

    def predict(X: np.ndarray) -> Prediction:
        ends = np.sort([low.predict(X), high.predict(X)], axis=0)
        sd = np.maximum((ends[1] - ends[0]) / (2.0 * NORMAL_90), MIN_SD)
        return Prediction(middle.predict(X), sd, *ends)

    return predict


def _trees(seed: int, **options) -> Any:
    """Default trees, with early stopping for tables of any size, so that the number of trees need not be chosen."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    options |= {"max_iter": 1_000, "early_stopping": True, "n_iter_no_change": 20}
    return HistGradientBoostingRegressor(random_state=seed, **options)


def _fit_ngboost(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Natural-gradient boosting of the mean and the standard deviation of a normal.

    Early stopping, because the default number of trees is overconfident on small tables: on rows held out of boston's
    training rows the MNLL was 2.3 without it and 0.4 with it.
    """
    if not has_ngboost():
        raise ValueError("`ngboost` must be installed, got no such package. Run `pip install 'bsgp[peers]'`.")
    from ngboost import NGBRegressor  # pyright: ignore[reportMissingImports]: in the extra `peers`
    from sklearn.model_selection import train_test_split

    rest, held = train_test_split(np.arange(len(X)), test_size=0.1, random_state=seed)
    model = NGBRegressor(n_estimators=2_000, early_stopping_rounds=20, verbose=False, random_state=seed)
    model.fit(X[rest], y[rest], X_val=X[held], Y_val=y[held])
    num_trees = model.best_val_loss_itr + 1  # the model also keeps the trees after the best ones

    def predict(X: np.ndarray) -> Prediction:
        normal = model.pred_dist(X, max_iter=num_trees).params
        return Prediction.normal(normal["loc"], normal["scale"])

    return predict


def has_ngboost() -> bool:
    return find_spec("ngboost") is not None


def _with_constant_noise(make: Callable[[], Any], X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Model of the mean on all rows. Its noise is the error on rows held out of models of the others."""
    from sklearn.model_selection import KFold, ShuffleSplit

    is_small = len(X) <= MAX_ROWS_FOR_PARTS
    parts = KFold(NUM_PARTS, shuffle=True, random_state=seed) if is_small else ShuffleSplit(
        1, test_size=1 / NUM_PARTS, random_state=seed
    )  # fmt: skip
    missed = [y[held] - make().fit(X[rest], y[rest]).predict(X[held]) for rest, held in parts.split(X)]
    sd = float(np.sqrt(np.mean(np.concatenate(missed) ** 2)))
    model = make().fit(X, y)
    return lambda X: Prediction.normal(model.predict(X), sd)


PEERS: dict[str, Callable[[np.ndarray, np.ndarray, int], Predictor]] = {
    "sklearn-gp": _fit_gp,
    "mlp": _fit_mlp,
    "hist-gbm": _fit_trees,
    "hist-gbm-quantile": _fit_quantile_trees,
    "ngboost": _fit_ngboost,
}
"""Fitting function of each peer, by name."""


def fit_peer(method: str, X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Fit standardised rows `[N D]` and a standardised target `[N]`."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # optima at a bound (inputs without information) and networks at their last epoch are accepted
        warnings.simplefilter("ignore", ConvergenceWarning)
        return PEERS[method](X, y, seed)


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerRun:
    """Settings of a peer on one fold of a UCI set."""

    kind: ClassVar[str] = "peers"
    dataset: str
    fold: int
    method: str
    seed: int = 0

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        return "/".join([self.kind, self.method, self.dataset, f"fold{self.fold}", f"seed{self.seed}"])


Settings = PeerRun


def run(settings: PeerRun, data_dir: str | None) -> dict:
    """Fit one model per target and score it like a `uci` run, with the same fields in the record."""
    from bsgp.experiments.datasets.folds import split
    from bsgp.experiments.datasets.named import load_named
    from bsgp.posterior.metrics import coverage, mnll, rmse

    began, cpu_began = time.monotonic(), time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold)
    predictors = [fit_peer(settings.method, fold.X, target, settings.seed) for target in fold.y.T]
    done, cpu_done = time.monotonic(), time.process_time()
    predictions = [predict(fold.X_test) for predict in predictors]
    by_target = list(zip(predictions, fold.y_test.T, strict=True))
    log_density = np.stack([prediction.log_density(y) for prediction, y in by_target], axis=1)
    mean, low, high = (
        np.stack([getattr(each, field) for each in predictions], axis=1) for field in ("mean", "low", "high")
    )
    return {
        **asdict(settings),
        "depth": 1,
        "num_train": len(fold.X),
        "seconds": round(done - began, 2),
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "prediction_cpu_seconds": round(time.process_time() - cpu_done, 2),
        "test_mnll": mnll(log_density, fold.y_units.scale),
        "test_nrmse": rmse(fold.y_test, mean),
        "coverage90": coverage(fold.y_test, low, high),
    }
