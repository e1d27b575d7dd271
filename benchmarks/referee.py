"""SGHMC against NUTS on the same log joint, with u, Z, theta and noise sampled, on a problem small enough for both.

    .venv/bin/python benchmarks/referee.py        writes results/referee.json and docs/figures/referee.png

Errors are averaged over a grid of new points. `mean` is the difference of predictive means in posterior standard
deviations of the function, `sd` the relative difference of that standard deviation. `predictive mean` and
`predictive sd` are the corresponding errors for y, including noise.
"""

import json
import subprocess
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bsgp import Batch, DeepGP, Plan, Target, init_deep_gp, sample
from bsgp.inference.anchor import Anchor
from bsgp.inference.sghmc import normal_like
from bsgp.models.likelihoods.gaussian_noise import gaussian

ROOT = Path(__file__).parent.parent
NUM_ROWS, NUM_DIMS, NUM_INDUCING = 80, 4, 8
NUM_HIDDEN_DRAWS = 32
"""Draws of hidden layers over which the referee averages, the same at every position."""
PLAN = Plan(adam_steps=500, burn_in=10_000, num_draws=1_000, thinning=40, chunk=500)
ANCHORED_PLAN = Plan(adam_steps=500, burn_in=2_560, num_draws=256, thinning=8)
"""A tenth of the gradients, for coordinates in which u is integrated out."""


