"""Plan, table and traces of an experiment on a large data set of two classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bsgp.experiments.experiment import Choice, Drawing, Sheet, kind_of
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.points import styled
from bsgp.experiments.kinds.classification import NUM_RHAT_ROWS, TRACED, ClassificationRecord, ClassificationRun
from bsgp.report.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"bsgp": 4, "svgp": 1, "sghmc-dgp": 1}
"""Number of chains by method. The paper's tables call sghmc-dgp of one layer sghmc-gp."""
SCALE = {"bsgp": 5.0}
"""Factor on warm start and burn-in: with a million rows chains need tens of thousands of updates to arrive."""
POWERED_THINNING = 1_280
"""Updates between draws with a power of the likelihood: these chains are as long as the paper's."""
QUICK_CHAINS, QUICK_ROWS, QUICK_SCALE = 2, 20_000, 0.02
HEADER = (
    "method", "run", "file", "train rows", "test rows", "error", "MNLL", "AUC", "R-hat", "R-hat, 90%", "evaluations",
    "CPU s", "paper: error", "paper: MNLL", "paper: AUC", "paper: R-hat",
)  # fmt: skip
FIRST_SCORE = HEADER.index("error")
HOW_RHAT = (
    "R-hat is the rank-normalised split R-hat of the predicted probability, its mean (and standard deviation) and its "
    f"90% quantile over {NUM_RHAT_ROWS} test rows; the two halves of a single chain are compared with each other. "
    "Evaluations are minibatch gradients of each chain; CPU seconds are those of the fit, of all chains, on one core. "
    "A power of the likelihood below 1 defines another, wider posterior, for which the paper has no results. Bold is "
    "the best of ours."
)


class Published(NamedTuple):
    """Results that the paper prints for a method."""

    error: str
    mnll: str
    auc: str
    rhat: str = ""


NOTHING_PUBLISHED = Published("", "", "")


