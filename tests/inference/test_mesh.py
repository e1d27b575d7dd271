"""One run over several devices and processes. The tests have four devices of the host (conftest)."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal
from problems import regression, tiny_target
from refusals import message
from safetensors.numpy import load_file
from spread_runs import MESHES, draws_on

import bsgp.inference.chunk_runner
import bsgp.methods.bsgp
from bsgp import BSGPRegressor, Options, Plan, Store, open_store, sample
from bsgp.data.store.convert import Sizes
from bsgp.inference.checkpoints import Snapshot, pack, unpack
from bsgp.methods.registry import check_method
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.runtime.mesh import DATA, Layout, mean_over, mesh_shape
from bsgp.runtime.processes import LOST_PEER, open_network_warning, own_address, parse_address

HELPERS = Path(__file__).parents[1] / "helpers"
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory) -> Path:
    """The rows of `spread_runs` on disk."""
    folder = tmp_path_factory.mktemp("streamed")
    _, X, y = tiny_target(num_rows=60)
    table = np.column_stack([X, y])
    np.savetxt(folder / "table.csv", table, delimiter=",", header="a,b,y", comments="")
    sizes = Sizes(block_rows=7)
    return open_store(folder / "table.csv", targets=["y"], cache=folder, sizes=sizes).folder


@pytest.fixture(scope="module")
def one_device() -> dict[str, np.ndarray]:
    return draws_on(None)


@pytest.fixture
def started():
    """Processes that a test starts; none of them outlives it."""
    processes: list[subprocess.Popen] = []

    def start(*command, **options) -> subprocess.Popen:
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        processes.append(subprocess.Popen(list(map(str, command)), **settings))
        return processes[-1]

    yield start
    for process in processes:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.communicate()


def assert_close(found: dict, name: str, expected: dict, prefix: str = "") -> None:
    for at in range(len(expected)):
        assert_allclose(found[f"{prefix}{name}.{at}"], expected[f"None.{at}"], rtol=1e-6, atol=1e-12)


# -- the same draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [pytest.param(mesh, marks=[pytest.mark.slow] * (mesh != "2x2")) for mesh in MESHES])
def test_draws_on_several_devices_are_those_on_one(mesh, one_device):
    assert_close(draws_on(mesh), mesh, one_device)


@pytest.mark.slow
def test_what_is_optimised_is_the_same_on_several_devices():
    treatment = {"noise": "optimise"}
    assert_close(draws_on("2x2", treatment=treatment), "2x2", draws_on(None, treatment=treatment))


@pytest.mark.parametrize("meshes", [("2x2",), pytest.param(MESHES, marks=pytest.mark.slow)], ids=len)
def test_two_processes_draw_what_one_does(meshes, one_device, streamed, started, tmp_path):
    coordinator = f"{LOOPBACK}:{free_port()}"
    command = [sys.executable, HELPERS / "spread_runs.py", coordinator, 2]
    environment = {**os.environ, "BSGP_CACHE": "off"}
    pair = [started(*command, at, tmp_path / "out.npz", ",".join(meshes), streamed, env=environment) for at in (0, 1)]
    for process in pair:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    found = dict(np.load(tmp_path / "out.npz"))
    for mesh in meshes:
        assert_close(found, mesh, one_device)
    in_one_process = draws_on("2x2", stream=streamed)
    for name, draws in in_one_process.items():
        assert_allclose(found[f"streamed.{name}"], draws, rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_three_chains_on_two_devices_and_one_that_is_left_out(monkeypatch):
    target, X, y = tiny_target()
    plan = Plan(adam_steps=0, burn_in=20, num_draws=4, thinning=5, batch_size=10, chunk=10)
    plain = sample(target, X, y, jax.random.key(5), plan=plan, num_chains=3)
    real, calls = bsgp.inference.chunk_runner.sample_chunk, []

    def spoilt(*arguments):
        chains, positions, info = real(*arguments)
        calls.append(info.energy.shape[0])
        return chains, positions, info._replace(energy=info.energy.at[1].set(jnp.nan)) if calls[-1] == 4 else info

    monkeypatch.setattr(bsgp.inference.chunk_runner, "sample_chunk", spoilt)
    layout = Layout((2, 1))
    spread = sample(target, X, y, jax.random.key(5), plan=plan, num_chains=3, layout=layout)
    assert "Chain 1" in spread.history.warnings[0]
    assert calls[-1] == 2
    for a, b in zip(jax.tree.leaves(spread.model), jax.tree.leaves(plain.model), strict=True):
        assert a.shape[0] == 2
        # the keys of a chunk are split among the chains that there are: the first has the same all along
        assert_allclose(a[0], b[0], rtol=1e-6, atol=1e-12)


def test_an_estimator_takes_a_mesh(monkeypatch):
    shapes, real = [], bsgp.methods.bsgp.Layout
    monkeypatch.setattr(bsgp.methods.bsgp, "Layout", lambda shape: shapes.append(shape) or real(shape))
    X, y = regression(40, 2)
    model = BSGPRegressor(mesh="2x1", num_inducing=5, num_chains=2, effort=0.004, random_state=0).fit(X, y[:, 0])
    assert shapes == [(2, 1)]
    assert np.isfinite(model.predict(X)).all()


# -- parts ---------------------------------------------------------------------------------------------------------


def test_the_mean_of_a_tree_is_one_exchange():
    layout = Layout((1, 4))
    program = jax.shard_map(
        lambda x: mean_over(DATA, {"a": x, "b": (2.0 * x[:, 0], jnp.sum(x))}),
        mesh=layout.mesh, in_specs=P(DATA), out_specs=P(), check_vma=False,
    )  # fmt: skip
    x = jnp.arange(8.0).reshape(4, 2)
    found = jax.jit(program)(x)
    assert_allclose(found["a"], x.mean(axis=0, keepdims=True))
    assert_allclose(found["b"][1], x.sum() / 4)
    assert str(jax.make_jaxpr(program)(x)).count("psum") == 1


def test_bad_meshes_are_refused_in_words():
    for text in ("2", "0x2", "2x", "ax1", "2x1x1", "-1x2"):
        assert "CHAINSxDATA" in message(mesh_shape, text)
    assert mesh_shape("16x2") == (16, 2)
    assert "jax_num_cpu_devices" in message(Layout, (4, 2))
    target, X, y = tiny_target()
    plan = Plan(adam_steps=1, burn_in=0, num_draws=1, thinning=1, batch_size=15)
    assert "15 rows" in message(sample, target, X, y, jax.random.key(0), plan=plan, layout=Layout((1, 2)))
    assert "one device" in message(check_method, "svgp", gaussian(1, float), Options(mesh="2x1"))
    assert "CHAINSxDATA" in message(BSGPRegressor(mesh="two").fit, X, y[:, 0])


def test_a_batch_of_all_rows_is_shared_out():
    target, X, y = tiny_target()
    plan = Plan(adam_steps=0, burn_in=10, num_draws=2, thinning=5, chunk=5)
    plain, spread = (
        sample(target, X, y, jax.random.key(1), plan=plan, layout=layout) for layout in (None, Layout((1, 2)))
    )
    for a, b in zip(jax.tree.leaves(spread.model), jax.tree.leaves(plain.model), strict=True):
        assert_allclose(a, b, rtol=1e-6, atol=1e-12)


def test_shares_of_a_store_have_their_own_rows_each_once_an_epoch(streamed):
    store = Store.open(streamed)
    assert store.num_rows == 60
    streams = [store.stream(20, 3, (index, 4)) for index in range(4)]
    seen = [stream.read(0, 3).X for stream in streams]  # an epoch
    for rows in seen:
        assert rows.shape == (3, 5, store.num_inputs)
    everything = np.concatenate([rows.reshape(15, -1) for rows in seen])
    assert len(np.unique(everything, axis=0)) == 60
    again = np.concatenate([stream.read(3, 3).X.reshape(15, -1) for stream in streams])
    assert len(np.unique(again, axis=0)) == 60
    assert not np.array_equal(again, everything)
    assert_array_equal(streams[1].read(0, 3).X, seen[1])


def test_a_snapshot_travels_whole():
    draws = [{"names": np.arange(2), "draws.0": np.ones((2, 1))}, {"names": np.arange(1), "draws.0": np.zeros((1, 3))}]
    sent = Snapshot({"key": np.arange(4, dtype=np.uint32)}, {"phase": "draws", "note": "a\nb"}, draws)
    got = unpack(pack(sent))
    assert got.facts == sent.facts
    assert_array_equal(got.arrays["key"], sent.arrays["key"])
    assert len(got.draws) == 2
    assert_array_equal(got.draws[1]["draws.0"], np.zeros((1, 3)))
    assert unpack(pack(Snapshot({"a": np.ones(1)}, {}, []))).draws == []


def test_addresses():
    assert parse_address("10.0.0.5:8476") == ("10.0.0.5", 8476)
    for text in ("8476", "host:", ":80", "host:port", "host:0", "host:70000"):
        assert "HOST:PORT" in message(parse_address, text)
    assert own_address(LOOPBACK, 8476) == LOOPBACK
    assert open_network_warning(LOOPBACK) is None
    assert open_network_warning("localhost") is None
    assert "without encryption" in (open_network_warning("192.0.2.7") or "")


# -- losing a process ----------------------------------------------------------------------------------------------


def fit_command(table: Path, out: Path, *more) -> list:
    # two layers: one layer of few rows takes steps so long that rounding grows to the first digit
    settings = ["--target", "y", "--num-inducing", 5, "--depth", 2, "--chains", 2, "--effort", 0.2]
    settings += ["--checkpoint-seconds", 0.01]
    return [sys.executable, "-m", "bsgp", "fit", table, *settings, "--out", out, *more]


def draws_of(model: Path) -> dict[str, np.ndarray]:
    (arrays,) = model.glob("*.safetensors")
    return load_file(arrays)


def listeners(process: psutil.Process) -> set[str]:
    family = [process, *process.children(recursive=True)]
    return {
        connection.laddr.ip
        for one in family
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    X, y = regression(60, 2)
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    return path


@pytest.mark.parametrize(
    ("mesh", "victim"),
    [("1x2", 1), ("2x1", 0), ("2x1", 1)],
)
@pytest.mark.slow
def test_a_lost_process_ends_the_others_and_the_run_goes_on_without_it(mesh, victim, table, started, tmp_path):
    environment = {**os.environ, "BSGP_CACHE": "off"}
    whole = started(*fit_command(table, tmp_path / "whole"), env=environment)
    assert whole.wait(200) == 0
    out = tmp_path / "model"
    several = ["--mesh", mesh, "--num-processes", 2, "--coordinator", f"{LOOPBACK}:{free_port()}"]
    pair = [started(*fit_command(table, out, *several, "--process-id", at), env=environment) for at in (0, 1)]
    checkpoints = tmp_path / "model.checkpoint"
    began = time.monotonic()
    while not list(checkpoints.glob("checkpoint-00000[3-9].json")):
        assert time.monotonic() - began < 200
        assert all(process.poll() is None for process in pair)
        time.sleep(0.05)
    found = set().union(*(listeners(psutil.Process(process.pid)) for process in pair))
    assert found
    assert {address.removeprefix("::ffff:") for address in found} == {LOOPBACK}

    (child,) = psutil.Process(pair[victim].pid).children()
    child.send_signal(signal.SIGKILL)
    lost = time.monotonic()
    _, said = pair[1 - victim].communicate(timeout=60)
    assert time.monotonic() - lost < 60
    assert pair[1 - victim].returncode == 3
    assert said.splitlines() == [f"bsgp: {LOST_PEER}"]
    assert not out.exists()

    resumed = started(*fit_command(table, out, "--resume"), env=environment)
    _, said = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, said
    assert "Resuming from a checkpoint" in said
    expected = draws_of(tmp_path / "whole")
    for name, values in draws_of(out).items():
        assert_allclose(values, expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--num-processes", "2", "--process-id", "0"], "must come with --mesh"),
        (["--num-processes", "2", "--process-id", "2", "--mesh", "2x1"], "from 0 to 1"),
        (["--num-processes", "2", "--process-id", "0", "--mesh", "3x1"], "3 devices"),
    ],
)
def test_the_command_refuses_processes_that_do_not_add_up(options, words, table, tmp_path):
    done = subprocess.run(
        list(map(str, fit_command(table, tmp_path / "m", *options))), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
