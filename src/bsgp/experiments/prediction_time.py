"""Figure 9: what predictions cost, of bsgp by the number of draws that are kept, of svgp by that of inducing points."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bsgp.data.named import UCI
from bsgp.experiments.curves import PANEL_HEIGHT, PANEL_WIDTH, Found, find_runs, in_folds, mean_of, second_axis
from bsgp.experiments.experiment import Choice, Drawing, Sheet, kind_of
from bsgp.experiments.grid import METHOD_COLOURS
from bsgp.experiments.paper import Paper
from bsgp.experiments.points import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "Test MNLL against prediction time on protein: draws of bsgp against inducing points of svgp (Figure 9)."
NAME = "prediction-time"
DATASET, QUICK_DATASET = "protein", "powerplant"
NUM_DRAWS = (8, 16, 32, 64, 128, 256)
NUM_REPEATS = 3
SCALE_OF_SIZE = {100: 1.0, 250: 1.0, 500: 0.5, 1_000: 0.125, 2_000: 0.0625}
"""Of svgp by its number of inducing points, as a step costs so much more."""
QUICK_SIZES, QUICK_SCALE = (20, 40), 1 / 64


@dataclass(frozen=True)
class Settings:
    """What is to be fitted and timed. `num_inducing` overrides the method's own where it is given."""

    kind: ClassVar[str] = "prediction-time"
    method: str = "bsgp"
    depth: int = 1
    num_inducing: int | None = None
    dataset: str = DATASET
    fold: int = 0
    seed: int = 0
    scale: float = 1.0
    """Multiplies the number of updates."""

    @property
    def key(self) -> str:
        parts = [self.kind, self.method, self.dataset, f"depth{self.depth}", f"fold{self.fold}", f"seed{self.seed}"]
        if self.num_inducing is not None:
            parts.append(f"M{self.num_inducing}")
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        return "/".join(parts)


def run(settings: Settings, data_dir: str | None) -> dict:
    """Fit, then predict the test rows over and over."""
    import jax
    import jax.random as jr

    from bsgp.data.folds import split
    from bsgp.data.named import load_named
    from bsgp.fitting import Options, fit_method
    from bsgp.likelihoods import gaussian
    from bsgp.model import DeepGP

    cpu_began = time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold)
    options = Options(depth=settings.depth, num_inducing=settings.num_inducing, effort=settings.scale)
    with jax.enable_x64(True):
        likelihood = gaussian(fold.y.shape[1], fold.X.dtype)
        fit_key, test_key, thin_key = jr.split(jr.key(settings.seed), 3)
        posterior, history, _ = fit_method(settings.method, fold.X, fold.y, likelihood, fit_key, options=options)
        cpu_done = time.process_time()
        total = posterior.num_chains * posterior.num_draws
        points = []
        for num_draws in (num for num in NUM_DRAWS if num < total):
            # one row is enough for the figures of merit that `thin` gives: the timed calls have their own
            thinned = posterior.thin(num_draws, fold.X_test[:1], fold.y_test[:1], jr.clone(thin_key))
            points.append(_timed(thinned.posterior, fold, test_key))
        points.append(_timed(posterior, fold, test_key))
    return {
        **asdict(settings),
        "num_inducing": posterior.model.layers[0].Z.shape[-2] if isinstance(posterior.model, DeepGP) else None,
        "num_train": len(fold.X),
        "num_test": len(fold.X_test),
        "evaluations": history.evaluations,
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "points": points,
        "interrupted": history.interrupted,
        "warnings": list(history.warnings),
    }


def _timed(posterior: Any, fold: Any, key: Any) -> dict:
    """MNLL of the test rows, and the CPU seconds that it took: the least of some calls, after one that compiles."""
    import jax.random as jr

    from bsgp.evaluate import mnll

    log_density = posterior.log_density(fold.X_test, fold.y_test, jr.clone(key))
    seconds = []
    for _ in range(NUM_REPEATS):
        began = time.process_time()
        posterior.log_density(fold.X_test, fold.y_test, jr.clone(key))
        seconds.append(time.process_time() - began)
    return {
        "num_draws": posterior.num_chains * posterior.num_draws,
        "prediction_seconds": round(min(seconds), 6),
        "test_mnll": mnll(log_density, fold.y_units.scale),
    }


def plan(choice: Choice) -> list[Settings]:
    """bsgp first, then svgp from the cheap to the dear."""
    if choice.quick:
        datasets = choice.datasets or (QUICK_DATASET,)
        bsgp = [("bsgp", depth, QUICK_SIZES[0], QUICK_SCALE) for depth in (1, 2)]
        svgp = [("svgp", 1, size, QUICK_SCALE) for size in QUICK_SIZES]
    else:
        datasets = choice.datasets or (DATASET,)
        bsgp = [("bsgp", depth, None, 1.0) for depth in (1, 2)]
        svgp = [("svgp", 1, size, scale) for size, scale in SCALE_OF_SIZE.items()]
    return [
        Settings(method, depth, size, dataset, fold, choice.seed, scale)
        for method, depth, size, scale in (*bsgp, *svgp)
        if (choice.methods is None or method in choice.methods) and (choice.depths is None or depth in choice.depths)
        for dataset in datasets
        for fold in choice.folds or (0,)
    ]


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    del paper  # nothing of this figure was released
    records = [record for record in records if kind_of(record) == Settings.kind]
    there = {record["dataset"] for record in records}
    found, is_quick = find_runs(plan, records, [name for name in UCI if name in there])
    if not found:
        return []
    return [Drawing(NAME, _caption(found, is_quick), _draw(found)), _sheet(found)]


