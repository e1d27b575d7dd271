"""Chains in processes of their own."""

import jax
import jax.random as jr
import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from numpy.testing import assert_array_equal
from problems import regression, tiny_target

import bsgp.methods.mcmc_svgp
import bsgp.methods.parallel_chains
from bsgp import BSGPClassifier, BSGPRegressor, Options
from bsgp.data.store.sources import ArraySource
from bsgp.inference.events import Dropped, StillMoving
from bsgp.inference.history import History
from bsgp.inference.nuts import NutsDraws
from bsgp.methods.parallel_chains import _ChainResult, _ChainTask, _fit_one, _joined, fit_chains_in_parallel
from bsgp.methods.registry import fit_method
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.runtime.errors import DivergenceError

SETTINGS = {"num_inducing": 5, "num_chains": 2, "effort": 0.01, "random_state": 0}
LOST = Dropped(0, "draws", 7, "became non-finite in the energy")


@pytest.fixture
def fits(monkeypatch):
    """Every fit of a chain in this process: its key, the key of its target, and its result."""
    made = []

    def keeps(*arguments, **options):
        fitted = fit_method(*arguments, **options)
        made.append((arguments[-1], options["target_key"], fitted))
        return fitted

    monkeypatch.setattr(bsgp.methods.parallel_chains, "fit_method", keeps)
    with joblib.parallel_config(backend="threading"):
        yield made


def two_chains(method="bsgp"):
    X, y = regression(40, 2)
    options = Options(num_inducing=5, num_chains=2, effort=0.005)
    return fit_chains_in_parallel(method, ArraySource(X, y), gaussian(1, X.dtype), jr.key(0), options=options, n_jobs=2)


def assert_same_draws(one, other):
    for a, b in zip(jax.tree.leaves(one.posterior.model), jax.tree.leaves(other.posterior.model), strict=True):
        assert_array_equal(a, b)


def test_the_result_holds_the_chains_as_they_were_fitted(fits):
    joined = two_chains()
    (first_key, first_target, first), (second_key, second_target, second) = fits
    assert_array_equal(jr.key_data(first_target), jr.key_data(second_target))
    assert not np.array_equal(jr.key_data(first_key), jr.key_data(second_key))
    if not np.array_equal(first.posterior.model.layers[0].V[0], joined.posterior.model.layers[0].V[0]):
        first, second = second, first  # the order in which threads came to an end
    for chain, fitted in enumerate((first, second)):
        for a, b in zip(jax.tree.leaves(joined.posterior.model), jax.tree.leaves(fitted.posterior.model), strict=True):
            assert_array_equal(a[chain], b[0])
        for phase, energy in fitted.history.energy.items():
            assert_array_equal(joined.history.energy[phase][chain], energy[0])
    assert set(joined.history.energy) == {"warm start", "burn-in", "draws"}
    assert joined.history.evaluations == first.history.evaluations


def test_chains_in_processes_of_their_own_are_those_in_this_one(fits, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # as in this process, for the same last bits
    get_reusable_executor().shutdown()  # processes of earlier tests do not have it
    with joblib.parallel_config(backend="loky"):
        apart = two_chains()
    assert not fits
    assert apart.posterior.model.layers[0].V.dtype == np.float64
    assert_same_draws(apart, two_chains())


def history(num_updates: int, chain: int) -> History:
    energy = {"draws": np.ones((1, num_updates))}
    events = (StillMoving(chain, -5.0),)
    return History(energy, 10 * num_updates, 1.0, events=events, temperature={"Z": np.ones(1)})


def repeated(model, num_draws: int):
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (1, num_draws, *leaf.shape)), model)


def test_a_lost_chain_is_left_out_and_the_others_are_cut_to_one_length():
    model = tiny_target()[0].model
    lost = _ChainResult(failure=LOST.of_chain(1))
    joined = _joined(
        [_ChainResult(repeated(model, 5), history(50, 0)), lost, _ChainResult(repeated(model, 4), history(40, 2))]
    )
    assert (joined.posterior.num_chains, joined.posterior.num_draws) == (2, 4)
    assert joined.history.energy["draws"].shape == (2, 40)
    assert joined.history.evaluations == 500
    assert joined.history.events == (LOST.of_chain(1), StillMoving(0, -5.0), StillMoving(2, -5.0))
    with pytest.raises(DivergenceError, match="Chain 1"):
        _joined([lost])


def test_a_chain_says_its_own_number(monkeypatch):
    def diverges(*_, **__):
        raise DivergenceError(LOST.as_error, LOST)

    monkeypatch.setattr(bsgp.methods.parallel_chains, "fit_method", diverges)
    X, y = regression(40, 2)
    with joblib.parallel_config(backend="threading"), pytest.raises(DivergenceError, match="Chain 0 became"):
        BSGPRegressor(n_jobs=2, **SETTINGS).fit(X, y[:, 0])
    key = np.asarray(jr.key_data(jr.key(0)))
    task = _ChainTask(3, "bsgp", ArraySource(X, y), None, key, key, Options(), "float64")
    assert _fit_one(task).failure == LOST.of_chain(3)


@pytest.mark.slow
def test_parallel_chains_sample_one_posterior(fits):
    """With classes of many rows, the prior on Z is centred on the start, so all chains must have the same start."""
    X, y = regression(5_001, 2)
    settings = {**SETTINGS, "effort": 0.001}
    BSGPClassifier(n_jobs=1, **settings).fit(X, y[:, 0] > 0)  # all chains together, in this process
    assert not fits
    model = BSGPClassifier(n_jobs=2, **settings).fit(X, y[:, 0] > 0)
    first, second = (fitted.run.target.priors.layers[0].Z.centres for *_, fitted in fits)
    assert_array_equal(first, second)
    assert model.diagnostics_.num_chains == model.posterior_.num_chains == 2
    draws = jax.tree.leaves(model.posterior_.model)[0]
    assert not np.array_equal(draws[0], draws[1])


def test_parallel_chains_of_mcmc_svgp_have_one_Z(monkeypatch):
    def draw_the_start(log_density, starts, *_, **__):
        return NutsDraws(jax.tree.map(lambda x: x[:, None], starts), History({"draws": np.zeros((1, 1))}, 1, 0.0))

    monkeypatch.setattr(bsgp.methods.mcmc_svgp, "sample_nuts", draw_the_start)  # Z is optimised before NUTS
    with joblib.parallel_config(backend="threading"):
        model = two_chains("mcmc-svgp").posterior.model
    Z = np.asarray(model.layers[0].Z)
    assert_array_equal(Z[0], Z[1])
    assert not np.array_equal(model.layers[0].V[0], model.layers[0].V[1])


@pytest.mark.parametrize("other", [{"mesh": "2x1"}, {"warm_start": True}, {"checkpoint": "somewhere"}])
def test_options_that_keep_chains_together_are_refused(other):
    X, y = regression(40, 2)
    with pytest.raises(ValueError, match="on its own"):
        BSGPRegressor(n_jobs=2, **SETTINGS, **other).fit(X, y[:, 0])
