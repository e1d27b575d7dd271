"""Several processes, on one machine or several, as one run, joined by JAX's distributed runtime."""

import ipaddress
import logging
import os
import socket
import threading
from functools import partial

from bsgp.runtime.checks import check_count

DEFAULT_COORDINATOR = "127.0.0.1:8476"
HEARTBEAT_SECONDS = 10  # a process that is silent for this long counts as lost
JOIN_SECONDS = 300  # time limit for all processes to join

LOST_PEER = (
    "Another process of this run was lost. Start all processes again, with --resume to continue from the last "
    "checkpoint; the number of processes may change."
)

logger = logging.getLogger("bsgp")


def join_processes(coordinator: str, num_processes: int, process_id: int, devices_each: int) -> None:
    """Joins this process to a run of `num_processes`. Call it before any other use of JAX.

    `coordinator` is the address `HOST:PORT` at which process 0 listens; it listens at no other address. On a CPU every
    process has `devices_each` devices; on other platforms it uses the devices that JAX finds.
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
    _bind_gloo_to(own_address(host, port))
    try:
        jax.distributed.initialize(
            f"{host}:{port}",
            num_processes,
            process_id,
            coordinator_bind_address=f"{host}:{port}",  # by default JAX listens at every address of the machine
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            initialization_timeout=JOIN_SECONDS,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"`coordinator` must be an address at which process 0 listens, got {coordinator!r}: {reason}. "
            "Start all processes with the same address."
        ) from None


def parse_address(text: str) -> tuple[str, int]:
    """Splits `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"`coordinator` must be HOST:PORT, got {text!r}. Pass something like 10.0.0.5:8476.")
    return host, int(port)


def open_network_warning(host: str) -> str | None:
    """A warning if other machines can reach `host`, else None."""
    try:
        found = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return None  # joining will report what is wrong with it
    if all(address.is_loopback for address in found):
        return None
    return (
        f"Processes join at {host} without encryption or passwords: anyone who can reach that address can join the "
        "run. Use it only within a network that you trust."
    )


def own_address(host: str, port: int) -> str:
    """The address of this machine on its route to the coordinator."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram socket: nothing is sent
        return probe.getsockname()[0]


def _bind_gloo_to(address: str) -> None:
    """Makes Gloo, which exchanges gradients between CPUs, listen at `address` only.

    By default Gloo listens at the address that the machine's name resolves to, which may be open to other networks.
    """
    # Private: JAX 0.10 has no setting for the address, so the function that creates the collectives is wrapped. If a
    # later JAX drops the function, Gloo listens at its default address, and tests/inference/test_mesh.py, which looks
    # at the open ports, fails.
    from jax._src.lib import _jax

    make = getattr(_jax, "make_gloo_tcp_collectives", None)
    if make is not None:
        _jax.make_gloo_tcp_collectives = partial(make, hostname=address)


def exit_with_parent(exit_code: int) -> None:
    """Ends this process as soon as its parent is gone: its standard input is a pipe that the parent holds open."""

    def wait() -> None:
        while os.read(0, 1):  # not `sys.stdin`: a thread that holds its lock breaks the interpreter's exit
            pass
        os._exit(exit_code)

    threading.Thread(target=wait, daemon=True).start()
