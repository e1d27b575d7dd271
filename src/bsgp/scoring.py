"""How good a fitted model is on rows with known targets, beside its baselines: one dictionary of numbers each."""

import numpy as np

from bsgp.baselines import ClassBaseline, GaussianBaseline
from bsgp.data.tables import Table
from bsgp.estimators import BSGPClassifier, BSGPRegressor
from bsgp.evaluate import coverage, error_rate, gaussian_crps, mean_auc, mnll, rmse

Scores = dict[str, float]
INTERVAL = (0.05, 0.95)


def score(model: BSGPRegressor | BSGPClassifier, X: Table, y: np.ndarray) -> Scores:
    """`mnll, nrmse, rmse, crps, coverage90` of a regression, averaged over targets, or `mnll, error, auc`."""
    if isinstance(model, BSGPClassifier):
        return _class_scores(model.codes(y), model.predict_proba(X), model.log_density(X, y))
    y = np.asarray(y, np.float64).reshape(X.num_rows, -1)
    mean = np.reshape(model.predict(X), y.shape)
    log_density = np.reshape(model.log_density(X, y), y.shape)
    quantiles = np.reshape(model.predict_quantiles(X, INTERVAL), (*y.shape, 2))
    crps = np.reshape(model.crps(X, y), y.shape)
    return _regression_scores(y, mean, log_density, crps, quantiles, model.target_scale)


def baseline_scores(model: BSGPRegressor | BSGPClassifier, X: Table, y: np.ndarray) -> dict[str, Scores]:
    """The same of the baselines that were fitted beside the model."""
    inputs = model.encode(X)
    return {name: _baseline_score(model, one, inputs, y) for name, one in model.baselines_.items()}


def _baseline_score(model, baseline: GaussianBaseline | ClassBaseline, inputs: np.ndarray, y: np.ndarray) -> Scores:
    if isinstance(baseline, ClassBaseline):
        codes, probability = model.codes(y), baseline.probability(inputs)
        log_density = np.log(probability[np.arange(len(codes)), codes])
        return _class_scores(codes, probability, log_density)
    from scipy.stats import norm

    y = np.asarray(y, np.float64).reshape(inputs.shape[0], -1)
    mean = baseline.mean(inputs)
    quantiles = mean[..., None] + baseline.sd[:, None] * norm.ppf(INTERVAL)
    log_density = norm.logpdf(y, mean, baseline.sd)
    crps = gaussian_crps(y, mean, baseline.sd)
    return _regression_scores(y, mean, log_density, crps, quantiles, model.target_scale)


def _regression_scores(y, mean, log_density, crps, quantiles, scale) -> Scores:
    return {
        "mnll": mnll(log_density),
        "nrmse": rmse(y / scale, mean / scale),
        "rmse": rmse(y, mean),
        "crps": float(np.mean(crps)),
        "coverage90": coverage(y, quantiles[..., 0], quantiles[..., 1]),
    }


def _class_scores(codes: np.ndarray, probability: np.ndarray, log_density: np.ndarray) -> Scores:
    return {
        "mnll": float(-np.mean(log_density)),
        "error": error_rate(codes[:, None], probability),
        "auc": mean_auc(codes, probability),
    }
