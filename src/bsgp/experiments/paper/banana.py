"""Figure 2: priors on the inducing inputs, on two interlocking bananas."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bsgp.experiments.experiment import Choice, Drawing, Experiment, Sheet, kind_of
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.points import styled
from bsgp.experiments.kinds.banana import (
    BINS,
    DATASET,
    METHOD,
    NUM_INDUCING,
    BananaRecord,
    BananaRows,
    BananaRun,
    fit_rows,
)
from bsgp.report.style import BLUE, INK, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

QUICK_SCALE = 0.05
TITLES = {
    "normal": "Normal",
    "determinantal": "Determinantal",
    "strauss": "Strauss",
    "strauss-hard": "Strauss, hard count",
    "uniform": "Uniform",
}
PAPER_PRIORS = ("normal", "determinantal", "strauss", "uniform")
"""Priors in the paper's own figure."""
HEADER = (
    "prior", "test error", "test MNLL", "test AUC", "nearest neighbour", "nearest neighbour, in view", "in view",
    "at the boundary", "rows at the boundary",
)  # fmt: skip
DOUBT = 0.25
"""Largest distance of a probability from 0.5 that counts as at the boundary."""
SMOOTHING = 1.0
"""Width of the smoothing in bins: five thousand points over 3,600 bins look speckled."""
CONTOURS = ((0.25, 0.7), (0.5, 1.8), (0.75, 0.7))
"""Probability and line width of each contour."""
PANEL_SIDE = 2.3  # inches


def plan(choice: Choice) -> list[BananaRun]:
    """One run for each prior."""
    from bsgp.models.inducing_priors import INDUCING_PRIORS

    selections = (choice.datasets, DATASET), (choice.methods, METHOD), (choice.depths, 1)
    if any(selected is not None and value not in selected for selected, value in selections):
        return []
    return [BananaRun(name, seed=choice.seed, scale=QUICK_SCALE if choice.quick else 1.0) for name in INDUCING_PRIORS]


def fit_priors(rows: BananaRows, *, effort: float = 1.0, verbose: bool = False) -> list[BananaRecord]:
    """Fit some rows under each prior of the paper's figure, for `bsgp demo banana`."""
    from bsgp.runtime.progress import progress_bar

    records = []
    for prior in PAPER_PRIORS:
        with progress_bar(disable=not verbose) as report:
            records.append(BananaRecord.from_record(fit_rows(BananaRun(prior, scale=effort), rows, report)))
    return records


# -- figure and table --------------------------------------------------------------------------------------------


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """Figure and table of runs that differ only in the prior."""
    del paper  # Figure 2 was released as a picture, without its numbers
    ours = [BananaRecord.from_record(one) for one in records if kind_of(one) == BananaRun.kind]
    return [draw_priors(ours), _sheet(_by_prior(ours))] if ours else []


def _about(found: dict[str, BananaRecord]) -> str:
    """Description of the runs, for the captions."""
    record = next(iter(found.values()))
    run = record.settings
    text = (
        f"A single-layer bsgp with a probit likelihood and {run.num_inducing} inducing inputs on the banana data, "
        f"{record.num_train} standardised rows to train on and {record.num_test:,} to test on, for each prior on the "
        f"inducing inputs: one chain of {record.evaluations:,} gradient evaluations, {record.num_draws} draws, seed "
        f"{run.seed}."
    )
    if run.scale != 1.0:
        text += f" The chains had {run.scale:g} of their usual length: a trial, whose scores mean nothing."
    return text


def _by_prior(records: Sequence[BananaRecord]) -> dict[str, BananaRecord]:
    """Records of the same settings by prior: the longest chains, then the planned size, then the most priors."""
    groups: dict[tuple[float, int, int], dict[str, BananaRecord]] = defaultdict(dict)
    for record in records:
        run = record.settings
        groups[run.scale, run.num_inducing, run.seed][run.inducing_prior] = record

    def priority(settings: tuple[float, int, int]) -> tuple:
        scale, num_inducing, seed = settings
        return scale, -abs(num_inducing - NUM_INDUCING), len(groups[settings]), -seed

    found = groups[max(groups, key=priority)]
    known = [prior for prior in TITLES if prior in found]
    return {prior: found[prior] for prior in [*known, *sorted(set(found) - set(known))]}


