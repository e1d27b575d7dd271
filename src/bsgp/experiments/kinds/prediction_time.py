"""A run that fits a UCI set and times its predictions."""

import time
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

DATASET = "protein"
NUM_DRAWS = (8, 16, 32, 64, 128, 256)
"""Numbers of draws that predictions are timed with."""
NUM_REPEATS = 3
"""Timed calls of each prediction. The fastest counts."""


@dataclass(frozen=True)
class PredictionTimeRun:
    """Settings of a fit whose predictions are timed."""

    kind: ClassVar[str] = "prediction-time"
    method: str = "bsgp"
    depth: int = 1
    num_inducing: int | None = None
    """Number of inducing points. None: the method's own."""
    dataset: str = DATASET
    fold: int = 0
    seed: int = 0
    scale: float = 1.0
    """Factor on the number of updates of every phase. The number of draws stays the same."""

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        parts = [self.kind, self.method, self.dataset, f"depth{self.depth}", f"fold{self.fold}", f"seed{self.seed}"]
        if self.num_inducing is not None:
            parts.append(f"M{self.num_inducing}")
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        return "/".join(parts)


Settings = PredictionTimeRun


def run(settings: PredictionTimeRun, data_dir: str | None) -> dict:
    """Fit once, then time predictions of the test rows by more and more of the draws."""
    import jax
    import jax.random as jr

    from bsgp.experiments.datasets.folds import split
    from bsgp.experiments.datasets.named import load_named
    from bsgp.methods.options import Options
    from bsgp.methods.registry import fit_method
    from bsgp.models.deep_gp import DeepGP
    from bsgp.models.likelihoods.gaussian_noise import gaussian

    cpu_began = time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold)
    options = Options(depth=settings.depth, num_inducing=settings.num_inducing, effort=settings.scale, num_chains=1)
    with jax.enable_x64(True):
        likelihood = gaussian(fold.y.shape[1], fold.X.dtype)
        fit_key, test_key, thin_key = jr.split(jr.key(settings.seed), 3)
        posterior, history, _ = fit_method(settings.method, fold.X, fold.y, likelihood, fit_key, options=options)
        cpu_done = time.process_time()
        total = posterior.num_chains * posterior.num_draws
        points = []
        for num_draws in (num for num in NUM_DRAWS if num < total):
            # `thin` also scores the rows that it is given, which is not used here: one row is enough
            thinned = posterior.thin(num_draws, fold.X_test[:1], fold.y_test[:1], jr.clone(thin_key))
            points.append(_timed(thinned.posterior, fold, test_key))
        points.append(_timed(posterior, fold, test_key))
    return {
        **asdict(settings),
        "num_inducing": posterior.model.layers[0].Z.shape[-2] if isinstance(posterior.model, DeepGP) else None,
        "num_train": len(fold.X),
        "num_test": len(fold.X_test),
        "evaluations": history.evaluations,
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "points": points,
        "interrupted": history.interrupted,
        "warnings": list(history.warnings),
    }


def _timed(posterior: Any, fold: Any, key: Any) -> dict:
    """Time the log density of the test rows: CPU seconds, the least of some calls after one that compiles."""
    import jax.random as jr

    from bsgp.posterior.metrics import mnll

    log_density = posterior.log_density(fold.X_test, fold.y_test, jr.clone(key))
    seconds = []
    for _ in range(NUM_REPEATS):
        began = time.process_time()
        posterior.log_density(fold.X_test, fold.y_test, jr.clone(key))
        seconds.append(time.process_time() - began)
    return {
        "num_draws": posterior.num_chains * posterior.num_draws,
        "prediction_seconds": round(min(seconds), 6),
        "test_mnll": mnll(log_density, fold.y_units.scale),
    }
