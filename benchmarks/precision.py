"""Is float32 the same model? Fits in both precisions, with seeds, and the distance between their predictions.

    BSGP_DATA=folder .venv/bin/python benchmarks/precision.py       writes results/precision.json

The distance between two seeds of float64 is the Monte-Carlo error that a distance between precisions is judged by.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.random as jr
import numpy as np

from bsgp import Plan, Posterior, Target, init_deep_gp, sample
from bsgp.data.standardise import Standardiser
from bsgp.evaluate import mnll
from bsgp.likelihoods import gaussian

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("BSGP_DATA", ROOT.parent / "shared" / "data"))
NUM_TARGETS = {"boston": 1, "kin8nm": 1, "naval": 2}
PLAN = Plan(warm_start=2_000, burn_in=10_000, num_draws=256, thinning=32)


def fold(name: str, index: int = 0):
    """The authors' split: train X, y, test X, y, in original units."""
    table = np.loadtxt(DATA / f"{name}.csv.gz", delimiter=",", skiprows=1)
    order = np.random.RandomState(index).permutation(len(table))
    num_test = -(-len(table) // 5)
    test, train = table[order[:num_test]], table[order[num_test:]]
    P = NUM_TARGETS[name]
    return train[:, :-P], train[:, -P:], test[:, :-P], test[:, -P:]


def fit(name: str, dtype: str, seed: int) -> dict:
    X, y, X_test, y_test = fold(name)
    x_units, y_units = Standardiser.fit(X), Standardiser.fit(y)
    X, X_test = (x_units.transform(v).astype(dtype) for v in (X, X_test))
    y, y_test = (y_units.transform(v).astype(dtype) for v in (y, y_test))
    model_key, sample_key, predict_key = jr.split(jr.key(seed), 3)
    model = init_deep_gp(X, gaussian(y.shape[1], dtype), model_key, num_targets=y.shape[1], num_inducing=100)
    began = time.process_time()
    run = sample(Target(model, len(X)), X, y, sample_key, plan=PLAN)
    posterior = Posterior.from_run(run)
    predicted = posterior.predict(X_test, predict_key)
    return {
        "mean": np.asarray(predicted.mean, np.float64),
        "sd": np.sqrt(np.asarray(predicted.variance, np.float64)),
        "mnll": mnll(np.asarray(posterior.log_density(X_test, y_test, predict_key), np.float64), y_units.scale),
        "cpu seconds": time.process_time() - began,
        "warnings": list(run.warnings),
    }


def distance(a: dict, b: dict) -> dict[str, float]:
    return {
        "mean, in predictive sd": float(np.mean(np.abs(a["mean"] - b["mean"]) / a["sd"])),
        "sd, relative": float(np.mean(np.abs(b["sd"] / a["sd"] - 1))),
    }


def main(names: list[str]):
    path = ROOT / "results" / "precision.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        try:
            runs = {(dtype, seed): fit(name, dtype, seed) for dtype in ("float64", "float32") for seed in (0, 1)}
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
    main(sys.argv[1:] or ["boston", "kin8nm", "naval"])