def draw_priors(records: Sequence[BananaRecord]) -> Drawing:
    """Draw a column for each prior: the average classifier above, the inducing inputs below."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    found = _by_prior(records)
    densities = {prior: _density(record) for prior, record in found.items()}
    top = max(float(density.max()) for density in densities.values())
    colours = PowerNorm(0.5, 0.0, max(top, 1e-9))  # one scale for all; without the power a few peaks outshine the rest
    with styled():
        figure = Figure(figsize=(PANEL_SIDE * len(found) + 1.2, 2 * PANEL_SIDE + 0.6), layout="constrained")
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
        f"{_about(found)} Above, the training rows by class and the average classifier: probability 0.5 bold, 0.25 and "
        "0.75 thin. Below, the number of inducing inputs per unit area, averaged over all draws and smoothed over one "
        f"of the {BINS} x {BINS} bins, with the same boundary. A percentage is the share of inducing inputs outside "
        "the panel: only the normal prior is a proper density and holds them near the data. They move slowly: another "
        "seed shows other places, and much the same classifier."
    )
    if "strauss-hard" in found and "uniform" in found:
        caption += (
            " The hard count of the Strauss process has no gradient, so the sampler cannot tell it from the uniform "
            "prior: with the same seed the two are the same chain."
        )
    return Drawing("banana", caption, figure)


def _density(record: BananaRecord) -> np.ndarray:
    """Expected number of inducing inputs per unit area, `[up across]`."""
    from scipy.ndimage import gaussian_filter

    left, right, bottom, top = record.extent
    area = (right - left) * (top - bottom) / record.inducing_counts.size
    counts = gaussian_filter(record.inducing_counts.astype(float), SMOOTHING, mode="constant")
    return counts / (record.num_draws * area)


def _draw_classifier(axes: "Axes", record: BananaRecord) -> None:
    axes.grid(visible=False)
    for label, colour in enumerate((BLUE, VERMILLION)):
        axes.scatter(*record.points[record.labels == label].T, s=5, color=colour, linewidths=0, alpha=0.8)
    _draw_boundary(axes, record, CONTOURS)


def _draw_inducing(axes: "Axes", record: BananaRecord, density: np.ndarray, colours: "Normalize") -> Any:
    axes.grid(visible=False)
    image = axes.imshow(density, origin="lower", extent=record.extent, cmap="Blues", norm=colours, aspect="auto")
    _draw_boundary(axes, record, ((0.5, 1.0),))
    outside = 1.0 - record.share_in_view
    if outside >= 0.005:
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0.0, "pad": 1.5}  # over the boundary
        axes.text(0.97, 0.03, f"{outside:.0%} outside", transform=axes.transAxes, ha="right", fontsize=8, bbox=box)
    return image


def _draw_boundary(axes: "Axes", record: BananaRecord, contours: Sequence[tuple[float, float]]) -> None:
    left, right, bottom, top = record.extent
    up, across = ((np.arange(size) + 0.5) / size for size in record.probability.shape)
    levels, widths = zip(*contours, strict=True)
    if not levels[0] <= record.probability.max() or not record.probability.min() <= levels[-1]:
        return  # a classifier without a boundary, of which Matplotlib would warn
    axes.contour(
        left + (right - left) * across, bottom + (top - bottom) * up, record.probability,
        levels=levels, colors=INK, linewidths=widths,
    )  # fmt: skip


def _sheet(found: dict[str, BananaRecord]) -> Sheet:
    rows = [(TITLES.get(prior, prior), *_cells(record)) for prior, record in found.items()]
    rows += [(title, "not run", *[""] * (len(HEADER) - 2)) for prior, title in TITLES.items() if prior not in found]
    caption = (
        f"{_about(found)} Nearest neighbour: the mean distance from an inducing input to the nearest other one, over "
        "all draws; first of all inducing inputs, then of those in view, that is, in the figure's panels. At the "
        "boundary: the share of the inducing inputs in view, and of the training rows, where the average classifier's "
        "probability lies between 0.25 and 0.75."
    )
    return Sheet("banana", caption, HEADER, tuple(rows))


def _cells(record: BananaRecord) -> tuple[str, ...]:
    left, right, bottom, top = record.extent
    row_counts = np.histogram2d(*record.points.T, bins=BINS, range=[(left, right), (bottom, top)])[0].T
    in_doubt = np.abs(record.probability - 0.5) < DOUBT
    near = [counts[in_doubt].sum() / max(counts.sum(), 1) for counts in (record.inducing_counts, row_counts)]
    in_view = record.nearest_neighbour_in_view
    return (
        f"{record.test_error:.4f}", f"{record.test_mnll:.4f}", f"{record.test_auc:.4f}",
        f"{record.nearest_neighbour:.2f}", "" if in_view is None else f"{in_view:.2f}",
        f"{record.share_in_view:.0%}", *(f"{share:.0%}" for share in near),
    )  # fmt: skip


BANANA = Experiment(
    "banana",
    "Figure 2: where the inducing inputs of a classifier lie, by their prior, on the banana data.",
    plan,
    show,
)
