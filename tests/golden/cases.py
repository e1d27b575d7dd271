"""Tiny chains of every method, whose draws must not change unless a commit says so.

`python tests/golden/cases.py OUT.npz` runs all cases with whatever `bsgp` is on the path. Cases use names of the public
surface only, so that they run on the commit before and on the one after a change.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

Found = dict[str, np.ndarray]

EFFORTS = {"dkl": 0.001, "kiss-gp": 0.05, "exact-gp": 0.02, "mcmc-gp": 0.02, "mcmc-svgp": 0.02}
DEFAULT_EFFORT = 0.002
NUM_INDUCING = 5


def table(num_rows: int, num_inputs: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (num_rows, num_inputs))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(num_rows)


def options(method: str = "bsgp", **others) -> dict:
    effort = EFFORTS.get(method, DEFAULT_EFFORT)
    few = {"num_inducing": NUM_INDUCING, "num_chains": 1}
    return {"method": method, "effort": effort, **few, "random_state": 0, **others}


def draws_and_energies(model, energy) -> Found:
    import jax

    leaves = {f"draws.{at}": np.asarray(leaf) for at, leaf in enumerate(jax.tree.leaves(model))}
    return leaves | {f"energy.{phase}": np.asarray(values) for phase, values in energy.items()}


def found_in(fitted) -> Found:
    return draws_and_energies(fitted.posterior.model, fitted.history.energy)


def found_of(model, X: np.ndarray) -> Found:
    """All draws and energies, and what is predicted for a few rows."""
    found = draws_and_energies(model.posterior_.model, model.energy_)
    if hasattr(model, "classes_"):
        return {**found, "probability": model.predict_proba(X[:3])}
    mean, sd = model.predict(X[:3], return_std=True)
    return {**found, "mean": mean, "sd": sd}


def regression(num_rows: int = 40, **settings) -> Found:
    from bsgp import BSGPRegressor

    X, y = table(num_rows)
    return found_of(BSGPRegressor(**options(**settings)).fit(X, y), X)


def two_targets(**settings) -> Found:
    from bsgp import BSGPRegressor

    X, y = table(40)
    return found_of(BSGPRegressor(**options(**settings)).fit(X, np.stack([y, -(y**2)], axis=1)), X)


def classification(num_rows: int = 40, num_classes: int = 2, **settings) -> Found:
    from bsgp import BSGPClassifier

    X, y = table(num_rows)
    labels = np.searchsorted(np.quantile(y, np.linspace(0.0, 1.0, num_classes + 1)[1:-1]), y)
    return found_of(BSGPClassifier(**options(**settings)).fit(X, labels), X)


def from_disk(method: str) -> Found:
    """From a source whose rows are read batch by batch."""
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    from bsgp.likelihoods import Gaussian

    from bsgp import Options, fit_method

    try:
        from bsgp.data.store.sources import AbstractStream, AbstractStreamedSource, Rows
    except ImportError:
        from bsgp.data.sources import AbstractStream, AbstractStreamedSource, Rows

    X, y = table(60)

    class Stream(AbstractStream):
        def __init__(self, batch_size: int, seed: int):
            self.batch_size, self.seed = min(batch_size, len(X)), seed

        def read(self, first_batch: int, num_batches: int) -> Rows:
            batches = range(first_batch, first_batch + num_batches)
            picked = [np.random.default_rng([self.seed, at]).permutation(len(X))[: self.batch_size] for at in batches]
            return Rows(X[np.stack(picked)], y[np.stack(picked), None])

    class OnDisk(AbstractStreamedSource):
        num_rows, num_inputs, num_targets, fingerprint = *X.shape, 1, "golden"

        def some_rows(self, count: int, seed: int) -> Rows:
            return Rows(X[:count], y[:count, None])

        def chunks(self, num_rows: int = 100_000):
            yield Rows(X, y[:, None])

        def stream(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> Stream:
            return Stream(batch_size, seed)

    with jax.enable_x64(True):
        chosen = Options(num_inducing=NUM_INDUCING, effort=DEFAULT_EFFORT, num_chains=1)
        return found_in(fit_method(method, OnDisk(), None, Gaussian(jnp.ones(1)), jr.key(0), options=chosen))


class StoppedError(Exception):
    """Stands for the end of the process."""


def resumed() -> Found:
    """A run that was cut off in its draws, and went on from its checkpoint."""
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    from bsgp.likelihoods import Gaussian

    from bsgp import Options, fit_method

    try:
        from bsgp.inference.checkpoints import Checkpoints
    except ImportError:
        from bsgp.checkpoints import Checkpoints

    X, y = table(40)
    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(True):

        def run(report, resume: bool):
            checkpoints = Checkpoints(Path(folder) / "run", {"case": "resumed"}, resume=resume, every=1e-9)
            chosen = Options(num_inducing=NUM_INDUCING, effort=DEFAULT_EFFORT, num_chains=2)
            likelihood = Gaussian(jnp.ones(1))
            return fit_method(
                "bsgp", X, y[:, None], likelihood, jr.key(0), options=chosen, report=report, checkpoints=checkpoints
            )

        def stops(phase: str, done: int, total: int, energy: float) -> None:
            if phase == "draws" and done == total:
                raise StoppedError

        try:
            run(stops, resume=False)
        except StoppedError:
            return found_in(run(lambda *_: None, resume=True))
    raise AssertionError("the run was not cut off")


def more_draws() -> Found:
    """A second `fit` that adds draws to those of the first."""
    from bsgp import BSGPRegressor

    X, y = table(40)
    model = BSGPRegressor(**options(warm_start=True)).fit(X, y)
    return found_of(model.fit(X, y), X)


CASES: dict[str, Callable[[], Found]] = {
    **{
        method: lambda method=method: regression(method=method)
        for method in (
            *("bsgp", "bsgp-z-optimised", "bsgp-u", "sghmc-dgp", "ipvi-dgp", "svgp", "fitc-svgp", "mcmc-svgp"),
            *("mcmc-gp", "exact-gp", "kiss-gp", "dkl"),
        )
    },
    **{
        f"{method}, two classes": lambda method=method: classification(method=method)
        for method in ("bsgp", "sghmc-dgp", "ipvi-dgp", "svgp", "fitc-svgp", "mcmc-svgp")
    },
    **{
        f"{method}, three classes": lambda method=method: classification(num_classes=3, method=method)
        for method in ("bsgp", "svgp", "fitc-svgp")
    },
    **{
        f"{method}, two layers": lambda method=method: regression(method=method, depth=2)
        for method in ("bsgp", "sghmc-dgp", "ipvi-dgp", "svgp")
    },
    "bsgp, vfe": lambda: regression(objective="vfe"),
    "bsgp, vfe, two layers": lambda: regression(objective="vfe", depth=2),
    "bsgp, vfe, two classes": lambda: classification(objective="vfe"),
    **{
        f"bsgp, {prior} Z": lambda prior=prior: regression(inducing_prior=prior)
        for prior in ("determinantal", "strauss", "uniform", "strauss-hard")
    },
    "bsgp, half the likelihood": lambda: regression(likelihood_power=0.5),
    "bsgp, the paper's recipe": lambda: regression(recipe="paper", effort=0.0005),
    "bsgp, two targets": two_targets,
    "bsgp, two chains": lambda: regression(num_chains=2),
    "bsgp, float32": lambda: regression(precision="float32"),
    "bsgp, 1,200 rows": lambda: regression(1_200),
    "bsgp, 5,100 rows": lambda: regression(5_100),
    "bsgp, two classes, 5,100 rows": lambda: classification(5_100),
    "bsgp, streamed": lambda: from_disk("bsgp"),
    "svgp, streamed": lambda: from_disk("svgp"),
    "bsgp, resumed": resumed,
    "bsgp, more draws": more_draws,
}


IN_MAKE_TEST = (
    *("bsgp", "bsgp-z-optimised", "bsgp-u", "sghmc-dgp", "ipvi-dgp", "svgp", "fitc-svgp", "mcmc-svgp"),
    *("mcmc-gp", "exact-gp", "kiss-gp", "dkl", "bsgp, two classes", "bsgp, three classes", "bsgp, two layers"),
    *("bsgp, vfe", "bsgp, 1,200 rows", "bsgp, two classes, 5,100 rows", "bsgp, streamed", "bsgp, resumed"),
)
"""Every method and every kind of run once; `make golden` runs them all."""
NUM_DRAWS, NUM_ENERGIES, NUM_NUMBERS = 2, 8, 16
NUM_LEAVES = {"kiss-gp": 6, "dkl": 6}
"""The leaves after these are eigenvectors, whose signs differ between machines."""


def beginning_of(case: str, found: Found) -> Found:
    """What is kept on file: after many updates the last bits of another machine have grown to the first digits."""
    draws = {name: value[:, :NUM_DRAWS] for name, value in found.items() if name.startswith("draws.")}
    draws = dict(list(draws.items())[: NUM_LEAVES.get(case)])
    draws |= {name: value[:, :NUM_ENERGIES] for name, value in found.items() if name.startswith("energy.")}
    return {name: value.ravel()[:NUM_NUMBERS] for name, value in draws.items()}


def compile_quickly() -> None:
    """Cases compile more than they compute. Call it before JAX starts."""
    if version("jax").startswith("0.10."):  # a version that does not know a flag ends here
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    import jax
    from sklearn.exceptions import ConvergenceWarning

    jax.config.update("jax_disable_most_optimizations", True)
    warnings.simplefilter("ignore", ConvergenceWarning)  # no case is long enough to converge


def main(out: str) -> None:
    compile_quickly()
    arrays = {f"{case}|{name}": value for case, run in CASES.items() for name, value in run().items()}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
