"""Does a fit say the same with another seed? Ten fits of the demo's elevation table that differ in their seed only.

    .venv/bin/python benchmarks/seeds.py [EFFORT]     adds to results/seeds.jsonl and prints a summary

The stated movement of a fit is a bound for nine predictions in ten. `within` is the share of test rows, over all pairs
of fits, whose predictions differ by no more than the first fit of the pair says.
"""

import json
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bsgp import BSGPRegressor
from bsgp.demos.tables import EXAMPLES, TEST_SHARE

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "seeds.jsonl"
NUM_SEEDS = 10


def one_fit(X, y, X_test, seed: int, effort: float) -> dict:
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = BSGPRegressor(effort=effort, random_state=seed).fit(X, y)
    mean, sd = model.predict(X_test, return_std=True)
    found = model.diagnostics_
    return {
        "table": "elevation", "effort": effort, "seed": seed, "grade": found.grade, "rhat_95": found.rhat,
        "ess_bulk": found.ess, "ess_tail": found.tail_ess, "movement": found.movement,
        "warnings": list(found.warnings), "cpu_seconds": round(time.process_time() - began, 1),
        "mean": np.round(mean, 3).tolist(), "sd": np.round(sd, 3).tolist(),
    }  # fmt: skip


def summary(runs: list[dict]) -> dict:
    """Grades, and how far fits differ against how far they say that they would."""
    pairs = [(one, other) for one in runs for other in runs if one is not other]
    moved = [np.abs(np.subtract(one["mean"], other["mean"])) / np.asarray(one["sd"]) for one, other in pairs]
    within = [np.mean(move <= one["movement"]) for move, (one, _) in zip(moved, pairs, strict=True)]
    grades = [run["grade"] for run in runs]
    return {
        "effort": runs[0]["effort"], "fits": len(runs),
        "grades": {grade: grades.count(grade) for grade in sorted(set(grades))},
        "stated movement": [round(run["movement"], 3) for run in runs],
        "observed, 90% of rows": round(float(np.quantile(np.concatenate(moved), 0.9)), 3),
        "within": round(float(np.mean(within)), 3),
    }  # fmt: skip


def main(effort: float = 1.0) -> None:
    table, y = EXAMPLES[0].load()
    X = np.stack([np.asarray(column.values, float) for column in table.columns.values()], axis=1)
    num_test = round(TEST_SHARE * len(y))
    rows = np.random.default_rng(0).permutation(len(y))
    test, train = rows[:num_test], rows[num_test:]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    versions = {one: version(one) for one in ("bsgp", "jax", "numpy")}
    done = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    runs = [run for run in done if run["effort"] == effort]
    for seed in sorted(set(range(NUM_SEEDS)) - {run["seed"] for run in runs}):
        run = {**one_fit(X[train], y[train], X[test], seed, effort), "commit": commit.strip(), "versions": versions}
        runs.append(run)
        with OUT.open("a") as out:
            out.write(json.dumps(run) + "\n")
        print(
            {key: run[key] for key in ("seed", "grade", "rhat_95", "ess_bulk", "movement", "cpu_seconds")}, flush=True
        )
    print(summary(runs))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
