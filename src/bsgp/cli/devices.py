"""Devices of a fit, in this process and in others."""

import math
from contextlib import suppress

from bsgp.cli.fit_options import ProcessOptions
from bsgp.runtime.checks import check_count


def prepare_devices(mesh: str | None, processes: ProcessOptions) -> bool:
    """Prepare the devices of a mesh, and join the other processes if there are any; whether this one is the first."""
    if mesh is None and not processes.are_given:
        return True
    from bsgp.runtime.mesh import mesh_shape

    num_devices = math.prod(mesh_shape(mesh)) if mesh is not None else 0
    if not processes.are_given:
        import jax

        with suppress(RuntimeError):  # JAX is already running, with the devices that it has
            jax.config.update("jax_num_cpu_devices", num_devices)
        return True
    num_processes, process_id = processes.num_processes, processes.process_id
    if mesh is None or num_processes is None or process_id is None:
        raise ValueError(
            "Several processes must come with --mesh, --num-processes and --process-id, got some of them only. "
            "Pass all three, and --coordinator unless all are on this machine."
        )
    if num_devices % check_count("--num-processes", num_processes):
        raise ValueError(
            f"`--mesh` must have as many devices for each of the {num_processes} processes, got {mesh}: "
            f"{num_devices} devices. Choose a multiple of {num_processes}."
        )
    from bsgp.runtime.processes import DEFAULT_COORDINATOR, join_processes

    coordinator = processes.coordinator or DEFAULT_COORDINATOR
    join_processes(coordinator, num_processes, process_id, num_devices // num_processes)
    return process_id == 0
