"""Presents a model's scores beside those of its baselines, as a table and as sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import neg, pos

import numpy as np

from bsgp.estimators.scoring import Scores
from bsgp.report.text import clean, counted, digits, percent


@dataclass(frozen=True)
class Metric:
    """A column of the table of scores."""

    label: str
    meaning: str
    badness: Callable[[float], float]
    """Maps a score to a number that is smallest for the best score."""
    show: Callable[[float], str]


METRICS = {
    "mnll": Metric(
        "MNLL",
        "mean negative log predictive density, which rewards accuracy and honest uncertainty; lower is better",
        pos,
        digits,
    ),
    "nrmse": Metric(
        "NRMSE", "RMSE divided by the standard deviation of the training targets; lower is better", pos, digits
    ),
    "rmse": Metric("RMSE", "root mean squared error in the units of the target; lower is better", pos, digits),
    "crps": Metric(
        "CRPS", "continuous ranked probability score in the units of the target; lower is better", pos, digits
    ),
    "coverage90": Metric(
        "90% coverage",
        "share of true values inside their 90% intervals; closest to 90% is best",
        lambda v: abs(v - 0.9),
        percent,
    ),
    "error": Metric("Error", "share of rows whose most probable class is wrong; lower is better", pos, percent),
    "auc": Metric(
        "AUC", "probability that a row of one class ranks above a row of another; higher is better", neg, digits
    ),
}


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one model as text, and whether each is the best of its column."""

    name: str
    values: tuple[str, ...]
    best: tuple[bool, ...]


@dataclass(frozen=True)
class Remark:
    """One sentence about the test, and whether it is good news."""

    text: str
    is_good: bool


def headline(scores: Scores, baselines: dict[str, Scores], num_rows: int, *, single: bool) -> str:
    """One sentence that compares a model with the best baseline."""
    key = "error" if "error" in scores else "rmse" if single else "nrmse"
    metric = METRICS[key]
    best = min(baselines, key=lambda name: baselines[name][key])
    ours, theirs = scores[key], baselines[best][key]
    name = "error rate" if key == "error" else metric.label
    if digits(ours) == digits(theirs):
        comparison = "the same as"
    elif theirs > 0:
        comparison = f"{abs(ours / theirs - 1.0):.0%} {'below' if ours < theirs else 'above'}"
    else:
        comparison = "above"
    likeliest = min(baselines, key=lambda name: baselines[name]["mnll"])
    whose = "" if likeliest == best else f" ({likeliest})"
    log_density = f"MNLL {digits(scores['mnll'])} against {digits(baselines[likeliest]['mnll'])}{whose}"
    return (
        f"On {counted(num_rows, 'test row')} the {name} is {metric.show(ours)}, {comparison} "
        f"the {metric.show(theirs)} of the best baseline ({best}); {log_density}."
    )


def baseline_remarks(scores: Scores, baselines: dict[str, Scores]) -> list[Remark]:
    """One sentence for each score in which a baseline is better."""
    remarks = []
    for key in ("mnll", "error", "rmse"):
        better = [name for name, one in baselines.items() if key in scores and one[key] < scores[key]]
        if better:
            best = min(better, key=lambda name: baselines[name][key])
            metric = METRICS[key]
            remarks.append(
                Remark(
                    f"The model is worse than the {best} baseline in {metric.label} "
                    f"({metric.show(scores[key])} against {metric.show(baselines[best][key])}).",
                    False,
                )
            )
    return remarks


def score_rows(scores: dict[str, Scores]) -> tuple[ScoreRow, ...]:
    """The table of scores, a row for each model."""
    metrics = {key: METRICS[key] for key in next(iter(scores.values()))}
    badness = np.array([[metric.badness(one[key]) for key, metric in metrics.items()] for one in scores.values()])
    badness = np.where(np.isfinite(badness), badness, np.inf)
    is_best = (badness == badness.min(axis=0, keepdims=True)) & np.isfinite(badness)
    return tuple(
        ScoreRow(clean(name), tuple(metric.show(one[key]) for key, metric in metrics.items()), tuple(best))
        for (name, one), best in zip(scores.items(), is_best.tolist(), strict=True)
    )
