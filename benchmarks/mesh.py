"""Speed-up by a mesh of devices and processes, and the cost of its exchanges: `make bench-mesh`.

Every case is measured in separate processes on 127.0.0.1. Times are wall times, minima over chunks; cases that are
compared alternate. Writes results/mesh.json, which docs/cluster.md shows.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUM_INPUTS, UPDATES, CHUNKS, ROUNDS = 8, 100, 8, 2
CASES = [
    # mesh, processes, chains, M, B
    (None, 1, 1, 100, 1_000),
    ("2x1", 1, 2, 100, 1_000),
    ("2x1", 2, 2, 100, 1_000),
    ("1x2", 1, 1, 100, 1_000),
    ("1x2", 2, 1, 100, 1_000),
    ("1x4", 4, 1, 100, 1_000),
    (None, 1, 1, 300, 4_000),
    ("1x2", 1, 1, 300, 4_000),
    ("1x2", 2, 1, 300, 4_000),
    ("1x4", 4, 1, 300, 4_000),
]
EXCHANGED = (1_000, 10_000, 100_000)
"""Sizes of an exchange of gradients, in numbers. A model of M = 100 with 8 inputs has about 1,000."""


def seconds_per_update(mesh: str | None, chains: int, M: int, B: int) -> float:
    """Seconds per update in this process, the best of some chunks, on 8,000 rows. The devices must be set up."""
    from functools import partial

    import jax.random as jr
    import numpy as np

    from bsgp import Plan, Target, init_deep_gp
    from bsgp.inference.batches import minibatch_seeds, open_batches
    from bsgp.inference.programs import init_chains, sample_chunk, scattered_starts
    from bsgp.models.likelihoods.gaussian_noise import gaussian
    from bsgp.runtime.mesh import Layout, mesh_shape

    rng = np.random.default_rng(0)
    X = rng.standard_normal((8_000, NUM_INPUTS))
    y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((len(X), 1))
    target = Target(init_deep_gp(X, gaussian(1, float), jr.key(0), num_inducing=M), len(X))
    updates = max(4, round(UPDATES * (100 / M) ** 2 * 1_000 / B))
    plan = Plan(thinning=updates, batch_size=B)
    layout = None if mesh is None else Layout(mesh_shape(mesh))
    feed = open_batches(target.all_rows(X, y), B, minibatch_seeds(jr.key(1), chains), layout)
    state = init_chains(target, plan, scattered_starts(target, jr.key(2), chains, 0.0))
    run = sample_chunk if layout is None else partial(layout.run, sample_chunk)
    flags = (np.ones(updates, bool), np.zeros(updates, bool))
    best = np.inf
    for index in range(1 + CHUNKS):
        rows, keys = feed.take(updates), jr.split(jr.key(index), chains)
        began = time.perf_counter()
        state, _, info = run(target, plan, state, flags, keys, rows)
        np.asarray(info.energy)
        if index:  # the first one compiles
            best = min(best, (time.perf_counter() - began) / updates)
    return best


def milliseconds_per_exchange(num_processes: int) -> dict[str, float]:
    """Milliseconds of a mean over the processes, in a loop like that of the updates."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    from bsgp.runtime.mesh import DATA, Layout, mean_over

    layout, found = Layout((1, num_processes)), {}
    for count in EXCHANGED:

        def loop(x):
            return jax.lax.fori_loop(0, 100, lambda _, x: mean_over(DATA, x) + 1.0, x)

        program = jax.jit(jax.shard_map(loop, mesh=layout.mesh, in_specs=P(), out_specs=P(), check_vma=False))
        x, best = layout.put(np.zeros(count)), np.inf
        for _ in range(6):
            began = time.perf_counter()
            program(x).block_until_ready()
            best = min(best, time.perf_counter() - began)
        found[str(count)] = 1e3 * best / 100
    return found


def measure_in_process(task: dict) -> None:
    """Measure in one process of a case. It has its own core if it is one of several."""
    processes, index = task["processes"], task["index"]
    cores = sorted(os.sched_getaffinity(0))
    # devices of one process share all cores, and exchanges leave a core for Gloo's thread
    if not task.get("exchange") and (processes > 1 or task["mesh"] is None):
        os.sched_setaffinity(0, {cores[index % len(cores)]})
    import jax

    jax.config.update("jax_enable_x64", True)
    devices = 1 if task["mesh"] is None else math.prod(map(int, task["mesh"].split("x")))
    if processes > 1:
        from bsgp import join_processes

        join_processes(task["coordinator"], processes, index, devices // processes)
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    if task.get("exchange"):
        print(json.dumps(milliseconds_per_exchange(processes)))
    else:
        print(json.dumps(seconds_per_update(task["mesh"], task["chains"], task["M"], task["B"])))


def measured(**task):
    """Start the processes of a case and return the measurement of the first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        task["coordinator"] = f"127.0.0.1:{probe.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, __file__, json.dumps(task | {"index": index})], stdout=subprocess.PIPE, text=True
        )
        for index in range(task["processes"])
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{task} failed")
    return json.loads(printed[0].strip().splitlines()[-1])


def _best_exchange(processes: int) -> dict[str, float]:
    rounds = [measured(mesh=f"1x{processes}", processes=processes, exchange=True) for _ in range(3)]
    return {count: round(min(one[count] for one in rounds), 3) for count in rounds[0]}


def main() -> None:
    """Measure all cases in alternation and write the best of each."""
    best: dict[tuple, float] = {}
    for _ in range(ROUNDS):
        for case in CASES:
            mesh, processes, chains, M, B = case
            seconds = measured(mesh=mesh, processes=processes, chains=chains, M=M, B=B)
            best[case] = min(best.get(case, seconds), seconds)
    rows = []
    for case, seconds in best.items():
        mesh, processes, chains, M, B = case
        alone = best[(None, 1, 1, M, B)]
        rows.append({
            "mesh": mesh or "one device", "processes": processes, "chains": chains, "M": M, "B": B,
            "ms per update": round(1e3 * seconds, 3), "throughput": round(chains * alone / seconds, 2),
        })  # fmt: skip
        print(rows[-1], flush=True)
    exchange = {str(count): _best_exchange(count) for count in (2, 4)}
    print(exchange)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    found = {"commit": commit.stdout.strip(), "cores": len(os.sched_getaffinity(0)), "updates": rows}
    found["milliseconds per exchange of so many float64, by processes"] = exchange
    (ROOT / "results" / "mesh.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    measure_in_process(json.loads(sys.argv[1])) if len(sys.argv) > 1 else main()
