"""How far chains agree under the default recipe, and at which cost.

    .venv/bin/python benchmarks/convergence.py [SETS] [FOLDS] [DEPTHS] [EFFORT]    such as yacht,boston 0,1,2,3 1 1

Each run is a line of results/convergence.jsonl; runs that are there already are not repeated. CPU seconds count all
chains, compilation and, apart, the diagnosis. The grade is that of the estimators, by training rows. At the end the
tables in docs/method.md are written from the records: runs of effort 1, and what other efforts give.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "convergence.jsonl"
PAGE = ROOT / "docs" / "method.md"
GRADES = ("converged", "usable", "not converged")

SMALL_SETS = "yacht,boston,concrete,energy"
SHOWN = ("dataset", "fold", "depth", "grade", "rhat_95", "ess_bulk", "ess_tail", "cpu_seconds", "test_mnll")

ONE_RUN = """
import json, os, sys, time
began, cpu_began = time.monotonic(), time.process_time()
import jax, jax.random as jr, numpy as np
from bsgp import Options, fit_method
from bsgp.data.store.sources import Rows
from bsgp.estimators.convergence import diagnose
from bsgp.estimators.probes import choose_probes
from bsgp.experiments.datasets.folds import split
from bsgp.experiments.datasets.named import load_named
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.posterior.metrics import mnll
name, fold, depth, effort, seed = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]), int(sys.argv[5])
data = load_named(name, os.environ.get("BSGP_DATA"))
rows = split(data.X, data.y, fold)
with jax.enable_x64(True):
    likelihood = gaussian(rows.y.shape[1], rows.X.dtype)
    options = Options(depth=depth, effort=effort)
    fitted = fit_method("bsgp", rows.X, rows.y, likelihood, jr.key(seed), options=options)
    cpu, seconds = time.process_time() - cpu_began, time.monotonic() - began
    found = diagnose(fitted.posterior, fitted.history, choose_probes(Rows(rows.X, rows.y), seed), jr.key(1))
    diagnosis = time.process_time() - cpu_began - cpu
    density = fitted.posterior.log_density(rows.X_test, rows.y_test, jr.key(2))
print(json.dumps({
    "grade": found.grade, "rhat_median": found.rhat_median, "rhat_95": found.rhat, "ess_bulk": found.ess,
    "ess_tail": found.tail_ess, "movement": found.movement, "num_chains": found.num_chains,
    "num_draws": found.num_draws, "evaluations_per_chain": found.evaluations,
    "evaluations": found.evaluations * found.num_chains, "cpu_seconds": round(cpu, 1), "seconds": round(seconds, 1),
    "diagnosis_cpu_seconds": round(diagnosis, 1), "test_mnll": float(mnll(density, rows.y_units.scale)),
    "temperature": {name: round(heat, 3) for name, heat in found.temperature.items()},
    "step_sizes": [round(float(one), 4) for one in np.asarray(fitted.history.step_sizes[-1]).max(axis=1)],
    "warnings": list(found.warnings),
}))
"""


def records() -> list[dict]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


def table() -> str:
    """The records as a table, one row for each data set and depth."""
    lines = [
        "| layers | data set | folds | converged, usable, not | R-hat of 95% of rows | effective draws, bulk/tail "
        "| CPU s | test MNLL |",
        "|---:|---|---:|---|---|---|---|---|",
    ]
    groups: dict[tuple[int, str], list[dict]] = {}
    for one in records():
        if one["effort"] == 1.0:
            groups.setdefault((one["depth"], one["dataset"]), []).append(one)
    for (depth, name), runs in sorted(groups.items()):
        runs = sorted(runs, key=lambda one: one["fold"])
        grades = [sum(one["grade"] == grade for one in runs) for grade in GRADES]
        cells = (
            ", ".join(map(str, grades)),
            ", ".join(f"{one['rhat_95']:.3f}" for one in runs),
            ", ".join(f"{one['ess_bulk']:.0f}/{one['ess_tail']:.0f}" for one in runs),
            ", ".join(f"{one['cpu_seconds']:.0f}" for one in runs),
            ", ".join(f"{one['test_mnll']:.3f}" for one in runs),
        )
        lines.append(f"| {depth} | {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def frontier() -> str:
    """Runs of one fold with several efforts: what a better grade costs."""
    lines = [
        "| data set, fold | effort | grade | R-hat of 95% of rows | effective draws, bulk/tail | CPU s | test MNLL |",
        "|---|---:|---|---:|---|---:|---:|",
    ]
    wanted = {(one["dataset"], one["fold"], one["depth"]) for one in records() if one["effort"] != 1.0}
    runs = [one for one in records() if (one["dataset"], one["fold"], one["depth"]) in wanted]
    for one in sorted(runs, key=lambda run: (run["dataset"], run["fold"], run["effort"])):
        lines.append(
            f"| {one['dataset']}, {one['fold']} | {one['effort']:g} | {one['grade']} | {one['rhat_95']:.3f} "
            f"| {one['ess_bulk']:.0f}/{one['ess_tail']:.0f} | {one['cpu_seconds']:.0f} | {one['test_mnll']:.3f} |"
        )
    return "\n".join(lines)


def write_table() -> None:
    page = PAGE.read_text()
    for name, text in (("convergence", table()), ("frontier", frontier())):
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        page = f"{before}{start}{text}\n{end}{after}"
    PAGE.write_text(page)


def main(sets: str = SMALL_SETS, folds: str = "0,1,2,3", depths: str = "1", effort: str = "1") -> None:
    seen = {(one["dataset"], one["fold"], one["depth"], one["effort"]) for one in records()}
    for depth in map(int, depths.split(",")):
        for fold in map(int, folds.split(",")):
            for name in sets.split(","):
                if (name, fold, depth, float(effort)) in seen:
                    continue
                commit = subprocess.run(  # of this run: others may commit in between
                    ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
                ).stdout
                command = [sys.executable, "-c", ONE_RUN, name, str(fold), str(depth), effort, "0"]
                result = subprocess.run(command, capture_output=True, text=True)
                if result.returncode:
                    print(result.stderr[-500:], flush=True)
                    continue
                settings = {"dataset": name, "fold": fold, "depth": depth, "effort": float(effort), "seed": 0}
                versions = {one: version(one) for one in ("bsgp", "jax", "numpy")}
                record = {**settings, **json.loads(result.stdout), "commit": commit.strip(), "versions": versions}
                with OUT.open("a") as out:
                    out.write(json.dumps(record) + "\n")
                print({key: record[key] for key in SHOWN}, flush=True)
    write_table()


if __name__ == "__main__":
    main(*sys.argv[1:])
