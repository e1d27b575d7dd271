"""Cost of one SGHMC update relative to its floor, three M x M x B matrix products. Part of `make bench`.

One thread, CPU time, minima over alternating repeats. On a shared machine only ratios within one run are reliable.
"""

import os

THREADS = os.environ.get("BENCH_THREADS", "1")
if THREADS == "1":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    # with the flag alone XLA's own loops use every core and 50% more CPU time
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["OPENBLAS_NUM_THREADS"] = THREADS

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bsgp import Batch, Target, init_deep_gp
from bsgp.inference.sghmc import sghmc
from bsgp.models.likelihoods.gaussian_noise import gaussian

UPDATES_PER_CALL = 40
KERNELS = ("rbf", "linear", "linear + rbf", "matern32", "matern52", "linear + matern52", "rational-quadratic")


def products(M: int, B: int, dtype):
    """Three M x M x B products, the minimum of a forward and a backward pass."""
    Q = jr.normal(jr.key(0), (M, M), dtype) / M
    K = jr.normal(jr.key(1), (M, B), dtype)
    return lambda K: Q @ (Q @ (Q @ K)), K


def gradient_step(M: int, B: int, D: int, depth: int, dtype):
    """One gradient of the log joint, applied to the position, so that no two updates are the same."""
    target, position, batch = _target(M, B, D, depth, dtype)

    def step(carry):
        position, key = carry
        key, step_key = jr.split(key)
        gradient = jax.grad(target.log_joint)(position, batch, step_key)
        return jax.tree.map(lambda x, g: x + 1e-9 * g, position, gradient), key

    return step, (position, jr.key(2))


def sghmc_update(M: int, B: int, D: int, depth: int, dtype, kernel: str = "rbf"):
    """One update of SGHMC in the burn-in phase."""
    target, position, batch = _target(M, B, D, depth, dtype, kernel)
    sampler = sghmc(target.log_joint, target.num_counted, step_size=1e-4)

    def step(carry):
        state, key = carry
        key, step_key = jr.split(key)
        return sampler.burn_in(step_key, state, batch)[0], key

    return step, (sampler.init(position), jr.key(2))


def _target(M, B, D, depth, dtype, kernel="rbf"):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((B, D)).astype(dtype)
    model = init_deep_gp(X, gaussian(1, dtype), jr.key(0), num_inducing=M, depth=depth, kernel=kernel)
    target = Target(model, B)
    return target, target.unconstrain(model), Batch(jnp.asarray(X), jnp.asarray(np.sin(X[:, :1])))


def cpu_milliseconds(
    programs: dict, num_repeats: int = 9, calls: int = UPDATES_PER_CALL, clock=time.process_time
) -> dict[str, float]:
    """Milliseconds of one call of each program by a clock, the smallest of several alternating repeats."""
    compiled = {}
    for name, (step, start) in programs.items():
        compiled[name] = jax.jit(lambda c, f=step: jax.lax.fori_loop(0, calls, lambda _, c: f(c), c)), start
        jax.block_until_ready(compiled[name][0](start))
    best = dict.fromkeys(programs, np.inf)
    for _ in range(num_repeats):
        for name, (run, start) in compiled.items():
            began = clock()
            jax.block_until_ready(run(start))
            best[name] = min(best[name], (clock() - began) / calls * 1e3)
    return best


def first_step_seconds() -> float:
    """Seconds to compile and run the first gradient step in a fresh process, after the import."""
    code = (
        "import jax; jax.config.update('jax_enable_x64', True);"
        "import sys, time; sys.path.insert(0, 'benchmarks'); import step; began = time.monotonic();"
        "f, start = step.gradient_step(100, 1000, 8, 1, 'float64');"
        "jax.block_until_ready(jax.jit(f)(start)); print(time.monotonic() - began)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def kernel_table(B: int, D: int):
    """An update with each kernel beside one with RBF."""
    from rich.table import Table

    table = Table("M=100, float64: SGHMC update with", "CPU ms", "x rbf", caption="hand-written: all but the last")
    programs = {kernel: sghmc_update(100, B, D, 1, "float64", kernel) for kernel in KERNELS}
    measured = cpu_milliseconds(programs, num_repeats=25)
    for kernel, value in measured.items():
        table.add_row(kernel, f"{value:.2f}", f"{value / measured['rbf']:.2f}")
    return table


def main():
    from rich.console import Console
    from rich.table import Table

    B, D = 1000, 8
    table = Table("B=1000, D=8, one thread", "CPU ms", "x floor", caption="floor: three M x M x B matrix products")
    for M, dtype in ((100, "float64"), (100, "float32"), (500, "float64"), (500, "float32")):
        programs = {
            "floor": products(M, B, dtype),
            "gradient": gradient_step(M, B, D, 1, dtype),
            "SGHMC update": sghmc_update(M, B, D, 1, dtype),
            "SGHMC update, 2 layers": sghmc_update(M, B, D, 2, dtype),
        }
        measured = cpu_milliseconds(programs, calls=UPDATES_PER_CALL if M == 100 else 4)
        for name, value in measured.items():
            table.add_row(f"M={M}, {dtype}: {name}", f"{value:.2f}", f"{value / measured['floor']:.2f}")
    Console().print(table)
    Console().print(kernel_table(B, D))
    print(f"First gradient step in a new process, compilation included: {first_step_seconds():.1f} s after the import.")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
