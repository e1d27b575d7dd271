"""Distance between predictions in float64 and in float32, beside the distance between two seeds of float64.

    .venv/bin/python benchmarks/precision.py [--data-dir FOLDER] [NAME ...]       writes results/precision.json

The distance between seeds is the Monte-Carlo error by which the distance between precisions is judged. The data come
from `--data-dir`, or from the folder that the environment variable BSGP_DATA names.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import jax
import jax.random as jr
import numpy as np

from bsgp import Plan, Posterior, Target, init_deep_gp, sample
from bsgp.experiments.datasets.folds import split
from bsgp.experiments.datasets.named import load_named
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.posterior.metrics import mnll

ROOT = Path(__file__).parent.parent
NAMES = ("boston", "kin8nm", "naval")
PLAN = Plan(adam_steps=2_000, burn_in=10_000, num_draws=256, thinning=32)


def fit(name: str, dtype: str, seed: int, data_dir: str | None) -> dict:
    """Fit fold 0 of a data set and predict its test rows."""
    data = load_named(name, data_dir)
    fold = split(data.X, data.y, 0)
    X, y, X_test, y_test = (part.astype(dtype) for part in (fold.X, fold.y, fold.X_test, fold.y_test))
    model_key, sample_key, predict_key = jr.split(jr.key(seed), 3)
    model = init_deep_gp(X, gaussian(y.shape[1], dtype), model_key, num_targets=y.shape[1], num_inducing=100)
    began = time.process_time()
    run = sample(Target(model, len(X)), X, y, sample_key, plan=PLAN)
    posterior = Posterior.from_run(run)
    predicted = posterior.predict(X_test, predict_key)
    return {
        "mean": np.asarray(predicted.mean, np.float64),
        "sd": np.sqrt(np.asarray(predicted.variance, np.float64)),
        "mnll": mnll(np.asarray(posterior.log_density(X_test, y_test, predict_key), np.float64), fold.y_units.scale),
        "cpu seconds": time.process_time() - began,
        "warnings": list(run.history.warnings),
    }


def distance(a: dict, b: dict) -> dict[str, float]:
    """Mean distance between two predictions of the same rows."""
    return {
        "mean, in predictive sd": float(np.mean(np.abs(a["mean"] - b["mean"]) / a["sd"])),
        "sd, relative": float(np.mean(np.abs(b["sd"] / a["sd"] - 1))),
    }


def main(names: list[str], data_dir: str | None):
    """Fit every data set in both precisions with two seeds."""
    path = ROOT / "results" / "precision.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        try:
            runs = {
                (dtype, seed): fit(name, dtype, seed, data_dir) for dtype in ("float64", "float32") for seed in (0, 1)
            }
        except RuntimeError as error:
            result[name] = {"failed": str(error)}
            path.write_text(json.dumps(result, indent=1))
            continue
        result[name] = {
            "float64 seed 0 against seed 1": distance(runs["float64", 0], runs["float64", 1]),
            "float64 against float32, seed 0": distance(runs["float64", 0], runs["float32", 0]),
            "float64 against float32, seed 1": distance(runs["float64", 1], runs["float32", 1]),
            "mnll": {f"{dtype} seed {seed}": run["mnll"] for (dtype, seed), run in runs.items()},
            "cpu seconds": {f"{dtype} seed {seed}": run["cpu seconds"] for (dtype, seed), run in runs.items()},
            "warnings": {f"{dtype} seed {seed}": run["warnings"] for (dtype, seed), run in runs.items()},
        }
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        result["commit"], result["evaluations"] = commit, PLAN.evaluations
        path.write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result[name], indent=1), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    main(arguments.names, arguments.data_dir)