def problem(num_rows: int = NUM_ROWS) -> tuple[Target, np.ndarray, np.ndarray, np.ndarray]:
    """Target, X, y and the grid of new points."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((num_rows, NUM_DIMS))
    y = np.sin(1.5 * X[:, :1]) + 0.5 * X[:, 1:2] + 0.4 * rng.standard_normal((num_rows, 1))
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    model = init_deep_gp(X, gaussian(1, X.dtype, 0.1), jr.key(0), num_inducing=NUM_INDUCING)
    grid = np.random.default_rng(5).uniform(-1.7, 1.7, (40, NUM_DIMS))
    return Target(model, num_rows), X, y, grid


def deep_problem() -> tuple[Target, np.ndarray, np.ndarray, np.ndarray]:
    """Two layers of 5 inducing points, 40 rows of one input with a step: 15 coordinates.

    Z is fixed. Where it is sampled, inducing points that come close to each other make NUTS take days.
    """
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-1.7, 1.7, (40, 1)), axis=0)
    y = np.tanh(4.0 * X) + 0.3 * rng.standard_normal(X.shape)
    y = (y - y.mean()) / y.std()
    model = init_deep_gp(X, gaussian(1, X.dtype, 0.1), jr.key(0), num_inducing=5, depth=2)
    return Target(model, len(X), treatment={"Z": "fix"}), X, y, np.linspace(-1.6, 1.6, 40)[:, None]


def nuts_draws(target: Target, X, y, key, num_chains=4, warmup=1_500, num_draws=3_000) -> tuple[DeepGP, int]:
    """BlackJAX's NUTS with window adaptation: constrained draws [C S ...], and how many transitions diverged.

    The log joint of several layers is an expectation over hidden layers: a mean over fixed draws of them.
    """
    batch, start = Batch(jnp.asarray(X), jnp.asarray(y)), target.unconstrain(target.model)
    hidden_keys = jr.split(jr.key(0), 1 if target.model.depth == 1 else NUM_HIDDEN_DRAWS)

    def log_density(position):
        return jnp.mean(jax.vmap(lambda key: target.log_joint(position, batch, key))(hidden_keys))

    def one_chain(key):
        start_key, warmup_key, draw_key = jr.split(key, 3)
        position = jax.tree.map(lambda x, z: x + 0.1 * z, start, normal_like(start_key, start))
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.95)
        (state, parameters), _ = adaptation.run(warmup_key, position, warmup)
        kernel = blackjax.nuts(log_density, **parameters).step

        def body(state, key):
            state, info = kernel(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(body, state, jr.split(draw_key, num_draws))[1]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(False):
        positions, divergent = jax.jit(jax.vmap(one_chain))(jr.split(key, num_chains))
    return jax.vmap(jax.vmap(target.constrain))(positions)[0], int(divergent.sum())


def summarise(model: DeepGP, grid) -> dict[str, np.ndarray]:
    """Mean and standard deviation of the function and of y, over all draws, at each point of the grid."""
    keys = jr.split(jr.key(0), 1 if model.depth == 1 else NUM_HIDDEN_DRAWS)

    def one_draw(draw):
        def one_pass(key):
            f = draw.propagate(jnp.asarray(grid), key)
            return f.mean[:, 0], f.variance[:, 0], draw.likelihood.predict(f).variance[:, 0]

        return jax.vmap(one_pass)(jr.clone(keys))

    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), model)
    mean, variance, y_variance = (np.asarray(a) for a in jax.jit(lambda flat: jax.lax.map(one_draw, flat))(flat))
    spread = mean.var(axis=(0, 1))
    return {
        "mean": mean.mean(axis=(0, 1)),
        "sd": np.sqrt(spread + variance.mean(axis=(0, 1))),
        "predictive sd": np.sqrt(spread + y_variance.mean(axis=(0, 1))),
    }


def errors(ours: dict, reference: dict) -> dict[str, float]:
    """Errors of a summary relative to the reference."""
    shift = np.abs(ours["mean"] - reference["mean"])
    return {
        "mean": float(np.mean(shift / reference["sd"])),
        "sd": float(np.mean(np.abs(ours["sd"] / reference["sd"] - 1))),
        "predictive mean": float(np.mean(shift / reference["predictive sd"])),
        "predictive sd": float(np.mean(np.abs(ours["predictive sd"] / reference["predictive sd"] - 1))),
    }


def run_sghmc(target, X, y, grid, seed: int, integrator: str, step_size: float | None):
    plan = Plan(**{**PLAN.__dict__, "integrator": integrator, "step_size": step_size})
    run = sample(target, X, y, jr.key(seed), plan=plan, num_chains=4)
    return summarise(run.model, grid), run


def run_anchored(target, X, y, grid, seed: int):
    anchored = Target(target.model, NUM_ROWS, anchor=Anchor(jnp.asarray(X), jnp.asarray(y)))
    run = sample(anchored, X, y, jr.key(seed), plan=ANCHORED_PLAN, num_chains=4)
    return summarise(run.model, grid), run


def main(num_repeats: int = 4):
    target, X, y, grid = problem()
    model, divergent = nuts_draws(target, X, y, jr.key(1))
    reference = summarise(model, grid)
    halves = [summarise(jax.tree.map(lambda x, s=s: x[s], model), grid) for s in (slice(0, 2), slice(2, 4))]
    rows = []
    for seed in range(num_repeats):
        ours, run = run_anchored(target, X, y, grid, 100 + seed)
        heat = max(float(t.max()) for t in run.history.temperature.values())
        row = {"integrator": "baoab", "step_size": None, "anchored": True, "seed": seed, "hottest block": heat}
        rows.append(row | errors(ours, reference))
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    for step_size in (None, 0.01, 0.02, 0.05, 0.1):
        for integrator in ("baoab", "euler"):
            for seed in range(num_repeats):
                ours, run = run_sghmc(target, X, y, grid, 100 + seed, integrator, step_size)
                heat = max(float(t.max()) for t in run.history.temperature.values())
                row = {"integrator": integrator, "step_size": step_size, "seed": seed, "hottest block": heat}
                rows.append(row | errors(ours, reference))
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    result = {
        "commit": commit,
        "problem": {"rows": NUM_ROWS, "inputs": NUM_DIMS, "inducing": NUM_INDUCING},
        "evaluations per chain": PLAN.evaluations,
        "evaluations per chain, anchored": ANCHORED_PLAN.evaluations,
        "nuts": {"draws": 12_000, "divergent": divergent, "disagreement of its halves": errors(*halves)},
        "sghmc": rows,
    }
    (ROOT / "results" / "referee.json").write_text(json.dumps(result, indent=1))
    _figure(rows, reference, run_sghmc(target, X, y, grid, 100, "baoab", None)[0])


def _figure(rows, reference, ours):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, name in ((left, "mean"), (middle, "sd")):
        axis.axline((reference[name][0], reference[name][0]), slope=1, color="0.7", lw=1)
        axis.scatter(reference[name], ours[name], s=14, color="#0072B2")
        axis.set(xlabel=f"NUTS, {name} of f", ylabel="SGHMC, step size adapted")
    for integrator, colour in (("baoab", "#0072B2"), ("euler", "#D55E00")):
        points = {}
        for row in rows:
            if row["integrator"] == integrator and row["step_size"] is not None:
                points.setdefault(row["step_size"], []).append(row["sd"])
        label = {"baoab": "BAOAB (default)", "euler": "the authors' update"}[integrator]
        steps = sorted(points)
        right.plot(steps, [np.mean(points[s]) for s in steps], "o-", color=colour, label=label)
        right.scatter(
            [s for s in steps for _ in points[s]], [e for s in steps for e in points[s]], s=8, color=colour, alpha=0.5
        )
    right.set(xscale="log", yscale="log", xlabel="step size", ylabel="relative error of the sd of f")
    right.legend(frameon=False)
    (ROOT / "docs" / "figures").mkdir(parents=True, exist_ok=True)
    figure.savefig(ROOT / "docs" / "figures" / "referee.png", dpi=130)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
