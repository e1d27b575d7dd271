"""Comparison with regressors that a user might choose instead of bsgp. The paper has none."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bsgp.experiments.datasets.named import UCI
from bsgp.experiments.experiment import Choice, Drawing, Experiment, Sheet, kind_of
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.points import mean_and_error, mean_sd_text, styled
from bsgp.experiments.kinds.peers import MAX_GP_ROWS, PEERS, PeerRun, has_ngboost
from bsgp.experiments.kinds.uci import UCIRun, settings_of
from bsgp.report.style import BLUE, INK, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDS = (0, 1, 2, 3)


def plan(choice: Choice) -> list[PeerRun]:
    """Runs fold by fold, small sets first. Without its package ngboost is left out, unless the user named it."""
    methods = [name for name in PEERS if name != "ngboost" or has_ngboost()]
    if choice.methods is not None:
        methods = [name for name in PEERS if name in choice.methods]
    if choice.depths is not None and 1 not in choice.depths:
        methods = []
    datasets = [name for name in UCI if name in (choice.datasets or (UCI[:1] if choice.quick else UCI))]
    folds = choice.folds if choice.folds is not None else FOLDS[:1] if choice.quick else FOLDS
    return [PeerRun(name, fold, method, choice.seed) for fold in folds for name in datasets for method in methods]


# -- figure and tables -------------------------------------------------------------------------------------------

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
    "hist-gbm": "gradient-boosted trees with early stopping, one noise variance from held-out training rows",
    "hist-gbm-quantile": "boosted trees for the 5%, 50% and 95% quantiles, scored as a normal of that median and width",
    "ngboost": "natural-gradient boosting of a normal's mean and spread with early stopping",
}
"""How each method was run, for captions."""
PEER_PANEL_WIDTH, PEER_ROW_HEIGHT = 2.3, 0.24  # inches
REACH = 5.0
"""Where a panel ends, in distances from the best method to the median one."""
MIN_REACH = 0.6
"""Distance from the best method, in nats, within which none is cut off."""
AT_THE_EDGE = 0.97
"""Place of the arrow of a method that is cut off, as a share of the panel's width."""

Cells = Mapping[tuple[str, str], Mapping[int, dict]]
"""Records by (method, data set) and fold."""


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    """A figure of MNLL and a table of each metric, with bsgp's `uci` runs on the peers' folds."""
    del paper  # the authors compared with none of these
    cells = _gather(records)
    if not cells:
        return []
    return [_drawing(cells), *(_sheet(cells, metric) for metric in METRICS)]


def _gather(records: Sequence[dict]) -> Cells:
    """Records of all peers, and of bsgp on the same folds."""
    cells: dict[tuple[str, str], dict[int, dict]] = defaultdict(dict)
    theirs = [record for record in records if kind_of(record) == PeerRun.kind and record["method"] in PEERS]
    for record in sorted(theirs, key=lambda record: -record["seed"]):  # the lowest seed comes last and stays
        cells[record["method"], record["dataset"]][record["fold"]] = record
    for dataset in _datasets(cells):
        folds = _folds(cells, dataset)
        ours = [record for record in records if _is_ours(record, dataset) and record["fold"] in folds]
        # the same settings on all folds: the defaults if they were run, else the settings with the most folds
        variants: dict[tuple[str, ...], dict[int, dict]] = defaultdict(dict)
        for record in sorted(ours, key=lambda record: -record["seed"]):
            variants[settings_of(record).overrides][record["fold"]] = record
        if variants:
            best = max(variants, key=lambda overrides: (not overrides, len(variants[overrides]), -len(overrides)))
            cells[OURS, dataset] = variants[best]
    return cells


def _is_ours(record: dict, dataset: str) -> bool:
    """Whether a record is of bsgp with one layer under the default recipe, of any size, length and chains."""
    if kind_of(record) != UCIRun.kind:
        return False
    run = settings_of(record)
    plain = UCIRun(dataset, run.fold, method=OURS, seed=run.seed)
    return replace(run, num_inducing=None, scale=1.0, num_chains=1) == plain


def _datasets(cells: Cells) -> list[str]:
    return [name for name in UCI if any(dataset == name for _, dataset in cells)]


def _methods(cells: Cells) -> list[str]:
    return [name for name in (OURS, *PEERS) if any(method == name for method, _ in cells)]


