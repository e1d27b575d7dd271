"""Chains in processes of their own."""

import jax
import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import bsgp.apart
from bsgp import BSGPClassifier, BSGPRegressor, Options
from bsgp.apart import _Chain, _joined
from bsgp.data.sources import ArraySource
from bsgp.fitting import fit_method
from bsgp.health import DivergenceError
from bsgp.history import History
from problems import regression, tiny_target

SETTINGS = {"num_inducing": 5, "num_chains": 2, "effort": 0.01, "random_state": 0}


def test_two_chains_in_two_processes():
    X, y = regression(40, 2)
    first, again = (BSGPRegressor(n_jobs=2, **SETTINGS).fit(X, y[:, 0]) for _ in range(2))
    assert first.diagnostics_.num_chains == 2
    assert first.posterior_.num_chains == 2
    draws = jax.tree.leaves(first.posterior_.model)
    assert draws[0].dtype == np.float64
    assert not np.array_equal(draws[0][0], draws[0][1])
    for a, b in zip(draws, jax.tree.leaves(again.posterior_.model), strict=True):
        assert_array_equal(a, b)
    assert set(first.energy_) == {"warm start", "burn-in", "draws"}
    assert all(energy.shape[0] == 2 for energy in first.energy_.values())
    alone = BSGPRegressor(**SETTINGS).fit(X, y[:, 0]).predict(X)
    # so short are the chains that those of two seeds in one process differ by up to 0.33
    assert np.abs(first.predict(X) - alone).mean() < 0.5 * y.std()


def history(num_updates: int, warning: str) -> History:
    energy = {"draws": np.ones((1, num_updates))}
    return History(energy, 10 * num_updates, 1.0, temperature={"Z": np.ones(1)}, warnings=(warning,), step_size=0.1)


def repeated(model, num_draws: int):
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (1, num_draws, *leaf.shape)), model)


def test_a_chain_that_is_lost_is_left_out_and_others_are_cut_to_one_length():
    model = tiny_target()[0].model
    lost = _Chain(None, None, "Chain 1 became non-finite.")
    done = [
        _Chain(repeated(model, 5), history(50, "Chain 0 still moves.")),
        lost,
        _Chain(repeated(model, 4), history(40, "Chain 2 still moves.")),
    ]
    joined = _joined(done)
    assert (joined.posterior.num_chains, joined.posterior.num_draws) == (2, 4)
    assert joined.history.energy["draws"].shape == (2, 40)
    assert joined.history.evaluations == 500
    assert joined.history.warnings[0] == "Chain 1 became non-finite. It was left out."
    assert joined.history.warnings[1:] == ("Chain 0 still moves.", "Chain 2 still moves.")
    with pytest.raises(DivergenceError, match="Chain 1"):
        _joined([lost])


def test_a_chain_says_its_own_number(monkeypatch):
    def diverges(*_, **__):
        raise DivergenceError("Chain 0 became non-finite.")

    monkeypatch.setattr(bsgp.apart, "fit_method", diverges)
    X, y = regression(40, 2)
    with joblib.parallel_config(backend="threading"), pytest.raises(DivergenceError, match="Chain 0 became"):
        BSGPRegressor(n_jobs=2, **SETTINGS).fit(X, y[:, 0])
    key = np.asarray(jax.random.key_data(jax.random.key(0)))
    task = bsgp.apart._Task(3, "bsgp", ArraySource(X, y), None, key, key, Options(), "float64")
    assert bsgp.apart._fit_one(task).fault == "Chain 3 became non-finite."


def test_chains_apart_are_of_one_posterior(monkeypatch):
    """The prior on Z of many rows of classes is around the start, so that it must be the same start."""
    targets = []

    def keeps_target(*arguments, **options):
        fitted = fit_method(*arguments, **options)
        targets.append(fitted.run.target)
        return fitted

    monkeypatch.setattr(bsgp.apart, "fit_method", keeps_target)
    X, y = regression(5_001, 2)
    settings = {**SETTINGS, "effort": 0.001}
    with joblib.parallel_config(backend="threading"):
        BSGPClassifier(n_jobs=1, **settings).fit(X, y[:, 0] > 0)  # in this process, all together
        assert not targets
        model = BSGPClassifier(n_jobs=2, **settings).fit(X, y[:, 0] > 0)
    first, second = (target.priors.layers[0].Z.centres for target in targets)
    assert_array_equal(first, second)
    draws = jax.tree.leaves(model.posterior_.model)[0]
    assert not np.array_equal(draws[0], draws[1])


def test_chains_of_mcmc_svgp_apart_have_one_Z():
    X, y = regression(40, 2)
    settings = {**SETTINGS, "method": "mcmc-svgp", "effort": 0.05}
    with joblib.parallel_config(backend="threading"):
        model = BSGPRegressor(n_jobs=2, **settings).fit(X, y[:, 0])
    Z = np.asarray(model.posterior_.model.layers[0].Z)
    assert_array_equal(Z[0], Z[1])


@pytest.mark.parametrize("other", [{"mesh": "2x1"}, {"warm_start": True}, {"checkpoint": "somewhere"}])
def test_what_keeps_chains_together_is_refused(other):
    X, y = regression(40, 2)
    with pytest.raises(ValueError, match="on its own"):
        BSGPRegressor(n_jobs=2, **SETTINGS, **other).fit(X, y[:, 0])
