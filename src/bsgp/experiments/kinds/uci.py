"""A run on one fold of a UCI regression set: fit, score, and a record of the settings and results."""

import time
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np

from bsgp.experiments.experiment import read_fields
from bsgp.experiments.kinds.shared import INTERVAL, MIN_RHAT_DRAWS

NUM_RHAT_ROWS = 100
"""Test rows for R-hat."""
NUM_TRAIN_ROWS = 2_000
"""Training rows for the training MNLL."""


@dataclass(frozen=True)
class UCIRun:
    """Settings of a run on one fold of a UCI set."""

    kind: ClassVar[str] = "uci"
    dataset: str
    fold: int
    depth: int = 1
    method: str = "bsgp"
    recipe: str = "default"
    seed: int = 0
    num_inducing: int | None = None
    """Number of inducing points. None: the method's own."""
    scale: float = 1.0
    """Factor on the number of updates of every phase. The number of draws stays the same."""
    full_data_x: bool = False
    """Whether inputs are standardised by all rows, as the authors did, instead of by the training rows."""
    objective: str = "fitc"
    """`fitc`, `vfe` or `tighter-vfe`. Only `bsgp` and its ablations use it."""
    inducing_prior: str = "normal"
    """Prior on the inducing inputs. Only `bsgp` and its ablations use it."""
    num_chains: int = 1

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings beyond the recipe that differ from their defaults, one short label each."""
        labels = (
            (f"M{self.num_inducing}", self.num_inducing is not None),
            (f"x{self.scale:g}", self.scale != 1.0),
            ("fullx", self.full_data_x),
            (self.objective, self.objective != "fitc"),
            (self.inducing_prior, self.inducing_prior != "normal"),
            (f"chains{self.num_chains}", self.num_chains != 1),
        )
        return tuple(label for label, is_changed in labels if is_changed)

    @property
    def key(self) -> str:
        """Name of the run in the results. Two runs with the same key are the same run."""
        parts = self.method, self.recipe, self.dataset, f"depth{self.depth}", f"fold{self.fold}", f"seed{self.seed}"
        return "/".join([*parts, *self.overrides])


Settings = UCIRun


def settings_of(record: dict) -> UCIRun:
    """Settings of a recorded run, with `num_inducing` None if the method chose it."""
    used = read_fields(UCIRun, record)
    # a record holds the number of inducing points that was used, whoever chose it: only the key can tell
    unnamed = replace(used, num_inducing=None)
    return unnamed if unnamed.key == record["key"] else used


def run(settings: UCIRun, data_dir: str | None, report=None) -> dict:
    """Fit and score. The record becomes one JSON line of the results."""
    import jax
    import jax.random as jr

    from bsgp.experiments.datasets.folds import split
    from bsgp.experiments.datasets.named import load_named
    from bsgp.methods.options import Options
    from bsgp.methods.registry import fit_method
    from bsgp.models.deep_gp import DeepGP
    from bsgp.models.likelihoods.gaussian_noise import Gaussian, gaussian
    from bsgp.posterior.metrics import coverage, mnll, rmse

    began, cpu_began = time.monotonic(), time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold, full_data_x=settings.full_data_x)
    options = Options(
        depth=settings.depth,
        num_inducing=settings.num_inducing,
        objective=settings.objective,
        inducing_prior=settings.inducing_prior,
        recipe=settings.recipe,
        effort=settings.scale,
        num_chains=settings.num_chains,
    )
    with jax.enable_x64(True):
        likelihood = gaussian(fold.y.shape[1], fold.X.dtype)
        fit_key, test_key, train_key = jr.split(jr.key(settings.seed), 3)
        fitted = fit_method(settings.method, fold.X, fold.y, likelihood, fit_key, options=options, report=report)
        posterior, history = fitted.posterior, fitted.history
        done, cpu_done = time.monotonic(), time.process_time()
        low, high = np.moveaxis(posterior.quantiles(fold.X_test, INTERVAL, test_key), -1, 0)
        mean = np.asarray(posterior.predict(fold.X_test, jr.clone(test_key)).mean)
        log_density = posterior.log_density(fold.X_test, fold.y_test, jr.clone(test_key))
        train_log_density = posterior.log_density(fold.X[:NUM_TRAIN_ROWS], fold.y[:NUM_TRAIN_ROWS], train_key)
        rhat = None
        if posterior.num_draws >= MIN_RHAT_DRAWS:
            rhat = posterior.predictive_rhat(fold.X_test[:NUM_RHAT_ROWS], jr.clone(test_key))
        assert isinstance(posterior.model.likelihood, Gaussian)  # for the type checker
        noise = np.asarray(posterior.model.likelihood.noise_variance)
    return {
        **asdict(settings),
        "plan": None if fitted.run is None else fitted.run.plan.to_record(),
        "num_inducing": posterior.model.layers[0].Z.shape[-2] if isinstance(posterior.model, DeepGP) else None,
        "support": posterior.model.support,
        "num_train": len(fold.X),
        "num_draws": posterior.num_draws,
        "evaluations": settings.num_chains * history.evaluations,
        "seconds": round(done - began, 2),
        "cpu_seconds": round(cpu_done - cpu_began, 2),
        "prediction_cpu_seconds": round(time.process_time() - cpu_done, 2),
        "test_mnll": mnll(log_density, fold.y_units.scale),
        "train_mnll": mnll(train_log_density, fold.y_units.scale),
        "test_nrmse": rmse(fold.y_test, mean),
        "coverage90": coverage(fold.y_test, low, high),
        "rhat_median": None if rhat is None else float(np.median(rhat)),
        "rhat_max": None if rhat is None else float(np.max(rhat)),
        "noise_variance": float(np.exp(np.mean(np.log(noise)))),
        "step_size": history.step_size,
        "interrupted": history.interrupted,
        "warnings": list(history.warnings),
    }
