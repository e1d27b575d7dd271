"""What a user would pick instead: well-known regressors on the same folds, with the same scores. Also their runs."""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bsgp.data.named import UCI
from bsgp.experiments.experiment import Choice, Drawing, Sheet, kind_of
from bsgp.experiments.paper import Paper
from bsgp.experiments.points import in_words, mean_and_error, styled
from bsgp.report.style import BLUE, INK, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "What a user would pick instead of bsgp: scikit-learn's GP, a neural network and gradient-boosted trees."

FOLDS = (0, 1, 2, 3)
MAX_GP_ROWS = 1_000
"""Memory and time of an exact GP grow with the square and the cube of its rows."""
NUM_PARTS = 5
MAX_ROWS_FOR_PARTS = 5_000
"""Up to so many rows every one is held out once; of more a fifth tells the noise well enough, and is cheaper."""
MIN_SD = 0.01
"""Of a standardised target: quantiles that are fitted apart can meet or cross."""
LEVELS = (0.05, 0.95)
NORMAL_90 = 1.6448536269514722  # the standard normal's quantile of 0.95


# -- the methods -----------------------------------------------------------------------------------------------------


class Prediction(NamedTuple):
    """Of one standardised target: a normal for each row, `[N]`, and the ends of a 90% interval."""

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
"""New rows `[N D]` in, predictions out."""


