"""`make bench-peers`: the same step in every library. Writes results/peers.csv and results/peers.md.

Each library runs in its own environment, which the Makefile installs. Rounds alternate between libraries, so that a
busy moment of the machine affects them all. The smallest CPU time of each counts.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = {
    "bsgp": ".venv",
    "gpytorch": ".venv-peers-torch",
    "gpflow": ".venv-peers-tf",
    "gpflux": ".venv-peers-tf",
    "gpjax": ".venv-peers-jax",
    "sklearn": ".venv",
}
ROUNDS = 3
RIVALS = {"svgp": ("gpytorch", "gpflow", "gpjax"), "two layers": ("gpytorch", "gpflux")}


def measure(library: str, dtype: str) -> dict[str, float]:
    """CPU milliseconds of each task of a library. Empty if it failed."""
    python = ROOT / ENVIRONMENTS[library] / "bin" / "python"
    command = [python, ROOT / "benchmarks" / "peer_worker.py", library, dtype]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{library} {dtype} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    best: dict[tuple[str, str, str], float] = {}
    for _ in range(ROUNDS):
        for library in ENVIRONMENTS:
            for dtype in ("float64", "float32"):
                if library == "sklearn" and dtype == "float32":
                    continue
                for task, value in measure(library, dtype).items():
                    key = (task, library, dtype)
                    best[key] = min(value, best.get(key, float("inf")))
                    print(*key, f"{value:.2f} ms", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    with open(ROOT / "results" / "peers.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "library", "dtype", "cpu_ms", "commit"])
        writer.writerows([*key, f"{value:.3f}", commit] for key, value in sorted(best.items()))
    (ROOT / "results" / "peers.md").write_text(table(best))
    print(table(best))


def table(best: dict) -> str:
    """Markdown of all times, and of ours relative to the fastest peer."""
    lines = ["| task | library | float64, CPU ms | float32, CPU ms |", "|---|---|---:|---:|"]
    for task, library in sorted({key[:2] for key in best}):
        cells = [best.get((task, library, dtype)) for dtype in ("float64", "float32")]
        lines.append(f"| {task} | {library} | " + " | ".join("" if c is None else f"{c:.2f}" for c in cells) + " |")
    lines += ["", "| ours as a share of the fastest peer | float64 | float32 |", "|---|---:|---:|"]
    for task, rivals in RIVALS.items():
        shares = []
        for dtype in ("float64", "float32"):
            fastest = min((best[task, r, dtype] for r in rivals if (task, r, dtype) in best), default=None)
            shares.append("" if fastest is None else f"{best[task, 'bsgp', dtype] / fastest:.2f}")
        lines.append(f"| {task} | {shares[0]} | {shares[1]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
