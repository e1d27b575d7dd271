"""The grade: one rule, the same words everywhere, and chains that disagree are seen."""

import warnings
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import regression, tiny_target
from sklearn.exceptions import ConvergenceWarning

import bsgp
from bsgp import Plan, Posterior, sample
from bsgp.cli.fit_options import as_flag
from bsgp.data.store.sources import Rows
from bsgp.estimators.convergence import agreement, diagnose, energy_trace
from bsgp.estimators.diagnostics import Diagnostics, Grade
from bsgp.estimators.probes import choose_probes, probed_draws
from bsgp.inference.events import Dropped, Hot
from bsgp.inference.history import History
from bsgp.models.deep_gp import init_deep_gp
from bsgp.models.likelihoods.classes import Categorical
from bsgp.models.likelihoods.gaussian_noise import gaussian

CONVERGED = Diagnostics(
    evaluations=100, seconds=1.0, interrupted=False, num_chains=4, num_draws=256, rhat_median=1.005, rhat=1.02,
    ess=500.0, tail_ess=450.0, movement=0.05, temperature={"V": 1.0},
)  # fmt: skip


def test_the_grade_asks_for_everything_at_once():
    assert CONVERGED.grade is Grade.CONVERGED
    assert CONVERGED.is_settled
    for change in (
        {"rhat_median": 1.02}, {"rhat": 1.06}, {"ess": 390.0}, {"tail_ess": 390.0}, {"num_chains": 3},
        {"warnings": ("Chain 0 runs hot.",)}, {"num_dropped": 1}, {"interrupted": True},
    ):  # fmt: skip
        assert replace(CONVERGED, **change).grade is Grade.USABLE, change
    for change in (
        {"rhat_median": 1.06}, {"rhat": 1.11}, {"ess": 90.0}, {"tail_ess": 90.0}, {"num_chains": 1},
        {"temperature": {"V": 9.0}}, {"rhat": float("nan")}, {"ess": float("nan")},
    ):  # fmt: skip
        bad = replace(CONVERGED, **change)
        assert bad.grade is Grade.NOT_CONVERGED, change
        assert not bad.is_settled
        assert bad.verdict.startswith("Not converged: ")


def test_the_verdict_names_settings_as_they_are_spelled_where_it_is_read():
    bad = replace(CONVERGED, num_chains=1, ess=100.0)
    assert "Set `num_chains` to 4. Raise `effort` 4-fold." in bad.verdict
    assert "Set `--chains` to 4. Raise `--effort` 4-fold." in bad.verdict_for(as_flag)
    stopped = replace(CONVERGED, interrupted=True)
    assert "Raise `--max-seconds`" in stopped.verdict_for(as_flag)


def test_a_usable_fit_says_what_is_uncertain_by_how_much():
    verdict = replace(CONVERGED, ess=200.0, movement=0.12).verdict
    assert verdict.startswith(
        "Usable, but not converged: a prediction rests on 200 effective draws, where 400 are wanted"
    )
    assert "nine predictions in ten by less than 12% of their sd" in verdict


def test_an_optimum_is_not_sampled():
    optimum = replace(CONVERGED, move=0.001, num_chains=1)
    assert (optimum.grade, optimum.is_settled) == (Grade.NOT_SAMPLED, True)
    moving = replace(optimum, move=0.2)
    assert (moving.grade, moving.is_settled) == (Grade.NOT_SAMPLED, False)
    assert "not finished" in moving.verdict


def test_diagnostics_survive_json():
    for one in (CONVERGED, replace(CONVERGED, rhat=float("nan"), warnings=("hot",))):
        again = Diagnostics.from_json(one.to_json())
        assert again.to_json() == one.to_json()
        assert again.grade is one.grade


def test_agreement_is_that_of_vehtari_et_al(rng):
    """Independent draws agree; a chain that is elsewhere shows in R-hat, a sticky one in the effective draws."""
    good = rng.standard_normal((4, 250, 3))
    found = agreement(good)
    assert found.rhat.max() < 1.01
    assert min(found.bulk.min(), found.tail.min()) > 700
    shifted = good + np.asarray([0.0, 0.0, 0.0, 2.0])[:, None, None]
    assert agreement(shifted).rhat.min() > 1.2
    sticky = np.repeat(good[:, :25], 10, axis=1)
    assert agreement(sticky).bulk.max() < 200
    stuck = agreement(np.arange(4.0)[:, None, None] * np.ones((4, 250, 1)))  # each chain in a place of its own
    assert stuck.rhat.item() > 100
    constant = agreement(np.ones((4, 250, 1)))
    assert (constant.rhat.item(), constant.bulk.item()) == (1.0, 1000)


