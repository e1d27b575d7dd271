"""The paper's Figure 2: priors on the inducing inputs, on two interlocking bananas. Also a kind of runs of its own."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bsgp.experiments.experiment import Choice, Drawing, Sheet, kind_of
from bsgp.experiments.paper import Paper
from bsgp.experiments.points import styled
from bsgp.report.style import BLUE, INK, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

ABOUT = "Figure 2: where the inducing inputs of a classifier lie, by their prior, on the banana data."

DATASET, METHOD = "banana", "bsgp"
NUM_INDUCING = 20
"""Few enough to be seen apart. Of many more most would have nothing to do, and drift away where the prior lets them."""
QUICK_SCALE = 0.05
BINS = 60
"""Along each side, of the grid of probabilities and of the histogram."""
MARGIN = 0.15
"""Of the data's range, on each side: some inducing inputs lie outside the data."""
TITLES = {
    "normal": "Normal",
    "determinantal": "Determinantal",
    "strauss": "Strauss",
    "strauss-hard": "Strauss, hard count",
    "uniform": "Uniform",
}
HEADER = (
    "prior", "test error", "test MNLL", "test AUC", "nearest neighbour", "nearest neighbour, in view", "in view",
    "at the boundary", "rows at the boundary",
)  # fmt: skip
DOUBT = 0.25  # from a probability of 0.5, at the boundary
SMOOTHING = 1.0  # bins: five thousand points over 3,600 bins are speckled
CONTOURS = ((0.25, 0.7), (0.5, 1.8), (0.75, 0.7))  # probability, line width
PANEL = 2.3  # inches


@dataclass(frozen=True)
class Settings:
    """A classifier under one of the priors of `bsgp.inducing`."""

    kind: ClassVar[str] = "banana"
    inducing_prior: str = "normal"
    num_inducing: int = NUM_INDUCING
    seed: int = 0
    scale: float = 1.0
    """Multiplies the number of updates of every phase; draws stay as many."""

    @property
    def key(self) -> str:
        """Its name in the results: two runs with one key are the same run."""
        parts = [self.kind, self.inducing_prior, f"M{self.num_inducing}", f"seed{self.seed}"]
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        return "/".join(parts)


def plan(choice: Choice) -> list[Settings]:
    """A run for each prior."""
    from bsgp.inducing import INDUCING_PRIORS

    wanted = (choice.datasets, DATASET), (choice.methods, METHOD), (choice.depths, 1)
    if any(only is not None and what not in only for only, what in wanted):
        return []
    return [Settings(name, seed=choice.seed, scale=QUICK_SCALE if choice.quick else 1.0) for name in INDUCING_PRIORS]


def run(settings: Settings, data_dir: str | None) -> dict:
    """Fit the classic 400 rows and score the other 4,900. The record has all that the figure needs."""
    import jax
    import jax.random as jr

    from bsgp.data.named import load_named
    from bsgp.data.standardise import Standardiser
    from bsgp.evaluate import auc, error_rate
    from bsgp.fitting import Options, fit_method
    from bsgp.inducing import INDUCING_PRIORS
    from bsgp.likelihoods import Bernoulli
    from bsgp.model import DeepGP

    began, cpu_began = time.monotonic(), time.process_time()
    data = load_named(DATASET, data_dir)
    is_classic = data.other["gp400"] == 1
    units = Standardiser.fit(data.X[is_classic])
    X, y = units.transform(data.X[is_classic]), data.y[is_classic]
    X_test, y_test = units.transform(data.X[~is_classic]), data.y[~is_classic]
    options = Options(
        num_inducing=settings.num_inducing,
        inducing_prior=INDUCING_PRIORS[settings.inducing_prior],
        effort=settings.scale,
    )
    edges = _edges(X)
    with jax.enable_x64(True):
        fit_key, predict_key = jr.split(jr.key(settings.seed))
        fitted = fit_method(METHOD, X, y, Bernoulli(), fit_key, options=options)
        done, cpu_done = time.monotonic(), time.process_time()
        model = fitted.posterior.model
        assert isinstance(model, DeepGP)  # for the type checker
        Z = np.asarray(model.layers[0].Z).reshape(-1, settings.num_inducing, 2)  # chains' draws in one row
        # one pass for all: of two classes the density of a label is its probability, and of the grid we ask for 1
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
        "probability": np.round(grid, 3).tolist(),  # [up][across], as pictures are
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
    """Of the bins, along each input: the range of the data with a margin."""
    low, high = X.min(axis=0), X.max(axis=0)
    margin = MARGIN * (high - low)
    return [np.linspace(*ends, BINS + 1) for ends in zip(low - margin, high + margin, strict=True)]


