"""What the shape of the noise is worth: test scores of `noise=` on the paper's sets, all else by default.

    .venv/bin/python benchmarks/noise.py [SETS] [FOLDS] [DEPTHS] [NOISES]      such as protein 0,1 1,2 mixture,gaussian

Each run is a line of results/noise.jsonl; runs that are there already are not repeated. CPU seconds count all chains
and compilation. At the end the table in docs/method.md is written from the records.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "noise.jsonl"
PAGE = ROOT / "docs" / "method.md"
MARKS = "<!-- noise -->\n", "<!-- /noise -->"

ONE_RUN = """
import json, os, sys, time
began = time.process_time()
import jax, jax.random as jr, numpy as np
from bsgp import Options, fit_method
from bsgp.experiments.datasets.folds import split
from bsgp.experiments.datasets.named import load_named
from bsgp.models.likelihoods.noises import NOISES, TrainingTargets
name, fold, depth, noise = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
data = load_named(name, os.environ.get("BSGP_DATA"))
rows = split(data.X, data.y, fold)
with jax.enable_x64(True):
    likelihood = NOISES[noise].start(TrainingTargets(rows.y, rows.X.dtype))
    fitted = fit_method("bsgp", rows.X, rows.y, likelihood, jr.key(0), options=Options(depth=depth))
    cpu = time.process_time() - began
    at = fitted.posterior.at_targets(rows.X_test, rows.y_test, jr.key(2))
    crps = fitted.posterior.crps(rows.X_test, rows.y_test, jr.key(3)) * rows.y_units.scale
    rhat = fitted.posterior.predictive_rhat(rows.X_test[:200], jr.key(4))
scale = rows.y_units.scale
print(json.dumps({
    "test_mnll": float(np.mean(np.log(scale) - at.log_density)), "crps": float(np.mean(crps)),
    "coverage90": float(np.mean((at.cdf >= 0.05) & (at.cdf <= 0.95))),
    "rmse": float(np.sqrt(np.mean(((at.mean - rows.y_test) * scale) ** 2))),
    "rhat_95": float(np.quantile(rhat, 0.95)), "cpu_seconds": round(cpu, 1),
    "num_chains": fitted.posterior.num_chains, "warnings": list(fitted.history.warnings),
}))
"""


def records() -> list[dict]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


def table() -> str:
    """The records as a table, one row for each data set, depth and noise."""
    lines = [
        "| data set | layers | noise | folds | test MNLL | CRPS | 90% intervals hold | R-hat, 95% of rows | CPU s |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple, list[dict]] = {}
    for one in records():
        groups.setdefault((one["dataset"], one["depth"], one["noise"]), []).append(one)
    for (name, depth, noise), runs in sorted(groups.items()):
        mnll, crps, inside, rhat, cpu = (
            sum(one[key] for one in runs) / len(runs)
            for key in ("test_mnll", "crps", "coverage90", "rhat_95", "cpu_seconds")
        )
        cells = f"{mnll:.3f} | {crps:.3f} | {inside:.1%} | {rhat:.2f} | {cpu:.0f}"
        lines.append(f"| {name} | {depth} | {noise} | {len(runs)} | {cells} |")
    return "\n".join(lines)


def write_table() -> None:
    before, start, rest = PAGE.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{start}{table()}\n{end}{after}")


def main(sets: str, folds: str = "0,1,2,3", depths: str = "1", noises: str = "mixture") -> None:
    seen = {(one["dataset"], one["fold"], one["depth"], one["noise"]) for one in records()}
    wanted = [
        (name, int(fold), int(depth), noise)
        for depth in depths.split(",") for name in sets.split(",") for fold in folds.split(",")
        for noise in noises.split(",")
    ]  # fmt: skip
    for name, fold, depth, noise in wanted:
        if (name, fold, depth, noise) in seen:
            continue
        commit = subprocess.run(  # of this run: others may commit in between
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout
        command = [sys.executable, "-c", ONE_RUN, name, str(fold), str(depth), noise]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            print(result.stderr[-500:], flush=True)
            continue
        settings = {"dataset": name, "fold": fold, "depth": depth, "noise": noise, "seed": 0}
        versions = {one: version(one) for one in ("bsgp", "jax", "numpy")}
        record = {**settings, **json.loads(result.stdout), "commit": commit.strip(), "versions": versions}
        with OUT.open("a") as out:
            out.write(json.dumps(record) + "\n")
        print({key: record[key] for key in (*settings, "test_mnll", "crps", "coverage90", "cpu_seconds")}, flush=True)
    if MARKS[0] in PAGE.read_text():
        write_table()


if __name__ == "__main__":
    main(*sys.argv[1:])