def _folds(cells: Cells, dataset: str) -> set[int]:
    """Folds of any method on a data set."""
    return {fold for (_, name), by_fold in cells.items() if name == dataset for fold in by_fold}


def _runs_text(cells: Cells) -> str:
    """Methods and folds, for a caption."""
    datasets = _datasets(cells)
    folds = sorted({fold for name in datasets for fold in _folds(cells, name)})
    which = f"fold {folds[0]}" if len(folds) == 1 else f"folds {_listed([str(fold) for fold in folds])}"
    of_ours = {name: next(iter(cells[OURS, name].values())) for name in datasets if (OURS, name) in cells}
    overrides = {name: settings_of(record).overrides for name, record in of_ours.items()}
    changed = [f"{name} ({', '.join(labels)})" for name, labels in overrides.items() if labels]
    note = f" bsgp was run only with other settings on {_listed(changed)}." if changed else ""
    return f"{_listed(_methods(cells))} on {which} of the paper's splits.{note}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _sheet(cells: Cells, metric: str) -> Sheet:
    name, meaning = METRICS[metric]
    methods, datasets = _methods(cells), _datasets(cells)
    rows, best = [], set()
    for method in methods:
        rows.append((method, *(_cell_text(cells, method, dataset, metric) for dataset in datasets)))
    for column, dataset in enumerate(datasets, start=1):
        winner = _best(cells, dataset, metric)
        if winner is not None:
            best.add((methods.index(winner), column))
    caption = (
        f"{meaning} Mean (standard deviation) over folds of {_runs_text(cells)} The best of each set is bold; the "
        "figure's caption describes how each method was run."
    )
    return Sheet(f"peers-{name.lower()}", caption, ("method", *datasets), tuple(rows), frozenset(best))


def _values(cells: Cells, method: str, dataset: str, metric: str) -> list[float]:
    return [record[metric] for record in cells.get((method, dataset), {}).values()]


def _cell_text(cells: Cells, method: str, dataset: str, metric: str) -> str:
    values, num_folds = _values(cells, method, dataset, metric), len(_folds(cells, dataset))
    if not values:
        return "not run"
    return mean_sd_text(values) + (f", {len(values)} of {num_folds} folds" if len(values) < num_folds else "")


def _best(cells: Cells, dataset: str, metric: str) -> str | None:
    """Best of the methods that were run on all folds. None if there are fewer than two."""
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
    height = rows * (PEER_ROW_HEIGHT * len(methods) + 0.75) + 0.3
    with styled():
        figure = Figure(figsize=(PEER_PANEL_WIDTH * columns + 1.2, height), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, dataset in zip(panels, datasets, strict=False):
            _draw_panel(axes, {method: _values(cells, method, dataset, "test_mnll") for method in methods})
            axes.set_title(dataset, fontsize=10)
        for axes in panels[len(datasets) :]:
            axes.set_axis_off()
        figure.supxlabel("test MNLL, lower is better", fontsize=10)
    how = "; ".join(f"{method} is {HOW[method]}" for method in methods)
    caption = (
        f"Test MNLL, mean over folds with 95% intervals, of {_runs_text(cells)} A number beside an arrow is a mean "
        f"beyond the panel. Here {how}. The peers fit a separate model for each target."
    )
    return Drawing("peers", caption, figure)


def _draw_panel(axes: "Axes", values: Mapping[str, Sequence[float]]) -> None:
    """Draw the scores of each method, from the top down."""
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
    axes.set_xlim(low, min(high, limit + 0.1 * (limit - low)) if beyond else high)  # intervals may be cut off, too
    for row, mean in beyond.items():
        across = axes.get_yaxis_transform()
        axes.plot(AT_THE_EDGE, row, marker=">", color=VERMILLION, ms=5, transform=across, clip_on=False)
        axes.text(AT_THE_EDGE - 0.05, row, f"{mean:.2f}", transform=across, ha="right", va="center", fontsize=8)
    axes.set_yticks(range(len(values)), list(values), color=INK)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)


def _limit(means: Sequence[float]) -> float:
    """Right end of a panel, so that one method far off does not squeeze all others."""
    best, middle = min(means), float(np.median(means))
    limit = best + max(REACH * (middle - best), MIN_REACH)
    return limit if max(means) > limit else max(means)


PEER_COMPARISON = Experiment(
    "peers",
    "What a user might choose instead of bsgp: scikit-learn's GP, a neural network and gradient-boosted trees.",
    plan,
    show,
)
