"""Campaigns on any engine with real processes: on this machine, on executors, on a Dask scheduler at 127.0.0.1."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_allclose
from toy_kind.toy import ToyRun

import bsgp.cli.bench
import bsgp.experiments.engine.engines as engines
from bsgp.cli import main
from bsgp.experiments.engine.engines import dask_client, exposure_warning, run_in_fresh_process
from bsgp.experiments.engine.runner import FAILURES, FINISHED, RESULTS, collect_finished, read_records, run_all
from bsgp.experiments.figures.table import compare, to_markdown

needs_dask = pytest.mark.skipif(find_spec("distributed") is None, reason="needs `pip install 'bsgp[dask]'`")
LOOPBACK = "127.0.0.1"
PATIENCE = 60
"""Seconds to wait for something on a busy machine."""


def task(run: ToyRun) -> str:
    return json.dumps({"kind": run.kind, "run": vars(run), "data_dir": None})


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# -- any executor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_client", [lambda: None, lambda: ThreadPoolExecutor(2)], ids=["none", "executor"])
def test_any_executor_gives_the_same_records(make_client, toys, tmp_path):
    client = make_client()
    good, (bad,) = toys(0, 1), toys(2, deed="fail")
    assert run_all([*good, bad], tmp_path / "runs", n_jobs=2, client=client) == [bad]
    records = read_records(tmp_path / "runs")
    assert sorted(record["key"] for record in records) == [run.key for run in good]
    assert all((record["cores"], record["threads"], record["foreign"]) == (1, "1", []) for record in records)
    (failure,) = (json.loads(line) for line in (tmp_path / "runs" / FAILURES).read_text().splitlines())
    assert "a failure on purpose" in failure["error"]
    assert toys.begun() == {good[0].key: 1, good[1].key: 1, bad.key: 2}
    assert list((tmp_path / "runs" / FINISHED).iterdir()) == []
    assert run_all(good, tmp_path / "runs", client=client) == []
    assert toys.begun()[good[0].key] == 1


class Unable:
    """An engine that cannot do any run."""

    def __init__(self, error: BaseException | None = None):
        self.error = error

    def submit(self, function, *arguments) -> Future:
        future: Future = Future()
        if self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


def test_what_an_engine_cannot_do_is_a_recorded_failure(toys, tmp_path):
    runs = toys(0, 1)
    failed = run_all(runs, tmp_path, client=Unable(RuntimeError("three workers died")))
    assert {run.key for run in failed} == {run.key for run in runs}
    lines = (tmp_path / FAILURES).read_text().splitlines()
    assert json.loads(lines[0])["error"] == "RuntimeError: three workers died"
    assert len(lines) == 2


def test_an_engine_that_is_gone_ends_the_campaign_and_fails_no_run(toys, tmp_path):
    with pytest.raises(ConnectionError, match="Repeat the command"):
        run_all(toys(0), tmp_path, client=Unable())
    assert not (tmp_path / FAILURES).exists()


def test_records_that_a_killed_campaign_left_are_collected_once(toys, tmp_path):
    (known, left) = toys(0, 1)
    (tmp_path / FINISHED).mkdir()
    for number, run in enumerate((known, left)):
        (tmp_path / FINISHED / f"{number}.json").write_text(json.dumps({"key": run.key, "from": "finished"}))
    (tmp_path / FINISHED / "2.json").write_text("{")
    (tmp_path / RESULTS).write_text(json.dumps({"key": known.key, "from": "runs"}) + "\n")
    assert run_all([known, left], tmp_path, client=Unable(RuntimeError("nothing is left to do"))) == []
    assert [(one["key"], one["from"]) for one in read_records(tmp_path)] == [
        (known.key, "runs"), (left.key, "finished")
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / FINISHED).iterdir()] == ["2.json"]
    assert collect_finished(tmp_path / "nothing") == set()


def test_a_process_leaves_its_record_in_a_file_and_a_finished_run_is_not_repeated(toys, tmp_path):
    (run,) = toys(0)
    record, error = run_in_fresh_process(task(run), str(tmp_path / "finished.json"))
    assert error == ""
    assert json.loads((tmp_path / "finished.json").read_text()) == record
    assert run_in_fresh_process(task(run), str(tmp_path / "finished.json")) == (record, "")
    assert toys.begun()[run.key] == 1
    elsewhere = run_in_fresh_process(task(run), str(tmp_path / "not" / "on" / "this" / "host.json"))
    assert elsewhere == (record, "")
    assert not (tmp_path / "not").exists()


def test_control_c_ends_local_runs_and_the_folder_can_be_resumed(toys, tmp_path):
    (quick,), (endless,) = toys(0), toys(1, seconds=10 * PATIENCE)

    def interrupt(*_):
        wait_until(lambda: toys.begun()[endless.key])
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all([quick, endless], tmp_path, n_jobs=2, on_done=interrupt)
    assert time.monotonic() - began < PATIENCE
    assert toys.begun()[endless.key] == 1
    assert [record["key"] for record in read_records(tmp_path)] == [quick.key]
    assert run_all([quick, *toys(1)], tmp_path) == []
    assert len(read_records(tmp_path)) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_two_processes_claim_two_cores_and_a_third_shares_one(tmp_path, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # so that claims of other campaigns do not count
    code = (
        f"import os; os.sched_setaffinity(0, {cores}); from bsgp.experiments.engine.worker import claim_core; "
        "core = claim_core(); assert os.sched_getaffinity(0) == {core}; print(core, flush=True); input()"
    )
    with ExitStack() as stack:
        claims = []
        for _ in range(3):
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate, "\n")
            claims.append(int(process.stdout.readline()))
    assert claims[: len(cores)] == cores
    assert claims[-1] in cores


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786", "tls://node1:8786"]
)
def test_no_warning_of_traffic_that_no_one_can_read(address):
    assert exposure_warning(address) is None


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tcp://node1:8786", "tcp://[fe80::1]:8786"])
def test_a_warning_of_open_traffic(address):
    exposure = exposure_warning(address)
    assert exposure is not None
    assert "neither encrypted nor authenticated" in exposure
    assert "tls://" in exposure


def refusal(capsys, tmp_path, address) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "run", "uci", "--out", str(tmp_path / "runs"), "--scheduler", address])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bsgp: `--scheduler` must")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    "address", ["node1", "node1:8786", "tcp://node1", "http://node1:80", "tcp://node1:port", "tcp://["]
)
def test_what_is_no_address_is_refused(address, capsys, tmp_path):
    assert repr(address) in refusal(capsys, tmp_path, address)


def test_without_dask_its_extra_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'bsgp[dask]'" in refusal(capsys, tmp_path, "tcp://127.0.0.1:8786")


@needs_dask
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_an_unreachable_scheduler_is_one_line(scheme, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    error = refusal(capsys, tmp_path, f"{scheme}://{LOOPBACK}:1")
    assert "dask scheduler" in error
    assert not (tmp_path / "runs").exists()


# -- Dask ----------------------------------------------------------------------------------------------------------


class Dask:
    """A scheduler that runs as long as the tests of this file, and workers."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder = folder
        self.scheduler = stack.enter_context(
            self._process("scheduler", "--port", "0", "--scheduler-file", str(folder / "scheduler.json"))
        )
        wait_until((folder / "scheduler.json").exists)
        self.address: str = json.loads((folder / "scheduler.json").read_text())["address"]

    @contextmanager
    def _process(self, *arguments: str):
        # `--no-dashboard` would still listen for HTTP, and everywhere
        places = ["--host", LOOPBACK, "--dashboard-address", f"{LOOPBACK}:0"]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, *places], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def workers(self, number: int):
        options = ["--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder)]
        with ExitStack() as stack:
            started = [stack.enter_context(self._process("worker", self.address, *options)) for _ in range(number)]
            with self.client() as client:
                client.wait_for_workers(number, timeout=PATIENCE)
            yield started
        with self.client() as client:  # the next test starts without workers
            wait_until(lambda: not client.nthreads())

    def client(self):
        from distributed import Client

        return Client(self.address, set_as_default=False)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with ExitStack() as stack:
        yield Dask(tmp_path_factory.mktemp("dask"), stack)


@needs_dask
def test_a_campaign_survives_a_killed_worker(toys, dask, tmp_path, monkeypatch):
    import psutil

    runs = toys(*range(6), seconds=0.1)
    monkeypatch.setattr(bsgp.cli.bench, "_free_runs", lambda choice, free: runs)
    with dask.workers(2) as (victim, _):

        def kill_in_the_middle_of_a_run():
            wait_until(lambda: len(read_records(tmp_path / "dask")) >= 1)
            wait_until(psutil.Process(victim.pid).children)
            victim.send_signal(signal.SIGKILL)

        killer = Thread(target=kill_in_the_middle_of_a_run)
        killer.start()
        main(["bench", "run", "uci", "--out", str(tmp_path / "dask"), "--scheduler", dask.address])
        killer.join()
        assert victim.poll() is not None
    records = read_records(tmp_path / "dask")
    assert sorted(record["key"] for record in records) == sorted(run.key for run in runs)
    begun = toys.begun()
    assert sum(begun.values()) <= len(runs) + 1  # only the victim's own run is repeated
    assert list((tmp_path / "dask" / FINISHED).glob("*.json")) == []
    assert not (tmp_path / "dask" / FAILURES).exists()

    assert run_all(toys(*range(6)), tmp_path / "local", n_jobs=2) == []
    local = read_records(tmp_path / "local")
    assert sorted(local, key=lambda one: one["fold"]) == sorted(records, key=lambda one: one["fold"])
    assert to_markdown(compare(local, {})) == to_markdown(compare(records, {}))


@needs_dask
def test_a_run_that_kills_its_workers_is_a_recorded_failure(toys, dask, tmp_path):
    (deadly,), good = toys(0, deed="kill the worker"), toys(1, 2)

    def allow_failures(number, dask_scheduler):
        before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, number
        return before

    with dask.workers(3), dask.client() as client:
        before = client.run_on_scheduler(allow_failures, 1)
        assert run_all([deadly, *good], tmp_path, client=client) == [deadly]
        client.run_on_scheduler(allow_failures, before)
    assert toys.begun() == {deadly.key: 2, good[0].key: 1, good[1].key: 1}
    (failure,) = (json.loads(line) for line in (tmp_path / FAILURES).read_text().splitlines())
    assert failure["error"].startswith("KilledWorker")
    assert len(read_records(tmp_path)) == 2


@needs_dask
def test_no_process_listens_beyond_this_machine(toys, dask, tmp_path):
    import psutil

    def listening(pid: int) -> set:
        connections = psutil.Process(pid).net_connections()
        return {one.laddr for one in connections if one.status == psutil.CONN_LISTEN}

    before = listening(os.getpid())
    with dask.workers(1) as (worker,), dask_client(dask.address) as client:
        assert run_all(toys(0), tmp_path, client=client) == []
        assert listening(os.getpid()) == before  # a campaign does not listen at all
        theirs = listening(dask.scheduler.pid) | listening(worker.pid)
        assert len(theirs) >= 2
        assert {address.ip for address in theirs} == {LOOPBACK}
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.WORKER_SATURATION) == 1.0


