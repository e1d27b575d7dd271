"""Available memory, as the files of the system give it."""

import os

import pytest

import bsgp.runtime.memory
from bsgp.runtime.memory import available_memory, check_memory

MACHINE = {"/proc/meminfo": "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 4000 kB\n"}
CGROUP = {
    "/sys/fs/cgroup/memory.max": "1000000\n",
    "/sys/fs/cgroup/memory.current": "700000\n",
    "/sys/fs/cgroup/memory.stat": "anon 500000\ninactive_file 100000\nactive_file 50000\n",
}
UNLIMITED = {**CGROUP, "/sys/fs/cgroup/memory.max": "max\n"}
FULL = {**CGROUP, "/sys/fs/cgroup/memory.current": "1200000\n"}


@pytest.fixture
def system(monkeypatch):
    """Give the system other files."""

    def has(files: dict[str, str]) -> None:
        monkeypatch.setattr(bsgp.runtime.memory, "_read", lambda path: files.get(path, ""))

    return has


@pytest.mark.parametrize(
    ("files", "available"),
    [
        (MACHINE, 4_000 * 1024),
        (MACHINE | UNLIMITED, 4_000 * 1024),
        (MACHINE | CGROUP, 450_000),  # files that the system has cached can go
        (MACHINE | FULL, 0),
    ],
    ids=["machine", "container without a limit", "container", "container that is full"],
)
def test_the_tighter_limit_of_machine_and_container_counts(files, available, system):
    system(files)
    assert available_memory() == available
    check_memory(available, "")
    with pytest.raises(ValueError, match=r"must have about 0\.0 GB of memory.* Buy more"):
        check_memory(available + 1, "Buy more.")


def test_without_such_files_the_installed_memory_counts(system):
    system({})
    assert available_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_this_machine_has_less_available_than_installed():
    free = available_memory()
    assert free is not None
    assert 0 < free < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
