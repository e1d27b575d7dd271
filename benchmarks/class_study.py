"""Effect of each part of the recipe for classes with many rows, on rows held out of the training rows.

    .venv/bin/python benchmarks/class_study.py [--core 0] [--data-dir FOLDER]

Appends to results/class_study.jsonl; an interrupted study can be resumed. 100 inducing points, float32, one thread.
One chain each, except four for the powers of the likelihood, whose chains are compared. Test rows are not used. The
data come from `--data-dir`, or from the folder that the environment variable BSGP_DATA names.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "class_study.jsonl"
NUM_HELD_OUT = {"airline": 50_000, "higgs": 5_000}
NUM_RHAT_ROWS = 500
THINNING = 160

# changes of the recipe, changes of its plan, and the number of axes of the Fisher mass (None: the default)
PAPER_Z = {"stays_near_start": False}
NARROW = {"priors": "narrow"}
VARIANTS = {
    "default": ({}, {}, None),
    "Z around the origin": (PAPER_Z, {}, None),
    "Z around the origin, narrow kernel priors": (PAPER_Z | NARROW, {}, None),
    "the same, no axes": (PAPER_Z | NARROW, {}, 0),
    "the same, steady mass": (PAPER_Z | NARROW, {"adaptation": "steady"}, None),
}
METHODS = ("svgp", "sghmc-dgp")
POWERS = {
    "four chains, power 1": ({}, {}, None),
    "power 1/4": ({"likelihood_power": 1 / 4}, {}, None),
    "power 1/8": ({"likelihood_power": 1 / 8}, {}, None),
    "power 1/16": ({"likelihood_power": 1 / 16}, {}, None),
    "power 1/32": ({"likelihood_power": 1 / 32}, {}, None),
}
"""Powers of the likelihood on airline, with four chains that are compared."""


def run_one(dataset: str, variant: str, data_dir: str | None) -> dict:
    """Fit one variant and score it on the held-out rows."""
    import jax
    import jax.random as jr
    import numpy as np

    import bsgp.inference.fisher_mass
    from bsgp.data.store.sources import as_source
    from bsgp.experiments.kinds.classification import hold_out, load_rows
    from bsgp.methods.bsgp import LATENT_VARIANCE_PRIOR, fit, named_recipe
    from bsgp.methods.options import Options
    from bsgp.methods.recipe import ProblemSize, scaled
    from bsgp.methods.registry import fit_method
    from bsgp.models.likelihoods.classes import Bernoulli
    from bsgp.posterior.statistics import ess, rhat

    rows = hold_out(load_rows(dataset, data_dir), dataset, 0)
    num_held = NUM_HELD_OUT[dataset]
    X, y, X_held, y_held = rows.X[:-num_held], rows.y[:-num_held], rows.X[-num_held:], rows.y[-num_held:]
    fit_key, score_key, trace_key = jr.split(jr.key(0), 3)
    num_chains = 4 if variant in POWERS else 1
    began = time.process_time()
    if variant in METHODS:
        options = Options(num_inducing=100, thinning=THINNING if variant == "sghmc-dgp" else None)
        fitted = fit_method(variant, X, y, Bernoulli(), fit_key, options=options)
    else:
        recipe_changes, plan_changes, max_axes = (VARIANTS | POWERS)[variant]
        if max_axes is not None:
            bsgp.inference.fisher_mass.MAX_AXES = max_axes
        if recipe_changes.get("priors") == "narrow":
            recipe_changes = recipe_changes | {"priors": {"variance": LATENT_VARIANCE_PRIOR}}
        recipe = scaled(named_recipe("default", ProblemSize.of(as_source(X, y), Bernoulli(), 1)), 100)
        plan = replace(recipe.plan, thinning=THINNING, **plan_changes)
        fitted = fit(
            X, y, Bernoulli(), fit_key, recipe=replace(recipe, plan=plan, **recipe_changes), num_chains=num_chains
        )
    seconds = time.process_time() - began
    posterior, history = fitted.posterior, fitted.history
    record = {
        "dataset": dataset,
        "variant": variant,
        "num_chains": num_chains,
        "evaluations": history.evaluations,
        "cpu_seconds": round(seconds, 1),
        "mnll": float(-np.mean(posterior.log_density(X_held, y_held, score_key), dtype=np.float64)),
        "temperature": {name: round(float(heat.mean()), 3) for name, heat in (history.temperature or {}).items()},
        "step_size": history.step_size,
        "warnings": list(history.warnings),
    }
    if posterior.num_draws > 1:
        with jax.enable_x64(True):  # in float32 probabilities round to 1, which has no R-hat
            exact = jax.tree.map(lambda leaf: leaf.astype(np.float64), posterior)
        draws = np.asarray(exact.predictive_draws(X_held[:NUM_RHAT_ROWS], trace_key).mean[..., 0])
        record["rhat_halves" if num_chains == 1 else "rhat"] = float(np.nanmean(rhat(draws)))
        record["ess_median"] = float(np.nanmedian(ess(draws)))
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})  # before JAX counts cores
    from bsgp.experiments.engine.worker import source_commit

    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(one["dataset"], one["variant"]) for one in map(json.loads, lines)}
    for dataset in NUM_HELD_OUT:
        for variant in (*METHODS, *reversed(VARIANTS), *POWERS):
            # higgs has too many coordinates for axes, and its chains agree without a power
            only_airline = (*POWERS, "the same, no axes")
            if (dataset, variant) in done or (dataset == "higgs" and variant in only_airline):
                continue
            pid = os.fork()  # a separate process, so that a variant's changes do not affect the others
            if pid == 0:
                record = run_one(dataset, variant, arguments.data_dir) | {"commit": source_commit()}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{dataset}, {variant}: MNLL {record['mnll']:.4f}, {record['cpu_seconds']} CPU s", flush=True)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status:
                raise SystemExit(f"{dataset}, {variant} failed.")


if __name__ == "__main__":
    main()
