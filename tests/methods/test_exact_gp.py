"""The exact GP as a reference, and mcmc-gp against a grid."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import regression

from bsgp.data.store.sources import ArraySource
from bsgp.inference.exact_target import ExactTarget, exact_target
from bsgp.inference.history import silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.nuts import NutsPlan, sample_nuts
from bsgp.methods.exact_gp import fit_exact_gp, fit_mcmc_gp
from bsgp.models.exact_gp import ExactGP
from bsgp.models.kernels import RBF
from bsgp.models.likelihoods.classes import Bernoulli
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.posterior.posterior import Posterior


def problem(num_targets=1):
    X, y = regression(25)
    y = np.concatenate([y, -0.5 * y**2][:num_targets], axis=1)
    kernel = RBF(jnp.asarray(0.8), jnp.asarray([0.6]))
    return ExactGP(kernel, Gaussian(jnp.asarray([0.2, 0.4][:num_targets])), jnp.asarray(X), jnp.asarray(y))


def test_marginal_likelihood_and_prediction_are_those_of_scikit_learn():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF as SkRBF
    from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

    model = problem(2)
    X_new = np.linspace(-3, 3, 12)[:, None]
    found = Posterior.from_single(model).predict(X_new, jr.key(0))
    total = 0.0
    for p, noise in enumerate((0.2, 0.4)):
        kernel = ConstantKernel(0.8) * SkRBF(0.6) + WhiteKernel(noise)
        reference = GaussianProcessRegressor(kernel, optimizer=None).fit(model.X, np.asarray(model.y[:, p]))
        mean, sd = reference.predict(X_new, return_std=True)
        np.testing.assert_allclose(found.mean[:, p], mean, atol=1e-5)
        np.testing.assert_allclose(found.variance[:, p], sd**2, rtol=1e-5)
        total += reference.log_marginal_likelihood_value_
    assert float(model.log_marginal_likelihood()) == pytest.approx(total, abs=1e-4)


def test_a_row_of_weight_w_is_w_rows_each_with_its_known_noise():
    model, rng = problem(2), np.random.default_rng(0)
    weight, known = rng.integers(1, 4, 25), rng.uniform(0.05, 0.6, (25, 2))
    copies = np.repeat(np.arange(25), weight)
    weighted = ExactGP(model.kernel, model.likelihood, model.X, model.y, jnp.asarray(weight, float), jnp.asarray(known))
    repeated = ExactGP(
        model.kernel, model.likelihood, model.X[copies], model.y[copies], None, jnp.asarray(known[copies])
    )
    X_new = np.linspace(-3, 3, 12)[:, None]
    found, expected = (Posterior.from_single(one).predict(X_new, jr.key(0)) for one in (weighted, repeated))
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-6)
    got, want = (
        jax.value_and_grad(_evidence_given_noise)(model.likelihood.noise_variance, one) for one in (weighted, repeated)
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


def _evidence_given_noise(noise_variance, model):
    return eqx.tree_at(lambda m: m.likelihood.noise_variance, model, noise_variance).log_marginal_likelihood()


@pytest.mark.slow
def test_the_exact_gp_learns_less_noise_where_some_of_it_is_known():
    X, y = regression(25, noise=0.5)
    source = ArraySource(X, y, np.full(25, 2.0), np.full((25, 1), 0.3))
    plain, known = (
        fit_exact_gp(*given, Gaussian(jnp.ones(1)), jr.key(0), num_steps=60) for given in ((X, y), (source, None))
    )
    noises = [float(one.posterior.model.likelihood.noise_variance[0, 0, 0]) for one in (plain, known)]
    assert noises[1] < 0.5 * noises[0]
    assert known.posterior.model.known_variance.shape == (1, 1, 25, 1)


def test_functions_drawn_jointly_have_the_moments_of_the_predictions():
    model = problem()
    X_new = jnp.asarray([[-1.0], [0.1], [0.2], [4.0]])
    f = model.propagate(X_new, jr.key(0))
    drawn = np.asarray(jax.vmap(lambda key: model.sample_function(X_new, key))(jr.split(jr.key(1), 4_000)))[:, :, 0]
    np.testing.assert_allclose(drawn.mean(axis=0), f.mean[:, 0], atol=0.05)
    np.testing.assert_allclose(drawn.var(axis=0), f.variance[:, 0], rtol=0.1)
    assert np.corrcoef(drawn[:, 1], drawn[:, 2])[0, 1] > 0.9


def test_optimised_hyperparameters_have_no_slope():
    X, y = regression(40, noise=0.5)
    fitted = fit_exact_gp(X, y, Gaussian(jnp.ones(1)), jr.key(0), num_steps=400)
    model = jax.tree.map(lambda x: x[0, 0], fitted.posterior.model)
    target = ExactTarget(model)
    slope = eqx.filter_grad(lambda at: target.constrain(at).log_marginal_likelihood())(target.start())
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) < 0.05
    start = exact_target(X, y, Gaussian(jnp.ones(1))).model
    assert float(model.log_marginal_likelihood()) > float(start.log_marginal_likelihood()) + 1.0


def test_mcmc_gp_against_a_fine_grid_over_one_lengthscale():
    """All but the lengthscale is held: its density on a grid gives mean and sd that NUTS must find."""
    model = problem()
    target = ExactTarget(model)
    start = target.start()

    def log_density(position):
        at = eqx.tree_at(lambda m: m.kernel.lengthscales, start, position)
        return target.log_joint(at)

    grid = jnp.linspace(-3.0, 3.0, 1_201)
    log_p = np.asarray(jax.lax.map(lambda x: log_density(x[None]), grid))
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = float((weight * grid).sum())
    sd = float(np.sqrt((weight * (np.asarray(grid) - mean) ** 2).sum()))
    plan = NutsPlan(warm_up=200, num_draws=1_500, chunk=100)
    drawn = sample_nuts(log_density, jnp.zeros((2, 1)), 25, jr.key(0), plan=plan, report=silent, clock=Clock())
    draws = np.asarray(drawn.positions).ravel()
    assert draws.mean() == pytest.approx(mean, abs=0.1 * sd)
    assert draws.std() == pytest.approx(sd, rel=0.1)
    assert drawn.history.evaluations > 1_700


def test_mcmc_gp_predicts_and_says_where_it_is():
    X, y = regression(40, noise=0.3)
    said = []
    fitted = fit_mcmc_gp(
        X, y, Gaussian(jnp.ones(1)), jr.key(0),
        plan=NutsPlan(warm_up=60, num_draws=40), num_chains=2, report=lambda *at: said.append(at),
    )  # fmt: skip
    posterior = fitted.posterior
    assert (posterior.num_chains, posterior.num_draws) == (2, 40)
    found = posterior.predict(X, jr.key(1))
    assert np.corrcoef(np.asarray(found.mean)[:, 0], y[:, 0])[0, 1] > 0.9
    assert {phase for phase, *_ in said} == {"warm-up", "draws"}
    assert said[-1][1:3] == (40, 40)


def test_large_tables_and_classes_are_refused():
    with pytest.raises(ValueError, match=r"at most 2,000 rows .* got 2,001. Use `method=\"bsgp\"`"):
        exact_target(np.zeros((2_001, 1)), np.zeros((2_001, 1)), Gaussian(jnp.ones(1)))
    with pytest.raises(ValueError, match="regression with Gaussian noise, got a Bernoulli"):
        exact_target(np.zeros((10, 1)), np.zeros((10, 1)), Bernoulli())