@dataclass(frozen=True)
class TwoClasses:
    """An experiment on a large data set of two classes."""

    dataset: str
    noun: str
    """Name of a row, for captions."""
    task: str
    """Sentence about the target and the features."""
    staged: str
    """Sentence about runs on the staged file."""
    original: str
    """Sentence about runs on the original file."""
    published: Mapping[str, Published]
    """The paper's results by method."""
    thinning: Mapping[str, int] = field(default_factory=dict)
    """Updates between draws by method: with this many rows neighbouring draws are alike."""
    likelihood_power: float = 1.0
    """Power of the likelihood in a second run of bsgp. 1: no second run."""

    # -- runs ----------------------------------------------------------------------------------------------------

    def plan(self, choice: Choice) -> list[ClassificationRun]:
        """Runs of all methods, and of bsgp once more with a power of the likelihood."""
        if choice.datasets is not None and self.dataset not in choice.datasets:
            return []
        if choice.depths is not None and 1 not in choice.depths:
            return []
        make = self._quick_run if choice.quick else self._full_run
        runs = [make(method, choice.seed) for method in METHODS if choice.methods is None or method in choice.methods]
        if self.likelihood_power == 1.0:
            return runs
        thinning = None if choice.quick else POWERED_THINNING
        powered = [replace(run, likelihood_power=self.likelihood_power, thinning=thinning) for run in runs]
        return [*runs, *(run for run in powered if run.method == "bsgp")]

    def _full_run(self, method: str, seed: int) -> ClassificationRun:
        scale, thinning = SCALE.get(method, 1.0), self.thinning.get(method)
        return ClassificationRun(self.dataset, method, seed, METHODS[method], scale=scale, thinning=thinning)

    def _quick_run(self, method: str, seed: int) -> ClassificationRun:
        num_chains = min(METHODS[method], QUICK_CHAINS)
        return ClassificationRun(self.dataset, method, seed, num_chains, scale=QUICK_SCALE, max_rows=QUICK_ROWS)

    # -- figures and tables --------------------------------------------------------------------------------------

    def show(self, records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
        """Scores beside the paper's, and traces. Nothing without runs."""
        del paper  # the authors' files do not have these tables
        ours = self._records(records)
        if not ours:
            return []
        rows_note = self._rows_note(ours)
        sheet = scores_sheet(self.dataset, f"{self.task} {rows_note} {HOW_RHAT}", ours, self.published)
        return [sheet, *trace_drawings(self.dataset, self.noun, ours, rows_note)]

    def _records(self, records: Sequence[dict]) -> list[ClassificationRecord]:
        """Records of the data set: runs on all rows first, in the order of the paper's methods."""
        ours = [
            ClassificationRecord.from_record(one)
            for one in records
            if kind_of(one) == ClassificationRun.kind and one["dataset"] == self.dataset
        ]
        return sorted(ours, key=lambda one: _order(one.settings))

    def _rows_note(self, records: Sequence[ClassificationRecord]) -> str:
        """Sentences about the rows behind some records, for a caption."""
        sources = {record.source for record in records}
        notes = [note for name, note in (("staged", self.staged), ("original", self.original)) if name in sources]
        if any(record.settings.max_rows is not None for record in records):
            notes.append("Runs on fewer rows only show that everything works; their scores mean nothing.")
        return " ".join(notes)


def _order(run: ClassificationRun) -> tuple:
    methods = list(METHODS)
    place = methods.index(run.method) if run.method in methods else len(methods)
    size = run.num_inducing, run.scale, run.num_chains, run.seed
    return run.max_rows is not None, place, -run.likelihood_power, *size


# -- scores ------------------------------------------------------------------------------------------------------


def scores_sheet(
    name: str, caption: str, records: Sequence[ClassificationRecord], published: Mapping[str, Published]
) -> Sheet:
    """Table with a row for every run, and for every method of the paper that was not run."""
    rows = [_sheet_row(record, published) for record in records]
    ran = {record.settings.method for record in records}
    blank = ("",) * (len(HEADER) - 2 - len(Published._fields))
    rows += [(method, "not run", *blank, *printed) for method, printed in published.items() if method not in ran]
    return Sheet(name, caption, HEADER, tuple(rows), _best_cells(records))


def _sheet_row(record: ClassificationRecord, published: Mapping[str, Published]) -> tuple[str, ...]:
    run, evaluations = record.settings, f"{record.evaluations:,}"
    has_power = run.likelihood_power != 1.0  # another posterior than the paper's
    printed = NOTHING_PUBLISHED if has_power else published.get(run.method, NOTHING_PUBLISHED)
    return (
        run.method,
        _run_text(record),
        record.source,
        f"{record.num_train:,}",
        f"{record.num_test:,}",
        f"{record.test_error:.2%}",
        f"{record.test_mnll:.3f}",
        f"{record.test_auc:.3f}",
        "" if record.rhat_mean is None else f"{record.rhat_mean:.3f} ({record.rhat_sd:.3f})",
        "" if record.rhat_q90 is None else f"{record.rhat_q90:.3f}",
        f"{run.num_chains} x {evaluations}" if run.num_chains > 1 else evaluations,
        f"{record.cpu_seconds:,.0f}",
        *printed,
    )


def _run_text(record: ClassificationRecord) -> str:
    """Settings of a run, for a cell of the table."""
    run = record.settings
    parts = [_chains_text(run)] if record.rhat_mean is not None else []
    parts += [f"M = {run.num_inducing}", f"seed {run.seed}"]
    if run.scale != 1.0:
        parts.append(f"{run.scale:g} times as long")
    if run.thinning is not None:
        parts.append(f"{run.thinning} updates between draws")
    if run.likelihood_power != 1.0:
        parts.append(f"likelihood to the power of {run.likelihood_power:g}")
    return ", ".join(parts)


def _chains_text(run: ClassificationRun) -> str:
    return "1 chain" if run.num_chains == 1 else f"{run.num_chains} chains"


def _best_cells(records: Sequence[ClassificationRecord]) -> frozenset[tuple[int, int]]:
    """Cells of the best scores among runs on all rows, or among all runs if there are none on all rows."""
    whole = [index for index, one in enumerate(records) if one.settings.max_rows is None]
    rows = whole or list(range(len(records)))
    if len(rows) < 2:
        return frozenset()
    losses = [(record.test_error, record.test_mnll, -record.test_auc) for record in records]
    return frozenset(
        (min(rows, key=lambda row, score=score: losses[row][score]), FIRST_SCORE + score) for score in range(3)
    )


# -- traces ------------------------------------------------------------------------------------------------------


def trace_drawings(dataset: str, noun: str, records: Sequence[ClassificationRecord], rows_note: str) -> list[Drawing]:
    """Traces of bsgp, and of bsgp with a power of the likelihood.

    Of several runs the one on all rows is drawn, then the one with the most chains.
    """
    traced = [one for one in records if one.settings.method == "bsgp" and one.traces]
    drawings = []
    for name, has_power in ((f"{dataset}-traces", False), (f"{dataset}-traces-power", True)):
        candidates = [one for one in traced if (one.settings.likelihood_power != 1.0) == has_power]
        if candidates:
            record = max(candidates, key=_trace_priority)
            drawings.append(Drawing(name, _trace_caption(noun, record, rows_note), _draw_traces(record, noun)))
    return drawings


def _trace_priority(record: ClassificationRecord) -> tuple:
    run = record.settings
    return run.max_rows is None, run.num_chains, -run.likelihood_power


def _draw_traces(record: ClassificationRecord, noun: str) -> "Figure":
    """Draw a panel for each traced test row and a line for each chain. All panels span the same height."""
    from matplotlib.figure import Figure

    traces = record.traces
    reach = 0.55 * max(0.02, *(float(np.ptp(trace.draws)) for trace in traces))
    with styled():
        figure = Figure(figsize=(3.3 * len(traces), 2.9), layout="constrained")
        panels = figure.subplots(1, len(traces), squeeze=False)[0]
        for axes, trace in zip(panels, traces, strict=True):
            for index, chain in enumerate(trace.draws):
                label = f"chain {index + 1}" if axes is panels[0] else None
                axes.plot(chain, color=COLOURS[index % len(COLOURS)], lw=0.8, alpha=0.85, label=label)
            middle = 0.5 * (float(trace.draws.min()) + float(trace.draws.max()))
            axes.set_ylim(middle - reach, middle + reach)
            axes.set_title(f"test {noun} {trace.test_row:,}: R-hat {trace.rhat:.3f}", fontsize=10)
        figure.supxlabel("draw", fontsize=10)
        panels[0].set_ylabel("probability")
        figure.legend(loc="outside upper center", ncols=len(COLOURS), fontsize=8)
    return figure


def _trace_caption(noun: str, record: ClassificationRecord, rows_note: str) -> str:
    run = record.settings
    power = "" if run.likelihood_power == 1.0 else f", with the likelihood to the power of {run.likelihood_power:g}"
    means = ", ".join(f"{trace.mean:.2f} (it is {trace.label})" for trace in record.traces)
    levels = ", ".join(f"{level:g}" for level in TRACED)
    return (
        f"Traces of bsgp on {run.dataset}{power}: the probability of class 1 of three test {noun}s under each of "
        f"{record.num_draws} draws of {_chains_text(run)}. Among {NUM_RHAT_ROWS} random {noun}s they are those whose "
        f"mean probability is nearest to {levels}, without {noun}s on which all draws nearly agree. Their means are "
        f"{means}. All panels span the same height. {rows_note}"
    )
