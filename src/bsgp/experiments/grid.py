"""Experiments that are a grid: data sets x places along x x series, a `uci` run for every fold of every cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bsgp.experiments.experiment import Choice, Drawing, Sheet
from bsgp.experiments.paper import Paper
from bsgp.experiments.points import Point, draw_panels, to_sheet
from bsgp.experiments.uci import UCIRun
from bsgp.report.style import BLUE, COLOURS, GREEN, ORANGE, PURPLE, SKY, VERMILLION

BY_SIZE = ("yacht", "boston", "energy", "concrete", "kin8nm", "powerplant", "naval", "protein")
"""Small ones first: they cost the least, and each finished one is a finished panel."""
LARGE = ("kin8nm", "powerplant", "naval", "protein")
FOLDS = tuple(range(8))
QUICK_SCALE, QUICK_INDUCING = 0.02, 10
SHEET_CAPTION = "The points of the figure: mean (standard deviation) over folds."
METHOD_COLOURS = {
    "bsgp": BLUE, "ipvi-dgp": VERMILLION, "sghmc-dgp": GREEN, "svgp": PURPLE, "fitc-svgp": ORANGE, "mcmc-svgp": SKY,
    "kiss-gp": ORANGE, "dkl": VERMILLION,
}  # fmt: skip
OWN_SIZE = 100  # inducing points of a method's own settings, but for shallow bsgp on large sets


@dataclass(frozen=True)
class Series:
    """One colour of a figure: settings of its runs, and the columns by which the authors' figures are found."""

    label: str
    run: Mapping
    paper: Mapping | None = None
    places: tuple[str, ...] | None = None
    """Labels of the places that it has; None is all."""
    datasets: tuple[str, ...] | None = None
    """Likewise."""
    colour: str | None = None
    """Methods that are in several figures keep theirs; None takes the next free one."""

    def has(self, dataset: str, place: "Place") -> bool:
        return (self.places is None or place.label in self.places) and (
            self.datasets is None or dataset in self.datasets
        )


@dataclass(frozen=True)
class Place:
    """A place along x."""

    label: str
    run: Mapping = field(default_factory=dict)
    paper: Mapping = field(default_factory=dict)


def method_series(label: str, method: str, **where) -> Series:
    """A method with settings of its own, in its own colour; `where` tells more of the authors' figures for it."""
    return Series(label, {"method": method}, {"method": method, **where}, colour=METHOD_COLOURS.get(method))


def sizes(*counts: int) -> tuple[Place, ...]:
    """Places that are numbers of inducing points."""
    return tuple(Place(str(count), {"num_inducing": count}, {"num_inducing": count}) for count in counts)


def depths(*counts: int) -> tuple[Place, ...]:
    return tuple(Place(str(count), {"depth": count}, {"depth": count}) for count in counts)


@dataclass(frozen=True)
class Grid:
    """The runs of an experiment, and its points."""

    name: str
    series: tuple[Series, ...]
    places: tuple[Place, ...]
    x_name: str
    datasets: tuple[str, ...] = BY_SIZE

    def plan(self, choice: Choice) -> list[UCIRun]:
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

    def _run(self, dataset: str, fold: int, series: Series, place: Place, choice: Choice) -> UCIRun:
        run = UCIRun(dataset, fold, seed=choice.seed, **{**place.run, **series.run})
        run = _with_own_size(run)
        if choice.quick:
            run = replace(run, scale=QUICK_SCALE, num_inducing=min(run.num_inducing or OWN_SIZE, QUICK_INDUCING))
        return run

    def points(self, records: Sequence[dict], paper: Paper, metric: str = "test_mnll") -> list[Point]:
        """Every cell of the grid, empty or not; where no full run is there the quick ones are taken."""
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
                    points.append(Point(dataset, series.label, place.label, ours, theirs))
        return points

    def _theirs(self, paper: Paper, dataset: str, series: Series, place: Place, metric: str) -> dict[int, float]:
        if series.paper is None:
            return {}
        where = {"experiment": self.name, "dataset": dataset, **place.paper, **series.paper}
        return paper.by_fold(metric=metric, **where)

    def show(self, records: Sequence[dict], paper: Paper, about: str) -> list[Drawing | Sheet]:
        """A panel per data set, and the same as a table."""
        points = self.points(records, paper)
        places = [place.label for place in self.places]
        caption = f"{about} {self.what_was_run(points)}"
        figure = draw_panels(points, self.colours, places, x_label=self.x_name)
        return [Drawing(self.name, caption, figure), to_sheet(points, self.name, SHEET_CAPTION, self.x_name)]

    @property
    def colours(self) -> dict[str, str]:
        """Of every series, by its label."""
        free = iter([colour for colour in COLOURS if all(series.colour != colour for series in self.series)])
        return {series.label: series.colour or next(free) for series in self.series}

    def what_was_run(self, points: Sequence[Point]) -> str:
        done, planned = sum(len(point.ours) for point in points), len(points) * len(FOLDS)
        return (
            f"Means over folds with 95% intervals; {done} of {planned} runs are there, a small cross at the foot marks "
            "a cell without any. The authors' figures are over all their folds, as released."
        )


def _with_own_size(run: UCIRun) -> UCIRun:
    """Without a number of inducing points that is the method's own anyway: runs are then shared with other grids."""
    owns_more = run.method.startswith("bsgp") and run.depth == 1 and run.dataset in LARGE
    return replace(run, num_inducing=None) if run.num_inducing == OWN_SIZE and not owns_more else run
