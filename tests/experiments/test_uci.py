"""Runs on the UCI sets: the scores of a record follow from its posterior."""

import json

import jax.random as jr
import numpy as np
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import norm

from bsgp.experiments.datasets.folds import fold_rows
from bsgp.experiments.datasets.named import load_named
from bsgp.experiments.kinds.uci import UCIRun, run, settings_of


def test_the_record_of_a_short_run_follows_from_its_posterior(folder, fitted):
    settings = UCIRun("yacht", 3, num_inducing=5, scale=0.01, num_chains=2)
    record = {"key": settings.key, **json.loads(json.dumps(run(settings, str(folder))))}
    data, (fit,) = load_named("yacht", folder), fitted
    train, test = fold_rows(len(data.X), 3)
    X = (data.X[test] - data.X[train].mean(axis=0)) / data.X[train].std(axis=0)
    y_mean, y_sd = data.y[train].mean(), data.y[train].std()
    y = (data.y[test, 0] - y_mean) / y_sd
    # the mixture over all draws, written out; one layer draws nothing for a prediction, so any key gives the same
    draws = fit.posterior.predictive_draws(X, jr.key(9))
    mean, sd = (np.asarray(part).reshape(-1, len(X)) for part in (draws.mean, np.sqrt(draws.variance)))
    log_density = logsumexp(norm.logpdf(y, mean, sd), axis=0) - np.log(len(mean))
    below = norm.cdf(y, mean, sd).mean(axis=0)
    assert settings_of(record) == settings
    assert (record["num_train"], record["num_draws"], record["num_inducing"]) == (len(train), 256, 5)
    assert record["evaluations"] == 2 * fit.history.evaluations  # of both chains
    assert_allclose(record["test_mnll"], -np.mean(log_density) + np.log(y_sd))
    assert_allclose(record["test_nrmse"], np.sqrt(np.mean((mean.mean(axis=0) - y) ** 2)))
    assert_allclose(record["coverage90"], np.mean((below >= 0.05) & (below <= 0.95)))
    noise = np.asarray(fit.posterior.model.likelihood.noise_variance)
    assert_allclose(record["noise_variance"], np.exp(np.log(noise).mean()))
    assert 1 <= record["rhat_median"] <= record["rhat_max"]