def _centres(edges: Sequence[np.ndarray]) -> np.ndarray:
    """Of all bins `[BINS^2 2]`, row by row of a picture."""
    across, up = ((edge[1:] + edge[:-1]) / 2 for edge in edges)
    return np.stack([part.ravel() for part in np.meshgrid(across, up)], axis=1)


def _is_inside(Z: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    low, high = np.asarray([(edge[0], edge[-1]) for edge in edges]).T
    return (np.clip(Z, low, high) == Z).all(axis=-1)


def nearest_neighbour(Z: np.ndarray, is_there: np.ndarray) -> float | None:
    """Mean distance from an inducing input to the nearest other one of its draw, `Z [S M 2]`.

    Only those count that `is_there [S M]` marks; None where no draw has two of them.
    """
    distance = np.linalg.norm(Z[:, :, None] - Z[:, None], axis=-1)
    is_pair = is_there[:, :, None] & is_there[:, None] & ~np.eye(Z.shape[1], dtype=bool)
    nearest = np.where(is_pair, distance, np.inf).min(axis=-1)
    nearest = nearest[np.isfinite(nearest)]
    return float(nearest.mean()) if nearest.size else None


# -- what is shown ---------------------------------------------------------------------------------------------------


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """The figure and its numbers, from runs that differ in nothing but the prior."""
    del paper  # Figure 2 was released as a picture, without its numbers
    found = _one_for_each_prior([record for record in records if kind_of(record) == Settings.kind])
    if not found:
        return []
    one = next(iter(found.values()))
    what = (
        f"A single-layer bsgp with a probit likelihood and {one['num_inducing']} inducing inputs on the banana data, "
        f"{one['num_train']} standardised rows to train on and {one['num_test']:,} to test on, for each prior on the "
        f"inducing inputs: one chain of {one['evaluations']:,} gradient evaluations, {one['num_draws']} draws, seed "
        f"{one['seed']}."
    )
    if one["scale"] != 1.0:
        what += f" The chains had {one['scale']:g} of their usual length: a trial, whose figures mean nothing."
    return [_drawing(found, what), _sheet(found, what)]


def _one_for_each_prior(records: Sequence[dict]) -> dict[str, dict]:
    """Records by prior, all of the same settings: the longest chains, then the planned size, then the most priors."""
    groups: dict[tuple[float, int, int], dict[str, dict]] = defaultdict(dict)
    for record in records:
        groups[record["scale"], record["num_inducing"], record["seed"]][record["inducing_prior"]] = record
    if not groups:
        return {}

    def worth(settings: tuple[float, int, int]) -> tuple:
        scale, num_inducing, seed = settings
        return scale, -abs(num_inducing - NUM_INDUCING), len(groups[settings]), -seed

    found = groups[max(groups, key=worth)]
    known = [prior for prior in TITLES if prior in found]
    return {prior: found[prior] for prior in [*known, *sorted(set(found) - set(known))]}


def _drawing(found: dict[str, dict], what: str) -> Drawing:
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    densities = {prior: _density(record) for prior, record in found.items()}
    top = max(float(density.max()) for density in densities.values())
    colours = PowerNorm(0.5, 0.0, max(top, 1e-9))  # one scale for all; a few high peaks would make all else pale
    with styled():
        figure = Figure(figsize=(PANEL * len(found) + 1.2, 2 * PANEL + 0.6), layout="constrained")
        panels = figure.subplots(2, len(found), sharex=True, sharey=True, squeeze=False)
        image: Any = None
        for column, (prior, record) in enumerate(found.items()):
            panels[0, column].set_title(TITLES.get(prior, prior), fontsize=10)
            _draw_classifier(panels[0, column], record)
            image = _draw_inducing(panels[1, column], record, densities[prior], colours)
        panels[0, 0].set_ylabel("average classifier")
        panels[1, 0].set_ylabel("inducing inputs")
        bar = figure.colorbar(image, ax=panels[1, :], shrink=0.9, pad=0.01)
        bar.set_label("inducing inputs\nper unit area", fontsize=8)
        bar.ax.tick_params(labelsize=8)
    caption = (
        f"{what} Above, the training rows by class and the average classifier: probability 0.5 bold, 0.25 and 0.75 "
        "thin. Below, how many inducing inputs there are per unit area, on average over all draws and smoothed over a "
        "bin of the 60 x 60, with the same boundary. A percentage tells how many lie outside the panel: the normal "
        "prior alone is a proper density, and holds them near the data. They move slowly: another seed shows other "
        "places, and much the same classifier."
    )
    if "strauss-hard" in found and "uniform" in found:
        caption += (
            " The hard count of the Strauss process has no gradient, so that the sampler cannot tell it from the "
            "uniform prior: with the same seed the two are the same chain."
        )
    return Drawing("banana", caption, figure)


def _density(record: dict) -> np.ndarray:
    """Expected number of inducing inputs per unit area, `[up across]`."""
    from scipy.ndimage import gaussian_filter

    left, right, bottom, top = record["extent"]
    counts = np.asarray(record["inducing_counts"], float)
    area = (right - left) * (top - bottom) / counts.size
    return gaussian_filter(counts, SMOOTHING, mode="constant") / (record["num_draws"] * area)


def _draw_classifier(axes: "Axes", record: dict) -> None:
    axes.grid(visible=False)
    points, labels = np.asarray(record["points"]), np.asarray(record["labels"])
    for label, colour in enumerate((BLUE, VERMILLION)):
        axes.scatter(*points[labels == label].T, s=5, color=colour, linewidths=0, alpha=0.8)
    _draw_boundary(axes, record, CONTOURS)


def _draw_inducing(axes: "Axes", record: dict, density: np.ndarray, colours: "Normalize") -> Any:
    axes.grid(visible=False)
    left, right, bottom, top = record["extent"]
    image = axes.imshow(
        density, origin="lower", extent=(left, right, bottom, top), cmap="Blues", norm=colours, aspect="auto"
    )
    _draw_boundary(axes, record, ((0.5, 1.0),))
    outside = 1.0 - record["share_in_view"]
    if outside >= 0.005:
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0.0, "pad": 1.5}  # over the boundary
        axes.text(0.97, 0.03, f"{outside:.0%} outside", transform=axes.transAxes, ha="right", fontsize=8, bbox=box)
    return image


