"""End-to-end benchmark of a very large table: 11 million rows of 28 inputs. `make bench-large`.

Writes a synthetic table with known truth, then converts, fits and scores it with the command line, each in a fresh
process on one core with one thread. Writes results/large.json. This process only measures the others and imports very
little, because the peak memory of a started process includes that of its parent.

    .venv/bin/python benchmarks/large.py --rows 1000000 --held-out 100000 --out trial.json      a smaller one
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS"):
    os.environ[variable] = "1"
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

ROOT = Path(__file__).parent.parent
BATCH = 1_000
MEMORY_ROWS = 100_000
FEED_BATCHES = 3_000
BATCHES_PER_READ = 160  # like the sampler
BAR = 0.9
"""Smallest acceptable ratio of the time of an update from memory to that from disk."""


# -- parts, each in a separate process ---------------------------------------------------------------------------


def write(path: str, rows: int, seed: int, by_target: bool = False) -> dict:
    """Write a synthetic table."""
    from synthetic import write_synthetic

    write_synthetic(path, rows, seed=seed, sorted_by_target=by_target)
    return {"megabytes": os.stat(path).st_size / 1e6}


def convert(path: str) -> dict:
    """Convert a table and measure rows per second, without imports."""
    began, cpu_began = time.monotonic(), time.process_time()
    store = _store(path)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu_began
    size = (store.folder / "rows.f32").stat().st_size
    return {
        "rows_per_second": store.num_rows / seconds,
        "rows_per_cpu_second": store.num_rows / cpu,
        "store_megabytes": size / 1e6,
    }


def rates(path: str, effort: float, repeats: int) -> dict:
    """Milliseconds per update in the sampling phases of the same fit, from disk and from memory in alternation.

    Returns the best of the repeats; their ratio is what counts. The first chunk of a phase compiles and is left out.
    CPU time is that of all threads, so it includes reading ahead.
    """
    import jax
    import jax.random as jr

    from bsgp.data.store.sources import ArraySource
    from bsgp.methods.options import Options
    from bsgp.methods.registry import fit_method
    from bsgp.models.likelihoods.classes import Bernoulli

    store = _store(path)
    sources = {"disk": store, "memory": ArraySource(*store.some_rows(MEMORY_ROWS, 0))}
    best: dict[str, float] = {}
    with jax.enable_x64(False):
        for _ in range(repeats):
            for name, source in sources.items():
                watch = _Stopwatch()
                fit_method("bsgp", source, None, Bernoulli(), jr.key(0), options=Options(effort=effort), report=watch)
                for clock, value in watch.milliseconds().items():
                    key = f"{name}_{clock}_ms"
                    best[key] = min(best.get(key, value), value)
    ratios = {f"ratio_{clock}": best[f"memory_{clock}_ms"] / best[f"disk_{clock}_ms"] for clock in ("cpu", "wall")}
    return {**best, **ratios, "bar": BAR}


class _Stopwatch:
    """A `Report` that records when each chunk of updates is done."""

    def __init__(self):
        self._marks: dict[str, list[tuple[int, float, float]]] = {}

    def __call__(self, phase: str, done: int, total: int, energy: float) -> None:
        self._marks.setdefault(phase, []).append((done, time.process_time(), time.monotonic()))

    def milliseconds(self) -> dict[str, float]:
        phases = {name: marks for name, marks in self._marks.items() if name != "warm start" and len(marks) > 1}
        updates, cpu, wall = (sum(marks[-1][at] - marks[0][at] for marks in phases.values()) for at in range(3))
        return {"cpu": 1e3 * cpu / updates, "wall": 1e3 * wall / updates}


def truth(path: str) -> dict:
    """Score of the true probabilities, which a model can beat only by chance."""
    import numpy as np

    from bsgp.data.tables.chunks import read_chunks
    from synthetic import TARGET, true_probability

    total, errors, count = 0.0, 0, 0
    for chunk in read_chunks(path):
        columns = [one.values for name, one in chunk.columns.items() if name != TARGET]
        label = chunk.columns[TARGET].values == 1
        probability = true_probability(np.stack(columns, axis=1))
        total -= float(np.log(np.where(label, probability, 1.0 - probability)).sum())
        errors += int(np.sum((probability > 0.5) != label))
        count += chunk.num_rows
    return {"mnll": total / count, "error": errors / count}


def spread(path: str, epochs: int = 2) -> dict:
    """Variance of minibatch means relative to that of random rows, for a file that is sorted by its target.

    1 is as good as random rows; sorted rows without a shuffle would give hundreds. `expected_sd` is the standard
    deviation of the ratio by chance.
    """
    import numpy as np

    store = _store(path)
    num_batches = epochs * store.num_rows // BATCH
    stream, sums, squares, means = store.stream(BATCH, 0), 0.0, 0.0, []
    for first in range(0, num_batches, BATCHES_PER_READ):
        rows = stream.read(first, min(BATCHES_PER_READ, num_batches - first))
        values = np.concatenate([rows.y, rows.X], axis=2).astype(np.float64)
        sums, squares = sums + values.sum(axis=(0, 1)), squares + (values**2).sum(axis=(0, 1))
        means.append(values.mean(axis=1))
    count = num_batches * BATCH
    variance = squares / count - (sums / count) ** 2
    uniform = variance / BATCH * (1.0 - BATCH / store.num_rows)  # a batch has no row twice
    ratio = np.concatenate(means).var(axis=0) / uniform
    return {
        "target": float(ratio[0]),
        "inputs_mean": float(ratio[1:].mean()),
        "inputs_max": float(ratio[1:].max()),
        "batches": num_batches,
        "expected_sd": (2.0 / num_batches) ** 0.5,
    }


def feed(path: str) -> dict:
    """Rows per second of a stream, first with the store's pages dropped from memory, then again."""
    store = _store(path)
    file = os.open(store.folder / "rows.f32", os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    num_batches = min(FEED_BATCHES, store.num_rows // BATCH)
    result = {}
    for name in ("cold", "warm"):
        stream, began, cpu_began = store.stream(BATCH, 0), time.monotonic(), time.process_time()
        for first in range(0, num_batches, BATCHES_PER_READ):
            stream.read(first, min(BATCHES_PER_READ, num_batches - first))
        rows = num_batches * BATCH
        result[f"{name}_rows_per_second"] = rows / (time.monotonic() - began)
        result[f"{name}_rows_per_cpu_second"] = rows / (time.process_time() - cpu_began)
    return result


def _store(path: str):
    from bsgp.data.store.store import open_store

    return open_store(path, targets=["label"], task="classification")


PARTS = {part.__name__: part for part in (write, convert, rates, truth, spread, feed)}


# -- measuring them ----------------------------------------------------------------------------------------------


def command(*arguments: str) -> dict:
    """Run a command that prints JSON. Returns it with the seconds, CPU seconds and peak memory of the process."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen([sys.executable, *arguments], stdout=output)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode:
            raise SystemExit(f"{arguments[:3]} ended with {started.returncode}.")
        output.seek(0)
        result = json.loads(output.read().strip().splitlines()[-1])
    costs = {"process_seconds": time.monotonic() - began, "process_cpu_seconds": used.ru_utime + used.ru_stime}
    return {**result, **costs, "peak_megabytes": used.ru_maxrss / 1e3}


def part(name: str, **options) -> dict:
    """Run one of `PARTS` in a fresh process and measure it."""
    print(f"{name} {options} ...", file=sys.stderr, flush=True)
    return command(__file__, "--part", name, "--options", json.dumps(options))


def bsgp(*arguments: str) -> dict:
    """Run `bsgp` in a fresh process and measure it."""
    print(f"bsgp {arguments[0]} ...", file=sys.stderr, flush=True)
    return command("-m", "bsgp", *arguments, "--json")


def fit(train: Path, model: Path, effort: float) -> dict:
    """Fit with the command line, which chooses between memory and disk itself. The store exists already."""
    found = bsgp(
        "fit", str(train), "--target", "label", "--task", "classification", "--out", str(model), "--method", "bsgp",
        "--float32", "--effort", str(effort),
    )  # fmt: skip
    kept = ("rows", "inputs", "evaluations", "seconds", "verdict", "process_seconds", "process_cpu_seconds")
    rate = found["evaluations"] / found["seconds"]  # compilation included
    return {name: found[name] for name in kept} | {
        "updates_per_second": rate,
        "peak_megabytes": found["peak_megabytes"],
    }


def run(folder: Path, settings: argparse.Namespace) -> dict:
    """Measure all parts."""
    train, test, by_target = (folder / f"{name}.parquet" for name in ("train", "test", "sorted"))
    result = {
        "write": part("write", path=str(train), rows=settings.rows, seed=0),
        "write_held_out": part("write", path=str(test), rows=settings.held_out, seed=1),
        "write_sorted": part("write", path=str(by_target), rows=settings.sorted_rows, seed=2, by_target=True),
        "convert": part("convert", path=str(train)),
        "feed": part("feed", path=str(train)),
        "convert_sorted": part("convert", path=str(by_target)),
        "spread": part("spread", path=str(by_target)),
        "truth": part("truth", path=str(test)),
    }
    if not settings.without_fit:
        result["rates"] = part("rates", path=str(train), effort=settings.rates_effort, repeats=settings.repeats)
        result["fit"] = fit(train, folder / "model", settings.effort)
        result["evaluate"] = bsgp("evaluate", str(folder / "model"), str(test))
    return result


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=11_000_000)
    parser.add_argument("--held-out", type=int, default=1_000_000)
    parser.add_argument("--sorted-rows", type=int, default=1_000_000)
    parser.add_argument("--effort", type=float, default=1.0, help="effort of the fit that is scored")
    parser.add_argument("--rates-effort", type=float, default=0.15, help="effort of the fits that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-fit", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "large.json")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.part:
        print(json.dumps(PARTS[settings.part](**settings.options)))
        return
    with tempfile.TemporaryDirectory(prefix="bsgp-large-") as name:
        os.environ["BSGP_CACHE"] = str(Path(name) / "cache")
        measured = run(Path(name), settings)
    asked = {key: value for key, value in vars(settings).items() if key not in ("out", "part", "options")}
    settings.out.write_text(json.dumps({**about(), "settings": asked, **rounded(measured)}, indent=1) + "\n")
    show(measured)


def about() -> dict:
    """Commit and machine of this benchmark."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    machine = {"cores": os.cpu_count(), "cores_used": 1, "gigabytes": round(memory, 1), "load": os.getloadavg()[1]}
    return {"commit": commit, "machine": machine}


def rounded(value):
    """All numbers rounded to five digits: the rest is noise."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def show(measured: dict) -> None:
    """Print a table of all measurements."""
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "measured", caption="fresh processes, one core, one thread")
    for name, found in measured.items():
        values = {key: value for key, value in found.items() if isinstance(value, int | float)}
        table.add_row(name, "\n".join(f"{key.replace('_', ' ')}: {value:,.5g}" for key, value in values.items()))
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
