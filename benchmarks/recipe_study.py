"""Effect of each part of the recipe: one change at a time, on a few folds, one thread.

    .venv/bin/python benchmarks/recipe_study.py [--core 0] [--data-dir FOLDER]
    .venv/bin/python benchmarks/recipe_study.py --figure [--data-dir FOLDER]

The first appends to results/recipe_study.jsonl and can be resumed; the second draws docs/figures/recipe.png from it.
The data come from `--data-dir`, or from the folder that the environment variable BSGP_DATA names.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "recipe_study.jsonl"

# name of the study, name of the variant, changes of the recipe, changes of its plan, folds
SMALL = [("energy", 1)]
LARGE = [("kin8nm", 0)]
STUDY = [
    ("coordinates of u", "anchored (default)", {}, {}, SMALL),
    ("coordinates of u", "plain V", {"num_anchor": None}, {}, SMALL),
    (
        "coordinates of u",
        "plain V, 21,000 evaluations",
        {"num_anchor": None},
        {"burn_in": 10_240, "thinning": 32},
        SMALL,
    ),
    ("noise", "optimised", {"treatment": {"noise": "optimise"}}, {}, SMALL),
    ("noise", "begun at 1", {"start_noise": 1.0}, {}, SMALL),
    *[("warm start", f"{n:,}", {}, {"adam_steps": n}, SMALL) for n in (0, 500, 8_000)],
    *[("step size", f"{eps:g}, fixed", {}, {"step_size": eps}, SMALL) for eps in (0.003, 0.01, 0.03, 0.1)],
    ("batch size", "1,000 (default)", {}, {}, LARGE),
    ("batch size", "250", {}, {"batch_size": 250}, LARGE),
    ("coordinates of u, many rows", "plain V", {"num_anchor": None}, {}, LARGE),
]
DRAWS = (1, 4, 16, 64, 256)


def run_one(dataset: str, fold: int, recipe_changes: dict, plan_changes: dict, data_dir: str | None) -> dict:
    """Fit one variant and score it with more and more of its draws."""
    import jax.random as jr

    from bsgp.experiments.datasets.folds import split
    from bsgp.experiments.datasets.named import load_named
    from bsgp.methods.bsgp import default_recipe, fit
    from bsgp.methods.recipe import ProblemSize
    from bsgp.models.likelihoods.gaussian_noise import gaussian
    from bsgp.posterior.metrics import mnll
    from bsgp.posterior.posterior import Posterior

    data = load_named(dataset, data_dir)
    rows = split(data.X, data.y, fold)
    recipe = default_recipe(ProblemSize(*rows.X.shape, rows.y.shape[1], 1, True))
    recipe = replace(recipe, plan=replace(recipe.plan, **plan_changes), **recipe_changes)
    likelihood = gaussian(rows.y.shape[1], rows.X.dtype)
    began = time.process_time()
    posterior, history, _ = fit(rows.X, rows.y, likelihood, jr.key(0), recipe=recipe)
    seconds = time.process_time() - began

    def score(num_draws: int) -> float:
        import jax

        every = posterior.num_draws // num_draws
        fewer = Posterior(jax.tree.map(lambda x: x[:, every - 1 :: every], posterior.model))
        return mnll(fewer.log_density(rows.X_test, rows.y_test, jr.key(1)), rows.y_units.scale)

    return {
        "evaluations": history.evaluations,
        "cpu_seconds": round(seconds, 1),
        "test_mnll": {str(n): score(n) for n in DRAWS},
        "predictive_ess": float(_median(posterior.predictive_ess(rows.X_test[:100], jr.key(2)))),
        "hottest_block": max(float(t.max()) for t in history.temperature.values()),
        "warnings": len(history.warnings),
    }


def _median(values):
    import numpy as np

    return np.median(values)


def main(core: int | None, data_dir: str | None) -> None:
    """Run all variants that the results do not have yet."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import jax

    jax.config.update("jax_enable_x64", True)
    from bsgp.experiments.engine.worker import source_commit
    from bsgp.runtime.compilation import enable_compilation_cache

    enable_compilation_cache()
    done = {(r["study"], r["variant"], r["dataset"], r["fold"]) for r in map(json.loads, _lines())}
    for study, variant, recipe_changes, plan_changes, folds in STUDY:
        for dataset, fold in folds:
            if (study, variant, dataset, fold) in done:
                continue
            record = {"study": study, "variant": variant, "dataset": dataset, "fold": fold}
            try:
                record |= run_one(dataset, fold, recipe_changes, plan_changes, data_dir)
            except RuntimeError as error:  # a fixed step may diverge, which is a result
                record |= {"error": str(error)}
            record["commit"] = source_commit()
            with RESULTS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)


def _lines() -> list[str]:
    return RESULTS.read_text().splitlines() if RESULTS.exists() else []


def figure(data_dir: str | None) -> None:
    """Draw the results beside the authors' scores."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from bsgp.experiments.figures.authors import authors_mnll, paper_file

    records = [json.loads(line) for line in _lines()]
    path = paper_file(None, data_dir)
    authors = {} if path is None else authors_mnll(path)
    drawing, axes = plt.subplots(1, 2, figsize=(11, 4.0), layout="constrained", gridspec_kw={"width_ratios": [3, 2]})
    for axis, (dataset, fold) in zip(axes, [*SMALL, *LARGE], strict=True):
        rows = [r for r in records if (r["dataset"], r["fold"]) == (dataset, fold) and "test_mnll" in r]
        values = [r["test_mnll"]["256"] for r in rows]
        default = values[0]  # the first variant of each set is the unchanged recipe
        limit = default + 0.3 * max(1.0, abs(default))  # worse scores are written at the edge
        for y, (row, value) in enumerate(zip(rows, values, strict=True)):
            axis.plot(min(value, limit), y, "o" if value <= limit else ">", color="#0072B2")
            note = f"{row['evaluations']:,}" if value <= limit else f"{value:.2f}; {row['evaluations']:,}"
            axis.annotate(note, (min(value, limit), y), (7, 0), textcoords="offset points", va="center", fontsize=7)
        axis.axvline(default, color="#0072B2", lw=0.8, alpha=0.5, label="default recipe")
        theirs = authors.get(("bsgp", dataset, 1, fold))
        if theirs is not None:
            axis.axvline(theirs, color="#D55E00", lw=1.2, ls="--", label="authors, 228,192 evaluations")
        axis.margins(x=0.25, y=0.1)
        axis.set_yticks(range(len(rows)), [f"{r['study']}: {r['variant']}" for r in rows], fontsize=7)
        axis.invert_yaxis()
        axis.set(title=f"{dataset}, fold {fold}", xlabel="test MNLL; beside it, evaluations")
        axis.locator_params(axis="x", nbins=5)
    axes[0].legend(frameon=False, fontsize=7, loc="lower right")
    drawing.savefig(ROOT / "docs" / "figures" / "recipe.png", dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int)
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    figure(options.data_dir) if options.figure else main(options.core, options.data_dir)
