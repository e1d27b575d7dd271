"""One run on a fold of a UCI regression set: fit, score, and a record that says all it came from."""

import time
from dataclasses import asdict, dataclass

import numpy as np

NUM_RHAT_ROWS = 100
NUM_TRAIN_ROWS = 2_000
"""Train MNLL and R-hat need no more rows than this."""


@dataclass(frozen=True)
class UCIRun:
    """What is to be run. `num_inducing` overrides the recipe's where it is given."""

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
        return "/".join(parts)


def run(settings: UCIRun, data_dir: str | None, report=None) -> dict:
    """Fit and score; everything that is returned goes into the results as one JSON line."""
    import jax
    import jax.random as jr

    from bsgp.data.folds import split
    from bsgp.data.named import load_named
    from bsgp.evaluate import coverage, mnll, rmse
    from bsgp.likelihoods import Gaussian, gaussian
    from bsgp.recipes import fit, named_recipe, scaled

    began, cpu_began = time.monotonic(), time.process_time()
    data = load_named(settings.dataset, data_dir)
    fold = split(data.X, data.y, settings.fold, full_data_x=settings.full_data_x)
    with jax.enable_x64(True):
        num_targets = fold.y.shape[1]
        likelihood = gaussian(num_targets, fold.X.dtype)
        recipe = named_recipe(settings.recipe, fold.X, fold.y, likelihood, settings.depth)
        recipe = scaled(recipe, settings.num_inducing, settings.scale)
        fit_key, test_key, train_key = jr.split(jr.key(settings.seed), 3)
        posterior, chain = fit(fold.X, fold.y, likelihood, fit_key, recipe=recipe, depth=settings.depth, report=report)
        fitted, cpu_fitted = time.monotonic(), time.process_time()
        low, high = np.moveaxis(posterior.quantiles(fold.X_test, [0.05, 0.95], test_key), -1, 0)
        mean = np.asarray(posterior.predict(fold.X_test, jr.clone(test_key)).mean)
        log_density = posterior.log_density(fold.X_test, fold.y_test, jr.clone(test_key))
        train_log_density = posterior.log_density(fold.X[:NUM_TRAIN_ROWS], fold.y[:NUM_TRAIN_ROWS], train_key)
        rhat = posterior.predictive_rhat(fold.X_test[:NUM_RHAT_ROWS], jr.clone(test_key))
        assert isinstance(posterior.model.likelihood, Gaussian)  # for the type checker
        noise = np.asarray(posterior.model.likelihood.noise_variance)
    return {
        **asdict(settings),
        "key": settings.key,
        "plan": asdict(recipe.plan),
        "num_inducing": recipe.num_inducing,
        "num_train": len(fold.X),
        "evaluations": chain.evaluations,
        "seconds": round(fitted - began, 2),
        "cpu_seconds": round(cpu_fitted - cpu_began, 2),
        "prediction_cpu_seconds": round(time.process_time() - cpu_fitted, 2),
        "test_mnll": mnll(log_density, fold.y_units.scale),
        "train_mnll": mnll(train_log_density, fold.y_units.scale),
        "test_nrmse": rmse(fold.y_test, mean),
        "coverage90": coverage(fold.y_test, low, high),
        "rhat_median": float(np.median(rhat)),
        "rhat_max": float(np.max(rhat)),
        "noise_variance": float(np.exp(np.mean(np.log(noise)))),
        "step_size": float(np.max(chain.trace.step_size[-1])) if chain.trace.step_size else None,
        "warnings": list(chain.warnings),
    }
