"""Several processes, on one machine or several, as one run: JAX's own runtime joins them."""

import ipaddress
import logging
import os
import socket
import threading
from functools import partial

from bsgp.checks import check_count

DEFAULT_COORDINATOR = "127.0.0.1:8476"
HEARTBEAT_SECONDS = 10  # a process that is silent for so long is lost
JOIN_SECONDS = 300  # for all to be there

LOST_PEER = (
    "Another process of this run was lost. Start all of them again, with --resume to go on from the last checkpoint; "
    "the number of processes may be another."
)

logger = logging.getLogger("bsgp")


def join_processes(coordinator: str, num_processes: int, process_id: int, devices_each: int) -> None:
    """Become one of `num_processes` that work as one. Call it before anything else of JAX.

    `coordinator` is the address `HOST:PORT` at which process 0 listens, and there alone. On a CPU a process has
    `devices_each` devices; elsewhere those that it finds.
    """
    import jax

    host, port = parse_address(coordinator)
    check_count("num_processes", num_processes)
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"`process_id` must be from 0 to {num_processes - 1}, got {process_id}. Count the processes from 0."
        )
    warning = open_network_warning(host)
    if warning and process_id == 0:
        logger.warning(warning)
    jax.config.update("jax_num_cpu_devices", devices_each)
    _listen_only_at(own_address(host, port))
    try:
        jax.distributed.initialize(
            f"{host}:{port}",
            num_processes,
            process_id,
            coordinator_bind_address=f"{host}:{port}",  # JAX's default is every address of the machine
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            initialization_timeout=JOIN_SECONDS,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"`coordinator` must be an address at which process 0 listens, got {coordinator!r}: {reason}. "
            "Start all processes, with the same address."
        ) from None


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` in two parts."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"`coordinator` must be HOST:PORT, got {text!r}. Pass something like 10.0.0.5:8476.")
    return host, int(port)


def open_network_warning(host: str) -> str | None:
    """What to say of an address that others can reach."""
    try:
        found = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return None  # joining will say what is wrong with it
    if all(address.is_loopback for address in found):
        return None
    return (
        f"Processes join at {host} without encryption or passwords: whoever reaches that address can join the run. "
        "Keep it within a network that you trust."
    )


def own_address(host: str, port: int) -> str:
    """The address of this machine that faces the coordinator."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # of a datagram: nothing is sent
        return probe.getsockname()[0]


def _listen_only_at(address: str) -> None:
    """CPUs exchange gradients over Gloo, which would listen at whatever address this machine's name stands for."""
    from jax._src.lib import _jax  # JAX has no setting for it

    make = getattr(_jax, "make_gloo_tcp_collectives", None)
    if make is not None:
        _jax.make_gloo_tcp_collectives = partial(make, hostname=address)


def end_with_the_parent(exit_code: int) -> None:
    """A child whose parent was killed would go on for nobody. Its standard input is a pipe that the parent holds."""

    def wait() -> None:
        while os.read(0, 1):  # not `sys.stdin`: its lock, held by a thread, would break the interpreter's exit
            pass
        os._exit(exit_code)

    threading.Thread(target=wait, daemon=True).start()
