"""Strict settings: nothing is promoted or reused in silence, shapes are checked, warnings are errors."""

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # two workers on two cores: more threads would only wait
    os.environ.setdefault(name, "1")
# for this process and those that tests start: they compile more than they compute
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers and processes of tests share what one has compiled
    compiled = tempfile.mkdtemp(prefix="bsgp-tests-")
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": compiled, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)

import jax  # noqa: E402

os.environ["BSGP_CACHE"] = "off"  # the user's own cache is neither read nor filled

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 4)  # for `mesh`; all else runs on the first
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_key_reuse", True)
if jax.__version__.startswith("0.10."):  # halves the time to compile; a version that does not know a flag ends here
    flags = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()

from jaxtyping import install_import_hook  # noqa: E402

with install_import_hook("bsgp", "beartype.beartype"):
    import bsgp

    for name in bsgp.__all__:  # the package is lazy, and the hook sees only what is imported under it
        getattr(bsgp, name)

import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

import bsgp.methods.method  # noqa: E402
from bsgp.runtime.compilation import release_compiled_programs  # noqa: E402

DEFAULT_NUM_CHAINS = bsgp.methods.method.NUM_CHAINS
bsgp.methods.method.NUM_CHAINS = 1  # tests that need more chains ask for them: four cost twice the time of the suite

# the first example compiles, so a deadline would measure the compiler; no example database: runs do not depend on it
settings.register_profile("bsgp", deadline=None, derandomize=True, database=None)
settings.load_profile("bsgp")

MAX_RESIDENT_BYTES = 1_200_000_000


@pytest.fixture(autouse=True)
def _logger_as_it_was():
    """The command line sets how much is said for its whole process; tests share one."""
    logger = logging.getLogger("bsgp")
    yield
    logger.setLevel(logging.NOTSET)
    logger.filters = []


@pytest.fixture(autouse=True)
def _compiled_programs_released():
    """Tests compile thousands of programs in one process: releasing them keeps a worker below 2 GB."""
    yield
    if _resident_bytes() > MAX_RESIDENT_BYTES:
        release_compiled_programs(max_memory_maps=0)


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture
def default_num_chains(monkeypatch) -> int:
    """As many chains as users get, also for fits of the test that asks for this."""
    monkeypatch.setattr(bsgp.methods.method, "NUM_CHAINS", DEFAULT_NUM_CHAINS)
    return DEFAULT_NUM_CHAINS


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)


@pytest.fixture
def getkey():
    """A fresh key at every call."""
    keys = iter(jr.split(jr.key(7), 1000))
    return lambda: next(keys)


@pytest.fixture(scope="session")
def folder():
    """Folder of the named data sets: BSGP_DATA, or `../shared/data` beside the repository."""
    chosen = Path(os.environ.get("BSGP_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not chosen.is_dir():
        pytest.skip("no data folder: set BSGP_DATA")
    return chosen
