"""One run on a large set of two classes, and what the two experiments with such runs share."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bsgp.experiments.experiment import Choice, Drawing, Sheet, kind_of
from bsgp.experiments.points import styled
from bsgp.report.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bsgp.posterior import Posterior

TEST_SHARE = 0.1
MAX_TEST_ROWS = {"airline": 100_000}
"""The paper's choice; of other sets a tenth, however many."""
MAX_STATISTICS_ROWS = 2_000_000  # mean and scale of X need no more, and are taken in float64
NUM_RHAT_ROWS = 500
MIN_RHAT_DRAWS = 8
TRACED = (0.2, 0.5, 0.8)
"""Probabilities near which a test row is traced."""

METHODS = {"bsgp": 4, "svgp": 1, "sghmc-dgp": 1}
"""Chains of each method of the paper's tables, where sghmc-dgp of one layer is called sghmc-gp."""
THINNING = {
    ("airline", "bsgp"): 640,
    ("higgs", "bsgp"): 1_280,
    ("airline", "sghmc-dgp"): 640,
    ("higgs", "sghmc-dgp"): 640,
}
"""Updates between draws: with this many rows neighbouring draws are alike. On higgs, where chains come to agree, they
are as long as the paper's, 410,000 updates with all phases."""
SCALE = {"bsgp": 5.0}
"""Times as long a warm start and burn-in: a million rows keep chains on their way for tens of thousands of updates."""
LIKELIHOOD_POWERS = {"airline": 0.03125}
"""Where four chains cannot agree on the posterior of so many rows: that of bsgp when it is run once more, with the
likelihood to this power (docs/recipe.md has others)."""
POWERED_THINNING = 1_280
"""Updates between its draws: its chains are as long as the paper's."""
QUICK_CHAINS, QUICK_ROWS, QUICK_SCALE = 2, 20_000, 0.02


@dataclass(frozen=True)
class Classification:
    """What is to be run."""

    kind: ClassVar[str] = "classification"
    dataset: str
    method: str = "bsgp"
    seed: int = 0
    """Of the split as well as of the fit."""
    num_chains: int = 1
    num_inducing: int = 100
    scale: float = 1.0
    """Multiplies the number of updates of every phase; draws stay as many."""
    max_rows: int | None = None
    """Train and test rows together, picked at random; None takes all."""
    thinning: int | None = None
    """Updates between draws; None is the method's own."""
    likelihood_power: float = 1.0
    """Below 1 the rows count for fewer than they are."""

    @property
    def key(self) -> str:
        """Its name in the results: two runs with one key are the same run."""
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


Settings = Classification


class Source(NamedTuple):
    """`X [N D]`, `y [N 1]` in raw units, and `original` or `staged`: which of two files they are from."""

    X: np.ndarray
    y: np.ndarray
    name: str


def load_rows(dataset: str, data_dir: str | None) -> Source:
    """The original file if the data folder has it, else the staged one."""
    from bsgp.data.named import load_named
    from bsgp.data.originals import load_original

    original = load_original(dataset, data_dir)
    if original is not None:
        return Source(*original, "original")
    data = load_named(dataset, data_dir)
    return Source(data.X.astype(np.float32), data.y.astype(np.float32), "staged")


class Held(NamedTuple):
    """Rows to learn from and rows held out, X standardised by the former."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def hold_out(source: Source, dataset: str, seed: int, max_rows: int | None = None) -> Held:
    """A random tenth, or the paper's 100,000 flights, held out."""
    from bsgp.data.standardise import Standardiser

    order = np.random.RandomState(seed).permutation(len(source.X))[:max_rows]
    num_test = min(round(TEST_SHARE * len(order)), MAX_TEST_ROWS.get(dataset, len(order)))
    test, train = order[:num_test], order[num_test:]
    # float32 sums of millions of rows lose digits
    units = Standardiser.fit(source.X[train[:MAX_STATISTICS_ROWS]].astype(np.float64))
    units = Standardiser(*(part.astype(source.X.dtype) for part in units))
    return Held(units.transform(source.X[train]), source.y[train], units.transform(source.X[test]), source.y[test])


