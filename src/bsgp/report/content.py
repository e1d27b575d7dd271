"""Collects the content of a report as plain values, without figures or HTML."""

import platform
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

import bsgp
from bsgp.data.encoding.feature import Feature
from bsgp.data.tables.columns import Table
from bsgp.estimators import BSGPClassifier
from bsgp.estimators.base import BSGPEstimator
from bsgp.estimators.diagnostics import Grade
from bsgp.estimators.table_kernel import describe_kernel, kernel_text
from bsgp.methods.registry import METHODS
from bsgp.report.chains import ChainPlots, chain_plots
from bsgp.report.effects import Effect, Relevance, partial_effects, relevance
from bsgp.report.extrapolation import Extrapolation, measure_extrapolation
from bsgp.report.quality import Quality, measure
from bsgp.report.scores import Remark
from bsgp.report.text import clean, counted, duration, listed, number, percent

NOTE_LIMIT = 300
MAX_NOTES = 20
LIBRARIES = ("jax", "equinox", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Fact:
    """A label and its value."""

    label: str
    value: str


@dataclass(frozen=True)
class Verdict:
    """What can be said about the sampling and, apart from that, about the predictions for a test table."""

    grade: Grade
    text: str
    warnings: tuple[str, ...]
    remarks: tuple[Remark, ...]
    """Results on the test table; empty without one."""
    is_settled: bool
    """Whether nothing speaks against the sampling, or the optimisation."""

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against the predictions for the test table."""
        return all(remark.is_good for remark in self.remarks)


@dataclass(frozen=True)
class ColumnRow:
    """One column of the training table."""

    name: str
    kind: str
    values: str
    missing: str


@dataclass(frozen=True)
class Content:
    """Everything that the page shows."""

    title: str
    lead: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    verdict: Verdict
    quality: Quality | None
    extrapolation: Extrapolation | None
    """How far the rows of the test table lie outside the data."""
    sample: str
    """A sentence that says which sample the scores are computed on; empty if they use all test rows."""
    relevance: Relevance | None
    effects: tuple[Effect, ...]
    has_several_targets: bool
    depth: int
    is_sampled: bool
    """Whether the model has draws, rather than a single optimum."""
    chains: ChainPlots
    diagnosis: tuple[Fact, ...]
    settings: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    columns: tuple[ColumnRow, ...]


def gather(model: BSGPEstimator, held_out: tuple[Table, np.ndarray] | None, sample_of: str | None = None) -> Content:
    """Collect the content about a fitted model, with its results on the test table `held_out` if there is one."""
    quality = None if held_out is None else measure(model, *held_out)
    relevant = relevance(model)
    columns = model.schema_.names if relevant is None else relevant.columns
    return Content(
        title=f"{_task(model).capitalize()} of {listed(model.target_names_, most=4)}",
        lead=_lead(model),
        facts=_facts(model),
        notes=_notes(model, quality),
        verdict=_verdict(model, quality),
        quality=quality,
        extrapolation=None if held_out is None else measure_extrapolation(model, *held_out),
        sample=_sample(quality, sample_of),
        relevance=relevant,
        effects=partial_effects(model, columns),
        has_several_targets=len(model.target_names_) > 1,
        depth=model.posterior_.model.depth,
        is_sampled=model.diagnostics_.is_sampled,
        chains=chain_plots(model),
        diagnosis=_diagnosis(model),
        settings=_changed_settings(model),
        versions=_versions(),
        columns=tuple(_column(feature) for feature in model.schema_.features)
        + tuple(ColumnRow(clean(name), "left out", clean(why), "") for name, why in model.schema_.dropped.items()),
    )


def _sample(quality: Quality | None, sample_of: str | None) -> str:
    if quality is None or sample_of is None:
        return ""
    return f"The scores are computed on a random sample: {quality.num_rows:,} of {clean(sample_of, NOTE_LIMIT)}."


def _task(model: BSGPEstimator) -> str:
    return "classification" if isinstance(model, BSGPClassifier) else "regression"


def _about(model: BSGPEstimator) -> dict:
    return getattr(model, "about_", None) or {}


def _lead(model: BSGPEstimator) -> str:
    source = _about(model).get("source")
    about = METHODS[model.method].about if model.method in METHODS else clean(model.method)
    where = f" of {clean(source)}" if source else ""
    classes = f" Classes: {listed(model.classes_)}." if isinstance(model, BSGPClassifier) else ""
    return f"Trained on {counted(model.num_rows_, 'row')}{where}.{classes} {about}"


def _facts(model: BSGPEstimator) -> tuple[Fact, ...]:
    posterior, found = model.posterior_, model.diagnostics_
    num_columns, width = len(model.schema_.features), model.schema_.width
    encoded = "" if num_columns == width else f" as {width} inputs"
    facts = {
        "Task": _task(model),
        "Target" if len(model.target_names_) == 1 else "Targets": listed(model.target_names_, limit=40),
        "Method": f"{clean(model.method)} ({_objective(model)})",
        "Layers": f"{posterior.model.depth}",
        "Kernel": clean(describe_kernel(model), NOTE_LIMIT) or "over learned features",
        "Represented by": posterior.model.support,
        "Chains x draws": f"{posterior.num_chains} x {posterior.num_draws}" if found.is_sampled else "none: optimised",
        "Training rows": f"{model.num_rows_:,}{_power(model)}",
        "Columns": f"{num_columns}{encoded}",
        "Time": duration(found.seconds) + (", stopped early" if found.interrupted else ""),
    }
    return tuple(Fact(label, value) for label, value in facts.items())


def _power(model: BSGPEstimator) -> str:
    return "" if model.likelihood_power == 1 else f", likelihood to the power of {model.likelihood_power:g}"


def _objective(model: BSGPEstimator) -> str:
    """The user's choice if the method has one, else the method's own."""
    method = METHODS.get(model.method)
    return clean(model.objective) if method is None or len(method.objectives) > 1 else method.objective


def _notes(model: BSGPEstimator, quality: Quality | None) -> tuple[str, ...]:
    """Notes on columns that are no inputs and values that were filled in."""
    about = _about(model)
    roles = {
        "Ignored as requested": "ignored",
        "Weights of the rows": "weights",
        "Known noise of the rows": "noise_std",
    }
    names = {
        title: [about[role]] if role == "weights" else about[role] for title, role in roles.items() if about.get(role)
    }
    notes = [f"{title}: {listed(columns)}." for title, columns in names.items()]
    notes += [clean(note, NOTE_LIMIT) for note in model.notes_]
    notes += [f"In the test table: {clean(note, NOTE_LIMIT)}" for note in (quality.notes if quality else ())]
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"And {counted(len(notes) - MAX_NOTES, 'more note')}."]
    return tuple(notes)


def _verdict(model: BSGPEstimator, quality: Quality | None) -> Verdict:
    found = model.diagnostics_
    early = ["The fit was stopped early, by the time limit or by Ctrl-C."] if found.interrupted else []
    return Verdict(
        grade=found.grade,
        text=found.verdict,
        warnings=(*early, *(clean(warning, NOTE_LIMIT) for warning in found.warnings)),
        remarks=quality.remarks if quality else (),
        is_settled=found.is_settled,
    )


def _diagnosis(model: BSGPEstimator) -> tuple[Fact, ...]:
    found = model.diagnostics_
    if found.move is not None:
        return (
            Fact("Change of the objective per row over the last tenth of its steps", number(abs(found.move))),
            Fact("Gradient evaluations", f"{found.evaluations:,}"),
            Fact("Time", duration(found.seconds)),
        )
    return (
        Fact("R-hat of the predictions (95% are below)", number(found.rhat)),
        Fact("R-hat of the median prediction", number(found.rhat_median)),
        Fact("Effective draws behind a prediction, bulk (95% have more)", number(found.ess)),
        Fact("Effective draws behind a prediction, tails (95% have more)", number(found.tail_ess)),
        Fact("Another run moves 90% of predictions by less than this share of their sd", percent(found.movement)),
        Fact("Chains", f"{found.num_chains}"),
        Fact("Draws per chain", f"{found.num_draws}"),
        Fact("Gradient evaluations per chain", f"{found.evaluations:,}"),
        Fact("Time", duration(found.seconds)),
    )


def _changed_settings(model: BSGPEstimator) -> tuple[Fact, ...]:
    """Settings that differ from their defaults."""
    defaults = type(model)().get_params()
    chosen = {**model.get_params(), "kernel": kernel_text(model.kernel, model.schema_)}
    return tuple(Fact(name, clean(value)) for name, value in chosen.items() if value != defaults[name])


def _versions() -> tuple[Fact, ...]:
    libraries = {name: version(name) for name in LIBRARIES}
    versions = {"bsgp": bsgp.__version__, "Python": platform.python_version(), **libraries}
    return tuple(Fact(name, one) for name, one in versions.items())


def _column(feature: Feature) -> ColumnRow:
    if feature.kind == "number":
        values = f"{number(feature.low)} to {number(feature.high)}, median {number(feature.median)}"
    elif feature.kind == "boolean":
        values = f"true in {percent(feature.fill)}"
    else:
        values = f"{len(feature.categories)}: {listed(feature.categories, limit=30)}"
    missing = percent(feature.missing_share) if feature.has_missing else "none"
    return ColumnRow(clean(feature.name), feature.kind, values, missing)
