"""One run on a fold of a UCI regression set: fit, score, and a record that says all it came from."""

import time
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

NUM_RHAT_ROWS = 100
NUM_TRAIN_ROWS = 2_000
"""Train MNLL and R-hat need no more rows than this."""
MIN_RHAT_DRAWS = 8


@dataclass(frozen=True)
class UCIRun:
    """What is to be run. `num_inducing` overrides the method's own where it is given."""

    kind: ClassVar[str] = "uci"
    dataset: str
    fold: int
    depth: int = 1
    method: str = "bsgp"
    recipe: str = "default"
    seed: int = 0
    num_inducing: int | None = None
    scale: float = 1.0
    """Multiplies the number of updates of every phase; draws stay as many."""
    full_data_x: bool = False
    objective: str = "fitc"
    """Of bsgp and its ablations."""
    inducing_prior: str = "normal"
    """Of bsgp and its ablations."""
    num_chains: int = 1

    @property
    def key(self) -> str:
        """Its name in the results: two runs with one key are the same run."""
        parts = [self.method, self.recipe, self.dataset, f"depth{self.depth}", f"fold{self.fold}", f"seed{self.seed}"]
        if self.num_inducing is not None:
            parts.append(f"M{self.num_inducing}")
        if self.scale != 1.0:
            parts.append(f"x{self.scale:g}")
        if self.full_data_x:
            parts.append("fullx")
        if self.objective != "fitc":
            parts.append(self.objective)
        if self.inducing_prior != "normal":
            parts.append(self.inducing_prior)
        if self.num_chains != 1:
            parts.append(f"chains{self.num_chains}")
        return "/".join(parts)


Settings = UCIRun


def run(settings: UCIRun, data_dir: str | None, report=None) -> dict:
    """Fit and score; everything that is returned goes into the results as one JSON line."""
    import jax
    import jax.random as jr

    from bsgp.data.folds import split
    from bsgp.data.named import load_named
    from bsgp.evaluate import coverage, mnll, rmse
    from bsgp.fitting import Options, fit_method
    from bsgp.inducing import INDUCING_PRIORS
    from bsgp.likelihoods import Gaussian, gaussian
    from bsgp.model import DeepGP

    began, cpu_began = time.monotonic(), time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold, full_data_x=settings.full_data_x)
    options = Options(
        depth=settings.depth,
        num_inducing=settings.num_inducing,
        objective=settings.objective,
        inducing_prior=INDUCING_PRIORS[settings.inducing_prior],
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
        low, high = np.moveaxis(posterior.quantiles(fold.X_test, [0.05, 0.95], test_key), -1, 0)
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
        "plan": None if fitted.run is None else asdict(fitted.run.plan),
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