def run(settings: Classification, data_dir: str | None, report=None) -> dict:
    """Fit and score; everything that is returned goes into the results as one JSON line."""
    import jax
    import jax.random as jr

    from bsgp.evaluate import auc, error_rate
    from bsgp.fitting import Options, fit_method
    from bsgp.likelihoods import Bernoulli

    source = load_rows(settings.dataset, data_dir)
    num_rows, source_name = len(source.X), source.name
    held = hold_out(source, settings.dataset, settings.seed, settings.max_rows)
    del source  # of the originals a gigabyte
    options = Options(
        num_inducing=settings.num_inducing,
        num_chains=settings.num_chains,
        effort=settings.scale,
        thinning=settings.thinning,
        likelihood_power=settings.likelihood_power,
    )
    began, cpu_began = time.monotonic(), time.process_time()
    with jax.enable_x64(False):  # there is no noise to be small: float32 takes half the time
        fit_key, test_key, trace_key = jr.split(jr.key(settings.seed), 3)
        fitted = fit_method(settings.method, held.X, held.y, Bernoulli(), fit_key, options=options, report=report)
        posterior, history = fitted.posterior, fitted.history
        done, cpu_done = time.monotonic(), time.process_time()
        # one pass over the test rows gives all scores: of two classes one probability is the other's complement
        log_density = posterior.log_density(held.X_test, held.y_test, test_key).astype(np.float64)
        chains = {}
        if posterior.num_draws >= MIN_RHAT_DRAWS:
            rows = np.random.RandomState(settings.seed).permutation(len(held.X_test))[:NUM_RHAT_ROWS]
            draws = _in_float64(posterior).predictive_draws(held.X_test[rows], trace_key).mean[..., 0]
            chains = _agreement(np.asarray(draws), held.y_test[rows, 0], rows)
    truth = held.y_test
    probability = np.where(truth == 1.0, np.exp(log_density), -np.expm1(log_density))
    return {
        **asdict(settings),
        "plan": None if fitted.run is None else asdict(fitted.run.plan),
        "source": source_name,
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
        **chains,
    }


def _in_float64(posterior: "Posterior") -> "Posterior":
    """The same draws: float32 would round a probability near 1 to 1, in one draw as in the next."""
    import jax

    with jax.enable_x64(True):
        return jax.tree.map(lambda leaf: leaf.astype(np.float64), posterior)


def _agreement(draws: np.ndarray, truth: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """How far chains agree on the probabilities of some test rows, `draws [C S N]`, and three rows' traces.

    One chain is compared with itself, half by half.
    """
    from bsgp.diagnostics import ess, rhat

    varies = np.ptp(draws, axis=1).min(axis=0) > 0  # a probability of 1 to the last digit has no R-hat
    if not varies.any():
        return {}
    draws, truth, rows = draws[:, :, varies], truth[varies], rows[varies]
    by_row, sizes = rhat(draws), ess(draws)
    mean, spread, picked = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)), []
    # far from all data a probability is 0.5 in every draw, and there is nothing to see of it
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


# -- the experiments ---------------------------------------------------------------------------------------------


class Published(NamedTuple):
    """What the paper prints of a method."""

    error: str
    mnll: str
    auc: str
    rhat: str = ""


NOTHING_PUBLISHED = Published("", "", "")


def plan_runs(dataset: str, choice: Choice) -> list[Classification]:
    """bsgp, from four chains, first."""
    if choice.datasets is not None and dataset not in choice.datasets:
        return []
    if choice.depths is not None and 1 not in choice.depths:
        return []
    methods = {name: chains for name, chains in METHODS.items() if choice.methods is None or name in choice.methods}
    if choice.quick:
        cut = {"scale": QUICK_SCALE, "max_rows": QUICK_ROWS}
        runs = [
            Classification(dataset, name, choice.seed, min(chains, QUICK_CHAINS), **cut)
            for name, chains in methods.items()
        ]
    else:
        runs = [
            Classification(
                dataset, name, choice.seed, chains, scale=SCALE.get(name, 1.0), thinning=THINNING.get((dataset, name))
            )
            for name, chains in methods.items()
        ]
    power, thinning = LIKELIHOOD_POWERS.get(dataset, 1.0), None if choice.quick else POWERED_THINNING
    once_more = [replace(one, likelihood_power=power, thinning=thinning) for one in runs if one.method == "bsgp"]
    return [*runs, *(once_more if power != 1.0 else [])]


