"""`python spread_runs.py COORDINATOR NUM_PROCESSES PROCESS_ID OUT MESHES [STREAM]`: one process of runs on meshes.

The draws of every mesh go into OUT, an npz file, from the first process.
"""

import sys
from pathlib import Path

MESHES = ("2x1", "1x2", "2x2")


def draws_on(mesh: str | None, *, stream: Path | None = None, **options) -> dict:
    """The draws of two chains of two layers, every leaf by its number; `options` are the target's."""
    import jax
    import jax.random as jr
    import numpy as np
    from problems import tiny_target

    from bsgp import Plan, sample
    from bsgp.runtime.mesh import Layout, mesh_shape

    target, *rows = tiny_target(depth=2, num_rows=60, **options)
    if stream is not None:
        from bsgp.data.store.store import Store

        rows = [Store.open(stream), None]
    plan = Plan(adam_steps=10, burn_in=20, num_draws=4, thinning=5, batch_size=20, chunk=10, optimise_every=3)
    layout = None if mesh is None else Layout(mesh_shape(mesh))
    run = sample(target, *rows, jr.key(2), plan=plan, num_chains=2, layout=layout)
    return {f"{mesh}.{at}": np.asarray(leaf) for at, leaf in enumerate(jax.tree.leaves(run.model))}


def main(coordinator: str, num_processes: str, process_id: str, out: str, meshes: str, stream: str = "") -> None:
    import jax
    import numpy as np

    from bsgp.runtime.processes import join_processes

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    join_processes(coordinator, int(num_processes), int(process_id), devices_each=2)
    found = {}
    for mesh in meshes.split(","):
        found |= draws_on(mesh)
    if stream:
        found |= {f"streamed.{name}": draws for name, draws in draws_on("2x2", stream=Path(stream)).items()}
    if process_id == "0":
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