@dataclass(frozen=True)
class _Point:
    """Means over folds and seeds."""

    run: Settings
    num_inducing: int
    num_draws: int
    seconds: float
    mnll: float
    num_runs: int


def _points(found: Found) -> list[_Point]:
    """Every point that a data set has, in the order of the plan and of draws."""
    points = []
    for run, group in found.items():
        for each in zip(*(record["points"] for record in group), strict=True):
            seconds, mnll = mean_of(each, "prediction_seconds"), mean_of(each, "test_mnll")
            points.append(_Point(run, group[0]["num_inducing"], each[0]["num_draws"], seconds, mnll, len(group)))
    return points


def _draw(found: dict[str, Found]) -> "Figure":
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=((PANEL_WIDTH + 1.2) * len(found), PANEL_HEIGHT + 0.6), layout="constrained")
        for axes, (dataset, runs) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            _draw_panel(axes, _points(runs))
            num_test = next(iter(runs.values()))[0]["num_test"]
            axes.set_title(f"{dataset}, {num_test:,} test rows", fontsize=10)
            axes.legend(loc="best", fontsize=8)
        figure.supxlabel("CPU seconds of one core to predict all test rows", fontsize=10)
        figure.supylabel("test MNLL", fontsize=10)
    return figure


def _draw_panel(axes: "Axes", points: Sequence[_Point]) -> None:
    for depth, dash, marker in ((1, "-", "o"), (2, "--", "s")):
        curve = [point for point in points if point.run.method == "bsgp" and point.run.depth == depth]
        label = f"bsgp, {depth} layer{'s' if depth > 1 else ''}, by draws"
        _draw_curve(axes, curve, [f"{point.num_draws}" for point in curve], "bsgp", label, ls=dash, marker=marker)
    curve = [point for point in points if point.run.method == "svgp"]
    _draw_curve(axes, curve, [f"M = {point.num_inducing:,}" for point in curve], "svgp", "svgp", ls=":", marker="D")
    axes.margins(x=0.1, y=0.12)
    second_axis(axes)


def _draw_curve(
    axes: "Axes", curve: Sequence[_Point], words: Sequence[str], method: str, label: str, **look: Any
) -> None:
    if not curve:
        return
    x, y = [point.seconds for point in curve], [point.mnll for point in curve]
    axes.plot(x, y, color=METHOD_COLOURS[method], ms=4.5, lw=1.4, label=label, **look)
    for at, text in zip(zip(x, y, strict=True), words, strict=True):
        axes.annotate(
            text, at, xytext=(3, 5), textcoords="offset points", ha="left", fontsize=7, color=METHOD_COLOURS[method]
        )


def _caption(found: dict[str, Found], is_quick: bool) -> str:
    return (
        ("This is the quick form, which shows that everything works; its figures mean nothing. " if is_quick else "")
        + f"Test MNLL (lower is better) against the time of prediction, on {in_folds(found)}. "
        "The numbers beside the curves of bsgp are draws, kept at even distances from those of one fit; the labels of "
        "svgp are its inducing points. "
        f"Times are CPU seconds of one core for the log density of all test rows, the least of {NUM_REPEATS} calls "
        "after one that compiles; every call factorises its matrices anew. "
        "svgp was trained for fewer updates the more inducing points it has, as the table says, so that its largest "
        "may not be at their best. "
        "The authors released no data for this figure."
    )


def _sheet(found: dict[str, Found]) -> Sheet:
    header = (
        "data set", "method", "layers", "M", "draws", "scale", "runs", "fit, CPU seconds", "prediction, CPU seconds",
        "test MNLL",
    )  # fmt: skip
    rows, best = [], set()
    for dataset, runs in found.items():
        points = _points(runs)
        values = [point.mnll for point in points]
        if np.isfinite(values).any():
            best.add((len(rows) + int(np.nanargmin(values)), len(header) - 1))
        for point in points:
            run, fit_seconds = point.run, mean_of(runs[point.run], "cpu_seconds")
            words = f"{run.depth}", f"{point.num_inducing}", f"{point.num_draws}", f"{Fraction(run.scale)}"
            numbers = f"{point.num_runs}", f"{fit_seconds:.1f}", f"{point.seconds:.3g}", f"{point.mnll:.3f}"
            rows.append((dataset, run.method, *words, *numbers))
    caption = "The points of the figure, means over folds and seeds; the best MNLL of each data set is set in bold."
    return Sheet(NAME, caption, header, tuple(rows), frozenset(best))
