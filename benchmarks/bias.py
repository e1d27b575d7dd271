"""Bias of SGHMC against step size and minibatch, where the posterior is known: u given Z, kernel and noise.

    .venv/bin/python benchmarks/bias.py        writes results/bias.json and docs/figures/bias.png

A thousand rows, ten inducing points, whitened coordinates. The error is that of the draws' variance, relative to the
closed form and averaged over the axes of the posterior: 0 is right, 0.1 is a variance that is 10% too large. The last
row of every batch size has the step that adaptation finds.
"""

import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bsgp import Plan, Target, init_deep_gp, sample
from bsgp.inference.anchor import Anchor
from bsgp.inference.objectives import FITC
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.runtime.errors import DivergenceError

ROOT = Path(__file__).parent.parent
NUM_ROWS = 1_000
STEP_SIZES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, None)
BATCH_SIZES = (50, 200, 1_000)
INTEGRATORS = ("baoab", "euler")
FIXED = {"Z": "fix", "theta": "fix", "noise": "fix"}


def problem() -> tuple[Target, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((NUM_ROWS, 2))
    y = np.sin(2.0 * X[:, :1]) + 0.5 * rng.standard_normal((NUM_ROWS, 1))
    y = (y - y.mean()) / y.std()
    model = init_deep_gp(X, gaussian(1, X.dtype, 0.2), jr.key(0), num_inducing=10)
    return Target(model, NUM_ROWS, treatment=FIXED), X, y


def relative_error(draws: np.ndarray, root: np.ndarray) -> float:
    """Error of the variance of draws `[S M]`, given the root of the true precision `H = L L^T`."""
    return float(np.mean(((draws - draws.mean(axis=0)) @ root).var(axis=0)) - 1.0)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    target, X, y = problem()
    exact = Anchor(jnp.asarray(X), jnp.asarray(y)).conditional(target.model, NUM_ROWS, FITC())
    rows = []
    for batch_size in BATCH_SIZES:
        for integrator in INTEGRATORS:
            for step_size in STEP_SIZES:
                # all steps settle as well, or short ones would show how slow they are and not how biased: chains
                # walk at random where friction per update outweighs the step, and need 1 / step^2 updates there
                step = step_size or 0.01
                thinning = round(0.6 / step * max(1.0, 0.01 / step))
                plan = Plan(
                    adam_steps=500, burn_in=100 * thinning, num_draws=600, thinning=thinning,
                    batch_size=batch_size, integrator=integrator, step_size=step_size,
                )  # fmt: skip
                try:
                    run = sample(target, X, y, jr.key(1), plan=plan, num_chains=4)
                except DivergenceError as error:
                    print(batch_size, integrator, step_size, type(error).__name__, flush=True)
                    continue
                draws = np.asarray(run.model.layers[0].V)[..., 0].reshape(-1, 10)
                heat = float(np.mean(run.history.temperature["layers.0.V"]))
                used = float(np.mean(run.history.step_sizes[-1])) if step_size is None else step_size
                error = relative_error(draws, np.asarray(exact.root[0]))
                row = {"batch": batch_size, "integrator": integrator, "step": used, "adapted": step_size is None}
                rows.append({**row, "variance error": error, "temperature": heat})
                print({key: round(value, 4) if isinstance(value, float) else value for key, value in rows[-1].items()})
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    (ROOT / "results" / "bias.json").write_text(json.dumps({"commit": commit.strip(), "runs": rows}, indent=1))
    draw(rows)


def draw(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(INTEGRATORS), figsize=(9, 3.4), sharey=True, layout="constrained")
    colours = dict(zip(BATCH_SIZES, ("#D55E00", "#E69F00", "#0072B2"), strict=True))
    for axis, integrator in zip(axes, INTEGRATORS, strict=True):
        for batch, colour in colours.items():
            mine = [row for row in rows if row["batch"] == batch and row["integrator"] == integrator]
            fixed = sorted((row["step"], row["variance error"]) for row in mine if not row["adapted"])
            axis.plot(*zip(*fixed, strict=True), "o-", color=colour, label=f"{batch:,} of 1,000 rows", ms=4)
            found = [(row["step"], row["variance error"]) for row in mine if row["adapted"]]
            axis.plot(*zip(*found, strict=True), "*", color=colour, ms=13, mec="white")
        axis.axhline(0.0, color="0.6", lw=1)
        axis.set(xscale="log", xlabel="step size (star: adapted)", ylim=(-0.1, 0.8))
        fixed_steps = [step for step in STEP_SIZES if step is not None]
        axis.set_xticks(fixed_steps, [f"{step:g}" for step in fixed_steps])
        axis.minorticks_off()
        axis.set_title({"baoab": "BAOAB (default)", "euler": "the authors' update"}[integrator], fontsize=10)
    axes[0].set_ylabel("error of the variance of u")
    axes[0].legend(frameon=False, title="minibatch", loc="upper left")
    figure.savefig(ROOT / "docs" / "figures" / "bias.png", dpi=130)


if __name__ == "__main__":
    main()