@needs_dask
def test_a_campaign_without_workers_says_so(dask, caplog, monkeypatch):
    monkeypatch.setattr(engines, "WATCH_SECONDS", 0.1)
    with caplog.at_level(logging.WARNING, "bsgp"), dask_client(dask.address):
        wait_until(lambda: caplog.messages)
    (message,) = caplog.messages
    assert message.startswith(f"No Dask worker has joined {dask.address}")


# -- scikit-learn --------------------------------------------------------------------------------------------------


def test_cross_validation_in_other_processes_gives_the_same_scores(rng, monkeypatch):
    from joblib.externals.loky import get_reusable_executor
    from sklearn.model_selection import ShuffleSplit, cross_val_score

    from bsgp import BSGPRegressor

    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # as in this process
    X = rng.standard_normal((40, 2))
    model = BSGPRegressor(method="exact-gp", effort=0.01, random_state=0)  # it compiles the least
    # one split is enough: with two jobs it, too, is fitted in another process
    split = ShuffleSplit(1, random_state=0)
    scores = [cross_val_score(model, X, np.sin(X[:, 0]), cv=split, n_jobs=n_jobs) for n_jobs in (1, 2)]
    get_reusable_executor().shutdown(wait=True)
    assert_allclose(scores[0], scores[1], rtol=1e-6)