def _draw_boundary(axes: "Axes", record: dict, contours: Sequence[tuple[float, float]]) -> None:
    probability = np.asarray(record["probability"])
    left, right, bottom, top = record["extent"]
    up, across = ((np.arange(size) + 0.5) / size for size in probability.shape)
    levels, widths = zip(*contours, strict=True)
    if not levels[0] <= probability.max() or not probability.min() <= levels[-1]:
        return  # a classifier without a boundary; Matplotlib would warn
    axes.contour(
        left + (right - left) * across, bottom + (top - bottom) * up, probability,
        levels=levels, colors=INK, linewidths=widths,
    )  # fmt: skip


def _sheet(found: dict[str, dict], what: str) -> Sheet:
    rows = [(TITLES.get(prior, prior), *_cells(record)) for prior, record in found.items()]
    rows += [(title, "not run", *[""] * (len(HEADER) - 2)) for prior, title in TITLES.items() if prior not in found]
    caption = (
        f"{what} Nearest neighbour: the mean distance from an inducing input to the nearest other one, over all draws; "
        "of all of them, then of those in view, that is in the figure's panels. At the boundary: the share of the "
        "inducing inputs in view, and of the training rows, where the average classifier's probability lies between "
        "0.25 and 0.75."
    )
    return Sheet("banana", caption, HEADER, tuple(rows))


def _cells(record: dict) -> tuple[str, ...]:
    left, right, bottom, top = record["extent"]
    rows = np.histogram2d(*np.asarray(record["points"]).T, bins=BINS, range=[(left, right), (bottom, top)])[0].T
    in_doubt = np.abs(np.asarray(record["probability"]) - 0.5) < DOUBT
    near = [counts[in_doubt].sum() / max(counts.sum(), 1) for counts in (np.asarray(record["inducing_counts"]), rows)]
    in_view = record["nearest_neighbour_in_view"]
    return (
        f"{record['test_error']:.4f}", f"{record['test_mnll']:.4f}", f"{record['test_auc']:.4f}",
        f"{record['nearest_neighbour']:.2f}", "" if in_view is None else f"{in_view:.2f}",
        f"{record['share_in_view']:.0%}", *(f"{share:.0%}" for share in near),
    )  # fmt: skip
