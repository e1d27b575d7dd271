"""Cost of an SGHMC update by M, B, layers, chains and threads. Part of `make bench`.

Writes results/scaling.csv and docs/figures/scaling.png. CPU milliseconds, minima over repeats.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFAULTS = {"M": 100, "B": 1000, "layers": 1, "chains": 1, "threads": 1, "dtype": "float64"}
SWEEPS = {
    "M": [50, 100, 200, 300, 500, 700, 1000],
    "B": [250, 500, 1000, 2000, 4000],
    "layers": [1, 2, 3, 4, 5],
    "chains": [1, 2, 4],
    "threads": [1, 2],
}


def measure(M: int, B: int, layers: int, chains: int, threads: int, dtype: str) -> dict[str, float]:
    """Measure one setting. This process must have been started with its number of threads."""
    import time

    import jax
    import jax.numpy as jnp
    import jax.random as jr

    from step import cpu_milliseconds, products, sghmc_update

    jax.config.update("jax_enable_x64", True)
    step, (state, _) = sghmc_update(M, B, 8, layers, dtype)
    if chains > 1:
        state = jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), state)
        step, keys = jax.vmap(step), jr.split(jr.key(2), chains)
    else:
        keys = jr.key(2)
    calls = max(2, int(40 * (100 / M) ** 2 * 1000 / B / layers / chains))
    update = (step, (state, keys))
    result = cpu_milliseconds({"floor": products(M, B, dtype), "update": update}, 5, calls)
    return result | {"update, wall": cpu_milliseconds({"wall": update}, 5, calls, clock=time.monotonic)["wall"]}


def measure_in_process(setting: dict) -> dict[str, float]:
    """Measure one setting in a fresh process."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import json, scaling;"
        f"print(json.dumps(scaling.measure(**{setting!r})))"
    )
    environment = {**os.environ, "BENCH_THREADS": str(setting["threads"])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(axes: list[str]):
    """Measure the named axes and keep the other rows of the CSV file."""
    path = ROOT / "results" / "scaling.csv"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    rows = [row for row in _read(path) if row["axis"] not in axes] if path.exists() else []
    for axis in axes:
        for value in SWEEPS[axis]:
            for dtype in ("float64", "float32"):
                setting = {**DEFAULTS, axis: value, "dtype": dtype}
                rows.append({"axis": axis, **setting, **measure_in_process(setting), "commit": commit})
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    figure(rows)


def _read(path: Path) -> list[dict]:
    def number(text):
        return int(text) if text.isdigit() else float(text)

    with open(path, newline="") as file:
        text = ("axis", "dtype", "commit")
        return [{k: v if k in text else number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def figure(rows):
    """Draw the costs and print fits of their growth."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    drawn = ("M", "B", "layers", "chains")
    canvas, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for axis, name in zip(axes, drawn, strict=True):
        for dtype, colour in (("float64", "#0072B2"), ("float32", "#D55E00")):
            points = [(r[name], r["update"], r["floor"]) for r in rows if r["axis"] == name and r["dtype"] == dtype]
            x, update, floor = np.array(points).T
            axis.plot(x, update, "o-", color=colour, label=dtype)
            if name in ("M", "B"):
                axis.plot(x, floor, "--", color=colour, lw=1, label=f"{dtype}, three products")
            if name == "M":
                fit = np.linalg.lstsq(
                    np.stack([x**2 * 1000, x**3, np.ones_like(x)], 1) / update[:, None], np.ones_like(x), rcond=None
                )[0]
                print(f"{dtype}: update = {fit[0]:.2e} M^2 B + {fit[1]:.2e} M^3 + {fit[2]:.2f} ms")
            else:
                slope, intercept = np.polyfit(x, update, 1)
                worst = np.max(np.abs(slope * x + intercept - update) / update)
                print(f"{dtype}, {name}: update = {slope:.3g} {name} + {intercept:.2g} ms, off by {worst:.0%} at most")
        axis.set(xlabel={"M": "inducing points M", "B": "batch B"}.get(name, name), ylabel="CPU ms per update")
        if name in ("M", "B"):
            axis.set(xscale="log", yscale="log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
        axis.set_xticks(SWEEPS[name], [str(value) for value in SWEEPS[name]])
        axis.xaxis.set_minor_formatter("")
        axis.legend(frameon=False, fontsize=7)
    canvas.savefig(ROOT / "docs" / "figures" / "scaling.png", dpi=130)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SWEEPS))