def test_a_fifth_of_the_probes_are_at_the_edge(rng):
    rows = Rows(rng.standard_normal((500, 3)), rng.standard_normal((500, 1)))
    probes = choose_probes(rows, seed=0)
    norms = np.linalg.norm(rows.X, axis=1)
    edge = np.sort(norms)[-20]
    assert probes.X.shape == (100, 3)
    assert (np.linalg.norm(probes.X, axis=1) >= edge).sum() == 20
    assert len(np.unique(probes.X, axis=0)) == 100


def draws_around(lengthscales: list[float], num_draws: int = 64) -> tuple[Posterior, Rows]:
    """Chains of draws, one for each lengthscale, whose u are independent draws given the data."""
    X, y = regression(40, 1, noise=0.3)
    rows, rng = Rows(X, y), np.random.default_rng(0)
    start = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=10)
    shape = (len(lengthscales), num_draws)
    model = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*shape, *leaf.shape)), start)
    scales = np.exp(0.02 * rng.standard_normal((*shape, 1))) * np.asarray(lengthscales)[:, None, None]
    V = 0.5 * rng.standard_normal(model.layers[0].V.shape)
    model = eqx.tree_at(
        lambda m: (m.layers[0].kernel.lengthscales, m.layers[0].V), model, (jnp.asarray(scales), jnp.asarray(V))
    )
    return Posterior(model), rows


def history(**fields) -> History:
    return History(energy={"draws": np.zeros((2, 10))}, evaluations=10, seconds=1.0, **fields)


def test_draws_of_u_do_not_hide_chains_that_disagree(getkey):
    posterior, rows = draws_around([0.5, 0.5, 2.0, 2.0])
    probes = choose_probes(rows, seed=0)
    as_drawn = agreement(np.asarray(posterior.predictive_draws(probes.X, getkey()).mean)).rhat
    integrated = agreement(probed_draws(posterior, probes, getkey()).mean).rhat
    assert np.quantile(as_drawn, 0.95) < 1.1
    assert np.median(integrated) > 1.5
    assert diagnose(posterior, history(), probes, getkey()).grade is Grade.NOT_CONVERGED
    agreeing, rows = draws_around([1.0, 1.0, 1.0, 1.0], num_draws=128)
    found = diagnose(agreeing, history(), choose_probes(rows, seed=0), getkey())
    assert found.rhat < 1.05
    assert found.grade is not Grade.NOT_CONVERGED


