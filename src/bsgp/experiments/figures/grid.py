"""Grids of runs: data sets x places along x x series, with a `uci` run for every fold of every cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bsgp.experiments.datasets.folds import num_train_rows
from bsgp.experiments.datasets.named import UCI, schemas
from bsgp.experiments.experiment import Choice, Drawing, Sheet
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.points import ScorePoint, draw_panels, to_sheet
from bsgp.experiments.kinds.uci import UCIRun
from bsgp.report.style import BLUE, COLOURS, GREEN, ORANGE, PURPLE, SKY, VERMILLION

FOLDS = tuple(range(8))
QUICK_SCALE, QUICK_INDUCING = 0.02, 10
SHEET_CAPTION = "The points of the figure: mean (standard deviation) over folds."
METHOD_COLOURS = {
    "bsgp": BLUE, "ipvi-dgp": VERMILLION, "sghmc-dgp": GREEN, "svgp": PURPLE, "fitc-svgp": ORANGE, "mcmc-svgp": SKY,
    "kiss-gp": ORANGE, "dkl": VERMILLION,
}  # fmt: skip


@dataclass(frozen=True)
class GridSeries:
    """One colour of a figure."""

    label: str
    run: Mapping
    """Settings of its runs (`UCIRun`)."""
    paper: Mapping | None = None
    """Columns of the authors' results and their values. None: the authors have no such results."""
    places: tuple[str, ...] | None = None
    """Labels of the places where the series has runs. None: all places."""
    datasets: tuple[str, ...] | None = None
    """Data sets on which the series has runs. None: all data sets of the grid."""
    colour: str | None = None
    """Colour of a method that appears in several figures. None: the next free colour."""

    def has(self, dataset: str, place: "Place") -> bool:
        """Whether the series has runs in a cell."""
        return (self.places is None or place.label in self.places) and (
            self.datasets is None or dataset in self.datasets
        )


@dataclass(frozen=True)
class Place:
    """A place along x, with the settings and the columns of the authors' results that belong to it."""

    label: str
    run: Mapping = field(default_factory=dict)
    paper: Mapping = field(default_factory=dict)


def method_series(label: str, method: str, **columns) -> GridSeries:
    """Series of a method in its own colour. `columns` narrows down the authors' results."""
    return GridSeries(label, {"method": method}, {"method": method, **columns}, colour=METHOD_COLOURS.get(method))


def size_places(*sizes: int) -> tuple[Place, ...]:
    """Places along an axis of numbers of inducing points."""
    return tuple(Place(str(size), {"num_inducing": size}, {"num_inducing": size}) for size in sizes)


def depth_places(*depths: int) -> tuple[Place, ...]:
    """Places along an axis of numbers of layers."""
    return tuple(Place(str(depth), {"depth": depth}, {"depth": depth}) for depth in depths)


@dataclass(frozen=True)
class RunGrid:
    """An experiment's grid of runs, and the figure and table of its cells."""

    name: str
    about: str
    series: tuple[GridSeries, ...]
    places: tuple[Place, ...]
    x_name: str
    datasets: tuple[str, ...] = UCI
    """Data sets in the order in which they are run. Small ones first: each finished set is a finished panel."""
    note: str = ""
    """Further sentence of the figure's caption."""

    def plan(self, choice: Choice) -> list[UCIRun]:
        """All runs of a choice, without duplicates."""
        runs = [
            self._run(dataset, fold, series, place, choice)
            for dataset in self._datasets(choice)
            for place in self.places
            for series in self.series
            for fold in self._folds(choice)
            if series.has(dataset, place)
        ]
        chosen = [
            run
            for run in runs
            if (choice.methods is None or run.method in choice.methods)
            and (choice.depths is None or run.depth in choice.depths)
        ]
        return list(dict.fromkeys(chosen))  # two cells may be the same run

    def _datasets(self, choice: Choice) -> Sequence[str]:
        return choice.datasets or (self.datasets[:1] if choice.quick else self.datasets)

    def _folds(self, choice: Choice) -> Sequence[int]:
        return choice.folds if choice.folds is not None else (0,) if choice.quick else FOLDS

    def _run(self, dataset: str, fold: int, series: GridSeries, place: Place, choice: Choice) -> UCIRun:
        run = UCIRun(dataset, fold, seed=choice.seed, **{**place.run, **series.run})
        if choice.quick:
            return replace(run, scale=QUICK_SCALE, num_inducing=QUICK_INDUCING)
        # the method's own number is left out of the settings, so that other experiments share the run
        is_own = run.num_inducing is not None and run.num_inducing == own_size(run)
        return replace(run, num_inducing=None) if is_own else run

    def points(self, records: Sequence[dict], paper: Paper, metric: str = "test_mnll") -> list[ScorePoint]:
        """All cells of the grid, also empty ones. Quick runs are used if there are no full ones."""
        by_key = {record["key"]: record for record in records}
        is_quick = not any(run.key in by_key for run in self.plan(Choice()))
        choice = Choice(quick=is_quick and any(run.key in by_key for run in self.plan(Choice(quick=True))))
        points = []
        for dataset in self.datasets:
            for place in self.places:
                for series in (series for series in self.series if series.has(dataset, place)):
                    runs = {fold: self._run(dataset, fold, series, place, choice) for fold in FOLDS}
                    ours = {f: by_key[run.key][metric] for f, run in runs.items() if run.key in by_key}
                    theirs = self._theirs(paper, dataset, series, place, metric)
                    points.append(ScorePoint(dataset, series.label, place.label, ours, theirs))
        return points

    def _theirs(self, paper: Paper, dataset: str, series: GridSeries, place: Place, metric: str) -> dict[int, float]:
        if series.paper is None:
            return {}
        where = {"experiment": self.name, "dataset": dataset, **place.paper, **series.paper}
        return paper.by_fold(metric=metric, **where)

    def show(self, records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
        """A figure with one panel per data set, and a table of its points."""
        points = self.points(records, paper)
        places = [place.label for place in self.places]
        caption = " ".join(part for part in (self.about, self.note, _coverage_text(points)) if part)
        figure = draw_panels(points, self.colours, places, x_label=self.x_name)
        return [Drawing(self.name, caption, figure), to_sheet(points, self.name, SHEET_CAPTION, self.x_name)]

    @property
    def colours(self) -> dict[str, str]:
        """Colour of every series, by its label."""
        free = iter([colour for colour in COLOURS if all(series.colour != colour for series in self.series)])
        return {series.label: series.colour or next(free) for series in self.series}


def _coverage_text(points: Sequence[ScorePoint]) -> str:
    """Number of finished runs, for a caption."""
    done, planned = sum(len(point.ours) for point in points), len(points) * len(FOLDS)
    return (
        f"Means over folds with 95% intervals. {done} of {planned} runs are finished; a small cross at the foot marks "
        "a cell without any. The authors' results are over all their folds, as released."
    )


def own_size(run: UCIRun) -> int:
    """Number of inducing points that a run's method chooses itself."""
    from bsgp.methods.bsgp import BSGP, U_SAMPLED, Z_OPTIMISED, default_recipe
    from bsgp.methods.method import NUM_INDUCING
    from bsgp.methods.recipe import ProblemSize

    if run.method not in (BSGP.name, Z_OPTIMISED.name, U_SAMPLED.name):
        return NUM_INDUCING
    schema = schemas()[run.dataset]
    shape = num_train_rows(schema.rows), len(schema.inputs), len(schema.targets)
    return default_recipe(ProblemSize(*shape, run.depth, is_gaussian=True)).num_inducing