def _fit_gp(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """An exact GP with a lengthscale for every input, its parameters at their most likely values."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    rows = np.random.default_rng(seed).permutation(len(X))[:MAX_GP_ROWS]
    # wider bounds than scikit-learn's: inputs that tell nothing, and targets next to without noise
    lengthscales = RBF(np.ones(X.shape[1]), (1e-2, 1e4))  # pyright: ignore[reportArgumentType]: it takes arrays
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * lengthscales + WhiteKernel(0.1, (1e-7, 10.0))
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=seed).fit(X[rows], y[rows])

    def predict(X: np.ndarray) -> Prediction:
        mean, sd = model.predict(X, return_std=True)[:2]  # with the noise: it is part of the kernel
        return Prediction.normal(mean, np.maximum(sd, 1e-6))

    return predict


def _fit_mlp(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """A network that stops when a tenth of its rows tells it to; smaller batches give small tables enough updates."""
    from sklearn.neural_network import MLPRegressor

    options: Any = {"hidden_layer_sizes": (100, 100), "batch_size": 64, "max_iter": 500}
    options |= {"early_stopping": True, "n_iter_no_change": 20}
    return _with_constant_noise(lambda: MLPRegressor(random_state=seed, **options), X, y, seed)


def _fit_trees(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    return _with_constant_noise(lambda: _trees(seed), X, y, seed)


def _fit_quantile_trees(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Trees for the median and for both ends of the interval; as a density the normal with that median and width."""
    low, middle, high = (
        _trees(seed, loss="quantile", quantile=level).fit(X, y) for level in (LEVELS[0], 0.5, LEVELS[1])
    )

    def predict(X: np.ndarray) -> Prediction:
        ends = np.sort([low.predict(X), high.predict(X)], axis=0)
        sd = np.maximum((ends[1] - ends[0]) / (2.0 * NORMAL_90), MIN_SD)
        return Prediction(middle.predict(X), sd, *ends)

    return predict


def _trees(seed: int, **options) -> Any:
    """Defaults, with its early stopping for tables of any size, so that the number of trees need not be chosen."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    options |= {"max_iter": 1_000, "early_stopping": True, "n_iter_no_change": 20}
    return HistGradientBoostingRegressor(random_state=seed, **options)


def _fit_ngboost(X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """Natural-gradient boosting of the mean and the standard deviation of a normal.

    Stopped early: its default number of trees is far too sure of itself on small tables. Of rows held out within
    boston's training rows MNLL was 2.3, and 0.4 with early stopping.
    """
    if not _has_ngboost():
        raise ValueError("`ngboost` needs a package that is not there. Install it with `pip install 'bsgp[peers]'`.")
    from ngboost import NGBRegressor  # pyright: ignore[reportMissingImports]: of the extra `peers`
    from sklearn.model_selection import train_test_split

    rest, held = train_test_split(np.arange(len(X)), test_size=0.1, random_state=seed)
    model = NGBRegressor(n_estimators=2_000, early_stopping_rounds=20, verbose=False, random_state=seed)
    model.fit(X[rest], y[rest], X_val=X[held], Y_val=y[held])
    num_trees = model.best_val_loss_itr + 1  # it keeps those after the best ones, too

    def predict(X: np.ndarray) -> Prediction:
        normal = model.pred_dist(X, max_iter=num_trees).params
        return Prediction.normal(normal["loc"], normal["scale"])

    return predict


def _has_ngboost() -> bool:
    return find_spec("ngboost") is not None


def _with_constant_noise(make: Callable[[], Any], X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """A model of the mean on all rows; the noise is what models without some of the rows miss them by."""
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
"""How each is fitted, by name."""


def fit_peer(method: str, X: np.ndarray, y: np.ndarray, seed: int) -> Predictor:
    """From standardised rows `[N D]` and a standardised target `[N]` to predictions."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # an optimum at a bound (an input that tells nothing) and a network at its last epoch are as good as they get
        warnings.simplefilter("ignore", ConvergenceWarning)
        return PEERS[method](X, y, seed)


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """A peer on a fold of a UCI set."""

    kind: ClassVar[str] = "peers"
    dataset: str
    fold: int
    method: str
    seed: int = 0

    @property
    def key(self) -> str:
        """Its name in the results: two runs with one key are the same run."""
        return "/".join([self.kind, self.method, self.dataset, f"fold{self.fold}", f"seed{self.seed}"])


def plan(choice: Choice) -> list[Settings]:
    """Fold by fold, small sets first. Where ngboost is not installed it is left out, unless it is asked for."""
    methods = [name for name in PEERS if name != "ngboost" or _has_ngboost()]
    if choice.methods is not None:
        methods = [name for name in PEERS if name in choice.methods]
    if choice.depths is not None and 1 not in choice.depths:
        methods = []
    datasets = [name for name in UCI if name in (choice.datasets or (UCI[:1] if choice.quick else UCI))]
    folds = choice.folds if choice.folds is not None else FOLDS[:1] if choice.quick else FOLDS
    return [Settings(name, fold, method, choice.seed) for fold in folds for name in datasets for method in methods]


def run(settings: Settings, data_dir: str | None) -> dict:
    """Fit a model per target and score it as `uci` runs are scored, in the same fields."""
    from bsgp.data.folds import split
    from bsgp.data.named import load_named
    from bsgp.evaluate import coverage, mnll, rmse

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


# -- what is shown ---------------------------------------------------------------------------------------------------

OURS = "bsgp"
METRICS = {
    "test_mnll": ("MNLL", "Test MNLL in the units of the data; lower is better."),
    "test_nrmse": ("nRMSE", "Test RMSE of standardised targets; lower is better."),
    "coverage90": ("coverage90", "Share of test targets inside their 90% intervals; 0.9 is right."),
}
HOW = {
    OURS: "one layer under the default recipe",
    "sklearn-gp": f"an exact GP (RBF with ARD and white noise, one restart) on at most {MAX_GP_ROWS:,} random rows",
    "mlp": "a neural network with early stopping, one noise variance from held-out training rows",
    "hist-gbm": "gradient-boosted trees with early stopping, one noise variance likewise",
    "hist-gbm-quantile": "such trees for the 5%, 50% and 95% quantiles, scored as a normal of that median and width",
    "ngboost": "natural-gradient boosting of a normal's mean and spread with early stopping",
}
"""For captions."""
PANEL_WIDTH, ROW_HEIGHT = 2.3, 0.24  # inches
REACH = 5.0  # a panel ends at so many times the distance from the best method to the middle one
MIN_REACH = 0.6  # nats: none so near is cut off
AT_THE_EDGE = 0.97  # of a panel's width

Cells = Mapping[tuple[str, str], Mapping[int, dict]]
"""Records by fold, by (method, data set)."""


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """A figure of MNLL and a table of each metric, with bsgp's `uci` runs on the folds that the peers were run on."""
    del paper  # they compared with none of these
    cells = _gather(records)
    if not cells:
        return []
    return [_drawing(cells), *(_sheet(cells, metric) for metric in METRICS)]


def _gather(records: Sequence[dict]) -> Cells:
    """All peers, and bsgp on the same folds."""
    cells: dict[tuple[str, str], dict[int, dict]] = defaultdict(dict)
    theirs = [record for record in records if kind_of(record) == Settings.kind and record["method"] in PEERS]
    for record in sorted(theirs, key=lambda record: -record["seed"]):  # the lowest seed is the last to be written
        cells[record["method"], record["dataset"]][record["fold"]] = record
    for dataset in _datasets(cells):
        folds = _folds(cells, dataset)
        ours = [record for record in records if _is_ours(record, dataset) and record["fold"] in folds]
        # one variant for all folds of a set: no override if there is such a run, else the one with most folds
        variants: dict[tuple[str, ...], dict[int, dict]] = defaultdict(dict)
        for record in sorted(ours, key=lambda record: -record["seed"]):
            variants[_overrides(record)][record["fold"]] = record
        if variants:
            best = max(variants, key=lambda overrides: (not overrides, len(variants[overrides]), -len(overrides)))
            cells[OURS, dataset] = variants[best]
    return cells


def _is_ours(record: dict, dataset: str) -> bool:
    """A shallow bsgp under the default recipe, with its default objective and prior."""
    wanted = {
        "dataset": dataset, "method": OURS, "depth": 1, "recipe": "default", "objective": "fitc",
        "inducing_prior": "normal", "full_data_x": False,
    }  # fmt: skip
    # older records do not have the fields that came later, and were run with their defaults
    return kind_of(record) == "uci" and all(record.get(field, value) == value for field, value in wanted.items())


def _overrides(record: dict) -> tuple[str, ...]:
    return tuple(record["key"].split("/")[6:])


def _datasets(cells: Cells) -> list[str]:
    return [name for name in UCI if any(dataset == name for _, dataset in cells)]


def _methods(cells: Cells) -> list[str]:
    return [name for name in (OURS, *PEERS) if any(method == name for method, _ in cells)]


def _folds(cells: Cells, dataset: str) -> set[int]:
    """Of any method on a data set."""
    return {fold for (_, name), by_fold in cells.items() if name == dataset for fold in by_fold}


def _what_was_run(cells: Cells) -> str:
    datasets = _datasets(cells)
    folds = sorted({fold for name in datasets for fold in _folds(cells, name)})
    which = f"fold {folds[0]}" if len(folds) == 1 else f"folds {_listed([str(fold) for fold in folds])}"
    of_ours = {name: next(iter(cells[OURS, name].values())) for name in datasets if (OURS, name) in cells}
    changed = [f"{name} ({', '.join(_overrides(one))})" for name, one in of_ours.items() if _overrides(one)]
    note = f" Of bsgp there are only runs with other settings on {_listed(changed)}." if changed else ""
    return f"{_listed(_methods(cells))} on {which} of the paper's splits.{note}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _sheet(cells: Cells, metric: str) -> Sheet:
    name, meaning = METRICS[metric]
    methods, datasets = _methods(cells), _datasets(cells)
    rows, best = [], set()
    for method in methods:
        rows.append((method, *(_in_words(cells, method, dataset, metric) for dataset in datasets)))
    for column, dataset in enumerate(datasets, start=1):
        winner = _best(cells, dataset, metric)
        if winner is not None:
            best.add((methods.index(winner), column))
    caption = (
        f"{meaning} Mean (standard deviation) over folds of {_what_was_run(cells)} The best of each set is bold; the "
        "figure's caption says how each method was run."
    )
    return Sheet(f"peers-{name.lower()}", caption, ("method", *datasets), tuple(rows), frozenset(best))


def _values(cells: Cells, method: str, dataset: str, metric: str) -> list[float]:
    return [record[metric] for record in cells.get((method, dataset), {}).values()]


def _in_words(cells: Cells, method: str, dataset: str, metric: str) -> str:
    values, num_folds = _values(cells, method, dataset, metric), len(_folds(cells, dataset))
    if not values:
        return "not run"
    return in_words(values) + (f", {len(values)} of {num_folds} folds" if len(values) < num_folds else "")


def _best(cells: Cells, dataset: str, metric: str) -> str | None:
    """Of the methods that were run on all folds; None where it has no rival."""
    num_folds = len(_folds(cells, dataset))
    values = {method: _values(cells, method, dataset, metric) for method in _methods(cells)}
    means = {method: float(np.mean(each)) for method, each in values.items() if len(each) == num_folds}
    if len(means) < 2:
        return None
    return min(means, key=lambda method: abs(means[method] - 0.9) if metric == "coverage90" else means[method])


def _drawing(cells: Cells) -> Drawing:
    from matplotlib.figure import Figure

    methods, datasets = _methods(cells), _datasets(cells)
    columns = min(4, len(datasets))
    rows = -(-len(datasets) // columns)
    height = rows * (ROW_HEIGHT * len(methods) + 0.75) + 0.3
    with styled():
        figure = Figure(figsize=(PANEL_WIDTH * columns + 1.2, height), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, dataset in zip(panels, datasets, strict=False):
            _draw_panel(axes, {method: _values(cells, method, dataset, "test_mnll") for method in methods})
            axes.set_title(dataset, fontsize=10)
        for axes in panels[len(datasets) :]:
            axes.set_axis_off()
        figure.supxlabel("test MNLL, lower is better", fontsize=10)
    how = "; ".join(f"{method} is {HOW[method]}" for method in methods)
    caption = (
        f"Test MNLL, mean over folds with 95% intervals, of {_what_was_run(cells)} A number beside an arrow is a mean "
        f"beyond the panel. Here {how}. The peers have a model of its own for each target."
    )
    return Drawing("peers", caption, figure)


def _draw_panel(axes: "Axes", values: Mapping[str, Sequence[float]]) -> None:
    """Methods from the top down."""
    points = {method: mean_and_error(each) for method, each in values.items() if each}
    limit = _limit([mean for mean, _ in points.values()])
    beyond = {}
    for row, method in enumerate(values):
        if method not in points:
            continue
        mean, error = points[method]
        if mean > limit:
            beyond[row] = mean
        else:
            colour = BLUE if method == OURS else VERMILLION
            axes.errorbar(mean, row, xerr=error, color=colour, marker="o", ms=4.5, lw=1.2, capsize=0)
    low, high = axes.get_xlim()
    axes.set_xlim(low, min(high, limit + 0.1 * (limit - low)) if beyond else high)  # an interval may be cut off, too
    for row, mean in beyond.items():
        across = axes.get_yaxis_transform()
        axes.plot(AT_THE_EDGE, row, marker=">", color=VERMILLION, ms=5, transform=across, clip_on=False)
        axes.text(AT_THE_EDGE - 0.05, row, f"{mean:.2f}", transform=across, ha="right", va="center", fontsize=8)
    axes.set_yticks(range(len(values)), list(values), color=INK)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)


def _limit(means: Sequence[float]) -> float:
    """Where a panel ends: one method far off would press all others together."""
    best, middle = min(means), float(np.median(means))
    limit = best + max(REACH * (middle - best), MIN_REACH)
    return limit if max(means) > limit else max(means)