def test_with_u_integrated_out_predictions_are_those_of_the_closed_form(getkey):
    """With an inducing point at every row they are the exact GP's."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X, y = regression(30, 1, noise=0.3)
    model = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=30)
    model = eqx.tree_at(lambda m: m.layers[0].Z, model, jnp.asarray(X))
    draws = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (1, 2, *leaf.shape)), model)
    draws = eqx.tree_at(lambda m: m.likelihood.noise_variance, draws, jnp.asarray([[[0.1], [0.2]]]))
    probes = choose_probes(Rows(X, y), seed=0, num_probes=10)
    found = probed_draws(Posterior(draws), probes, getkey())
    kernel = model.layers[0].kernel
    assert isinstance(kernel, bsgp.kernels.RBF)
    for draw, variance in enumerate((0.1, 0.2)):
        exact = GaussianProcessRegressor(
            ConstantKernel(float(kernel.variance)) * RBF(np.asarray(kernel.lengthscales)),
            alpha=variance,
            optimizer=None,
        ).fit(X, y[:, 0])
        mean, sd = exact.predict(probes.X, return_std=True)
        assert_allclose(found.mean[0, draw, :, 0], mean, atol=1e-4)
        assert_allclose(found.variance[0, draw, :, 0], sd**2 + variance, atol=1e-4)


def test_classes_without_probability_do_not_count(getkey, monkeypatch):
    """Chains agree about five of seven classes, and differ about the others, which hardly ever occur."""
    X = np.random.default_rng(0).standard_normal((30, 1))
    start = init_deep_gp(X, Categorical(7), jr.key(0), num_inducing=5, jitter=1e-3)
    model = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, 32, *leaf.shape)), start)
    V = np.random.default_rng(1).standard_normal(model.layers[0].V.shape)
    V[..., 5:] = -40.0 + np.arange(4)[:, None, None, None]
    model = eqx.tree_at(lambda m: (m.layers[0].V, m.layers[0].Z), model, (jnp.asarray(V), 4 * model.layers[0].Z))
    posterior, probes = Posterior(model), choose_probes(Rows(X, np.zeros((30, 1))), seed=0)
    assert diagnose(posterior, history(), probes, getkey()).rhat < 1.1
    monkeypatch.setattr(bsgp.estimators.convergence, "MAX_CLASSES", 7)
    assert diagnose(posterior, history(), probes, getkey()).rhat > 1.5


def test_hidden_layers_share_their_random_numbers(getkey):
    """Two equal draws of two layers predict the same, so that only real differences are left."""
    X, y = regression(30, 2)
    model = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=6, depth=2)
    draws = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, 3, *leaf.shape)), model)
    found = probed_draws(Posterior(draws), choose_probes(Rows(X, y), seed=0), getkey())
    assert np.ptp(found.mean, axis=(0, 1)).max() == 0


def test_what_happened_to_the_chains_counts(getkey):
    posterior, rows = draws_around([1.0] * 4)
    probes = choose_probes(rows, seed=0)
    events = (Dropped(4, "draws", 3, "became non-finite in layers.0.Z"), Hot(1, "layers.0.Z", 1.3))
    found = diagnose(posterior, history(events=events, temperature={"layers.0.Z": np.full(4, 1.3)}), probes, getkey())
    assert found.num_dropped == 1
    assert len(found.warnings) == 2
    assert "1 of 5 chains failed" in found.reservations
    assert found.grade is not Grade.CONVERGED


def test_a_run_is_summarised():
    target, X, y = tiny_target()
    run = sample(target, X, y, jr.key(0), plan=Plan(adam_steps=100, burn_in=200, num_draws=64, thinning=2))
    found = diagnose(Posterior.from_run(run), run.history, choose_probes(Rows(X, y), 0), jr.key(1))
    assert (found.num_chains, found.num_draws) == (1, 64)
    assert found.grade is Grade.NOT_CONVERGED  # one chain cannot show whether chains agree
    assert 0 < found.movement < 1
    assert 1 <= found.ess <= 200
    trace = energy_trace(run.history)
    assert list(trace) == ["warm start", "burn-in", "draws"]
    assert_allclose(trace["warm start"].mean(), run.history.energy["warm start"].mean())
    assert np.isfinite(trace["draws"]).all()


def test_fit_has_four_chains_and_warns_if_they_have_not_converged(default_num_chains):
    X, y = regression(30, 1)
    model = bsgp.BSGPRegressor(effort=0.01, num_inducing=5, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Not converged: .* Raise `effort`"):
        model.fit(X, y[:, 0])
    assert model.posterior_.num_chains == default_num_chains == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bsgp.BSGPRegressor(method="svgp", effort=0.5, num_inducing=5, random_state=0).fit(X, y[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("effort", [0.3, 1.0])
def test_another_run_moves_predictions_no_farther_than_stated(effort, default_num_chains):
    """Over pairs of fits that differ in their seed only, nine rows in ten stay within the stated movement."""
    X, y = regression(150, 2, noise=0.3)
    new = np.random.default_rng(1).uniform(X.min(axis=0), X.max(axis=0), (200, 2))
    models = [bsgp.BSGPRegressor(num_inducing=20, effort=effort, random_state=s).fit(X, y[:, 0]) for s in range(6)]
    found = [model.predict(new, return_std=True) for model in models]
    within = [
        np.abs(mean - other_mean) <= model.diagnostics_.movement * sd
        for model, (mean, sd) in zip(models, found, strict=True)
        for other_mean, _ in found
        if other_mean is not mean
    ]
    assert np.mean(within) >= 0.9
    assert np.mean(within) < 1.0 or max(model.diagnostics_.movement for model in models) < 0.2  # nor is it idle
