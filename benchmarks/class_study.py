"""What each part of the recipe for classes of many rows is worth, on rows that are held out of the training rows.

    .venv/bin/python benchmarks/class_study.py [--core 0]        appends to results/class_study.jsonl, resumable

100 inducing points, float32, one thread; one chain each, but for the powers of the likelihood, whose chains are to be
compared. Test rows are not looked at. The data come from the folder that `BSGP_DATA` or ../shared/data names.
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

# the parts, and what the recipe has in the place of each where it is left out
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
"""Of the likelihood, on airline: four chains, and how far they agree."""


def run_one(dataset: str, variant: str) -> dict:
    import jax
    import jax.random as jr
    import numpy as np

    import bsgp.fisher
    from bsgp.data.sources import as_source
    from bsgp.diagnostics import ess, rhat
    from bsgp.experiments.classification import hold_out, load_rows
    from bsgp.fitting import Options, fit_method
    from bsgp.likelihoods import Bernoulli
    from bsgp.recipes import LATENT_VARIANCE_PRIOR, fit, named_recipe, scaled

    rows = hold_out(load_rows(dataset, None), dataset, 0)
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
            bsgp.fisher.MAX_AXES = max_axes
        if recipe_changes.get("priors") == "narrow":
            recipe_changes = recipe_changes | {"priors": {"variance": LATENT_VARIANCE_PRIOR}}
        recipe = scaled(named_recipe("default", as_source(X, y), Bernoulli(), 1), 100)
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
        with jax.enable_x64(True):  # a probability that rounds to 1 has no R-hat
            exact = jax.tree.map(lambda leaf: leaf.astype(np.float64), posterior)
        draws = np.asarray(exact.predictive_draws(X_held[:NUM_RHAT_ROWS], trace_key).mean[..., 0])
        record["rhat_halves" if num_chains == 1 else "rhat"] = float(np.nanmean(rhat(draws)))
        record["ess_median"] = float(np.nanmedian(ess(draws)))
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, default=0)
    os.sched_setaffinity(0, {parser.parse_args().core})  # before JAX counts cores
    from bsgp.experiments.worker import commit

    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(one["dataset"], one["variant"]) for one in map(json.loads, lines)}
    for dataset in NUM_HELD_OUT:
        for variant in (*METHODS, *reversed(VARIANTS), *POWERS):
            # higgs has too many coordinates for axes anyway, and chains that come to agree without a power
            of_airline_alone = (*POWERS, "the same, no axes")
            if (dataset, variant) in done or (dataset == "higgs" and variant in of_airline_alone):
                continue
            pid = os.fork()  # a process of its own: what one variant changes, no other sees
            if pid == 0:
                record = run_one(dataset, variant) | {"commit": commit()}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{dataset}, {variant}: MNLL {record['mnll']:.4f}, {record['cpu_seconds']} CPU s", flush=True)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status:
                raise SystemExit(f"{dataset}, {variant} failed.")


if __name__ == "__main__":
    main()