def records_of(dataset: str, records: Sequence[dict]) -> list[dict]:
    """Those of a data set, whole runs first, in the order of the paper's methods."""
    ours = [one for one in records if kind_of(one) == Classification.kind and one.get("dataset") == dataset]
    names = list(METHODS)

    def order(one: dict):
        place = names.index(one["method"]) if one["method"] in names else len(names)
        size = one["num_inducing"], one["scale"], one["num_chains"], one["seed"]
        return one["max_rows"] is not None, place, -power_of(one), *size

    return sorted(ours, key=order)


def power_of(record: dict) -> float:
    """Of the likelihood; older records say nothing of it."""
    return record.get("likelihood_power", 1.0)


HEADER = (
    "method", "run", "file", "train rows", "test rows", "error", "MNLL", "AUC", "R-hat", "R-hat, 90%", "evaluations",
    "CPU s", "paper: error", "paper: MNLL", "paper: AUC", "paper: R-hat",
)  # fmt: skip
SCORES = {"test_error": "{:.2%}", "test_mnll": "{:.3f}", "test_auc": "{:.3f}"}
FIRST_SCORE = 5  # their place in the header


def scores_sheet(name: str, caption: str, records: Sequence[dict], paper: dict[str, Published]) -> Sheet:
    """A row for every run, and for every method of the paper that was not run; `records` as from `records_of`."""
    rows = [_sheet_row(record, paper) for record in records]
    ran = {record["method"] for record in records}
    blank = ("",) * (len(HEADER) - 2 - len(Published._fields))
    rows += [(method, "not run", *blank, *figures) for method, figures in paper.items() if method not in ran]
    return Sheet(name, caption, HEADER, tuple(rows), _best_cells(records))


def _chains_in_words(record: dict) -> str:
    return "1 chain" if record["num_chains"] == 1 else f"{record['num_chains']} chains"


def _sheet_row(record: dict, paper: dict[str, Published]) -> tuple[str, ...]:
    chains = record["num_chains"]
    run = [_chains_in_words(record)] if record.get("rhat_mean") is not None else []
    run += [f"M = {record['num_inducing']}", f"seed {record['seed']}"]
    if record["scale"] != 1.0:
        run.append(f"{record['scale']:g} times as long")
    if record.get("thinning") is not None:
        run.append(f"{record['thinning']} updates between draws")
    if power_of(record) != 1.0:
        run.append(f"likelihood to the power of {power_of(record):g}")
    rhat = record.get("rhat_mean")
    # with a power of the likelihood it is another target than the paper's
    published = paper.get(record["method"], NOTHING_PUBLISHED) if power_of(record) == 1.0 else NOTHING_PUBLISHED
    return (
        record["method"],
        ", ".join(run),
        record["source"],
        f"{record['num_train']:,}",
        f"{record['num_test']:,}",
        *(form.format(record[metric]) for metric, form in SCORES.items()),
        "" if rhat is None else f"{rhat:.3f} ({record['rhat_sd']:.3f})",
        "" if rhat is None else f"{record['rhat_q90']:.3f}",
        f"{chains} x {record['evaluations']:,}" if chains > 1 else f"{record['evaluations']:,}",
        f"{record['cpu_seconds']:,.0f}",
        *published,
    )


def _best_cells(records: Sequence[dict]) -> frozenset[tuple[int, int]]:
    """Among runs on all rows, or among all runs where there is none."""
    rows = [index for index, one in enumerate(records) if one["max_rows"] is None] or list(range(len(records)))
    if len(rows) < 2:
        return frozenset()
    cells = set()
    for place, metric in enumerate(SCORES):
        sign = -1.0 if metric == "test_auc" else 1.0
        best = min(rows, key=lambda index, metric=metric, sign=sign: sign * records[index][metric])
        cells.add((best, FIRST_SCORE + place))
    return frozenset(cells)


def which_rows(records: Sequence[dict], staged: str, original: str) -> str:
    """For a caption: on which rows these are, and which runs are not worth reading."""
    sources = {record["source"] for record in records}
    said = [words for name, words in (("staged", staged), ("original", original)) if name in sources]
    if any(record["max_rows"] is not None for record in records):
        said.append("Runs on fewer rows only show that everything works; their figures mean nothing.")
    return " ".join(said)


