"""A model's scores beside those of its baselines: as a table, and in words."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import neg, pos

import numpy as np

from bsgp.report.words import clean, counted, digits, percent
from bsgp.scoring import Scores


@dataclass(frozen=True)
class Metric:
    """One column of the table of scores."""

    label: str
    meaning: str
    badness: Callable[[float], float]
    """The least is the best."""
    show: Callable[[float], str]


METRICS = {
    "mnll": Metric(
        "MNLL", "mean negative log density of the truth: right, and honest about doubt; lower is better", pos, digits
    ),
    "nrmse": Metric("NRMSE", "RMSE in standard deviations of the training targets; lower is better", pos, digits),
    "rmse": Metric("RMSE", "root mean squared error in the units of the target; lower is better", pos, digits),
    "crps": Metric(
        "CRPS", "continuous ranked probability score in the units of the target; lower is better", pos, digits
    ),
    "coverage90": Metric(
        "90% coverage",
        "share of truths in their 90% intervals; nearest to 90% is best",
        lambda v: abs(v - 0.9),
        percent,
    ),
    "error": Metric("Error", "share of rows whose most probable class is wrong; lower is better", pos, percent),
    "auc": Metric("AUC", "chance that a row of a class ranks above one of another; higher is better", neg, digits),
}


@dataclass(frozen=True)
class ScoreRow:
    """A model's scores as text, and which of them are the best of their column."""

    name: str
    values: tuple[str, ...]
    best: tuple[bool, ...]


@dataclass(frozen=True)
class Remark:
    """One sentence on the test, and whether it is good news."""

    text: str
    is_good: bool


def headline(scores: Scores, baselines: dict[str, Scores], num_rows: int, *, single: bool) -> str:
    key = "error" if "error" in scores else "rmse" if single else "nrmse"
    metric = METRICS[key]
    best = min(baselines, key=lambda name: baselines[name][key])
    ours, theirs = scores[key], baselines[best][key]
    name = "share of wrong classes" if key == "error" else metric.label
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
        f"On {counted(num_rows, 'test row')} its {name} is {metric.show(ours)}, {comparison} "
        f"the {metric.show(theirs)} of the best baseline ({best}); {log_density}."
    )


def baseline_remarks(scores: Scores, baselines: dict[str, Scores]) -> list[Remark]:
    remarks = []
    for key in ("mnll", "error", "rmse"):
        better = [name for name, one in baselines.items() if key in scores and one[key] < scores[key]]
        if better:
            best = min(better, key=lambda name: baselines[name][key])
            metric = METRICS[key]
            remarks.append(
                Remark(
                    f"It is worse than the {best} baseline in {metric.label} ({metric.show(scores[key])} against "
                    f"{metric.show(baselines[best][key])}).",
                    False,
                )
            )
    return remarks


def score_rows(scores: dict[str, Scores]) -> tuple[ScoreRow, ...]:
    metrics = {key: METRICS[key] for key in next(iter(scores.values()))}
    badness = np.array([[metric.badness(one[key]) for key, metric in metrics.items()] for one in scores.values()])
    badness = np.where(np.isfinite(badness), badness, np.inf)
    is_best = (badness == badness.min(axis=0, keepdims=True)) & np.isfinite(badness)
    return tuple(
        ScoreRow(clean(name), tuple(metric.show(one[key]) for key, metric in metrics.items()), tuple(best))
        for (name, one), best in zip(scores.items(), is_best.tolist(), strict=True)
    )