HOW_RHAT = (
    "R-hat is the rank-normalised split R-hat of the predicted probability, its mean (and standard deviation) and its "
    f"90% quantile over {NUM_RHAT_ROWS} test rows; a single chain is compared with itself, half by half. Evaluations "
    "are minibatch gradients of each chain; CPU seconds are those of the fit, of all chains, on one core. A power of "
    "the likelihood below 1 makes another, wider posterior, for which the paper has no figures. Bold is the "
    "best of ours."
)


def draw_traces(record: dict, noun: str) -> "Figure":
    """A panel for each traced test row, a line for each chain; all panels span the same height."""
    from matplotlib.figure import Figure

    traces = record["traces"]
    draws = [np.asarray(trace["draws"]) for trace in traces]
    reach = 0.55 * max(0.02, *(float(np.ptp(one)) for one in draws))
    with styled():
        figure = Figure(figsize=(3.3 * len(traces), 2.9), layout="constrained")
        panels = figure.subplots(1, len(traces), squeeze=False)[0]
        for axes, trace, chains in zip(panels, traces, draws, strict=True):
            for index, chain in enumerate(chains):
                label = f"chain {index + 1}" if axes is panels[0] else None
                axes.plot(chain, color=COLOURS[index % len(COLOURS)], lw=0.8, alpha=0.85, label=label)
            middle = 0.5 * (float(chains.min()) + float(chains.max()))
            axes.set_ylim(middle - reach, middle + reach)
            axes.set_title(f"test {noun} {trace['test_row']:,}: R-hat {trace['rhat']:.3f}", fontsize=10)
        figure.supxlabel("draw", fontsize=10)
        panels[0].set_ylabel("probability")
        figure.legend(loc="outside upper center", ncols=len(COLOURS), fontsize=8)
    return figure


def trace_drawings(dataset: str, noun: str, records: Sequence[dict], words: str) -> list[Drawing]:
    """Of the bsgp run with the most chains, on all rows if there is one, and of that with a power of the likelihood."""
    traced = [one for one in records if one["method"] == "bsgp" and one.get("traces")]
    drawings = []
    for name, has_power in ((f"{dataset}-traces", False), (f"{dataset}-traces-power", True)):
        of_kind = [one for one in traced if (power_of(one) != 1.0) == has_power]
        if of_kind:
            record = max(of_kind, key=lambda one: (one["max_rows"] is None, one["num_chains"], -power_of(one)))
            caption = _trace_caption(dataset, noun, record, words)
            drawings.append(Drawing(name, caption, draw_traces(record, noun)))
    return drawings


def _trace_caption(dataset: str, noun: str, record: dict, words: str) -> str:
    power = power_of(record)
    target = "" if power == 1.0 else f", the likelihood to the power of {power:g}"
    labels = ", ".join(f"{trace['mean']:.2f} (it is {trace['label']})" for trace in record["traces"])
    levels = ", ".join(f"{level:g}" for level in TRACED)
    return (
        f"Traces of bsgp on {dataset}{target}: the probability of class 1 that each of {record['num_draws']} draws of "
        f"each of {_chains_in_words(record)} gives to three test {noun}s, of {NUM_RHAT_ROWS} random ones those whose "
        f"mean probability is nearest to {levels}, without such that all draws nearly agree on. Their means are "
        f"{labels}. All panels span the same height. {words}"
    )


class Words(NamedTuple):
    """What the captions of an experiment say."""

    noun: str
    task: str
    staged: str
    """Where the rows are those of the staged file."""
    original: str


def show_runs(
    dataset: str, words: Words, records: Sequence[dict], paper: dict[str, Published]
) -> list[Drawing | Sheet]:
    """The scores beside the paper's, and the traces; nothing where there is no run."""
    ours = records_of(dataset, records)
    if not ours:
        return []
    rows = which_rows(ours, words.staged, words.original)
    caption = f"{words.task} {rows} {HOW_RHAT}"
    return [scores_sheet(dataset, caption, ours, paper), *trace_drawings(dataset, words.noun, ours, rows)]
