import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from hypothesis import given
from hypothesis import strategies as some
from numpy.testing import assert_allclose

from bsgp.models.priors import (
    Exp,
    Flat,
    Gamma,
    HalfNormal,
    Identity,
    Interval,
    InverseGamma,
    LogNormal,
    Normal,
    Uniform,
)

BIJECTORS = [Identity(), Exp(), Interval(-1.0, 3.0)]
PRIORS = [
    (Normal(0.5, 2.0), st.norm(0.5, 2.0)),
    (LogNormal(-1.0, 0.7), st.lognorm(0.7, scale=np.exp(-1.0))),
    (Gamma(2.5, 3.0), st.gamma(2.5, scale=1 / 3.0)),
    (InverseGamma(3.0, 2.0), st.invgamma(3.0, scale=2.0)),
    (HalfNormal(1.5), st.halfnorm(scale=1.5)),
    (Uniform(-1.0, 2.0), st.uniform(-1.0, 3.0)),
]


@pytest.mark.parametrize("bijector", BIJECTORS, ids=lambda b: type(b).__name__)
@given(x=some.floats(-8.0, 8.0))
def test_bijectors_invert_and_their_jacobian_is_autodiffs(bijector, x):
    y = bijector.forward(jnp.asarray(x))
    assert_allclose(bijector.inverse(y), x, rtol=1e-9, atol=1e-9)
    slope = jax.grad(bijector.forward)(jnp.asarray(x))
    assert_allclose(bijector.log_det(jnp.asarray(x)), np.log(np.abs(slope)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("prior", "oracle"), PRIORS, ids=lambda p: type(p).__name__)
def test_densities_are_scipys_and_samples_follow_them(prior, oracle, getkey):
    x = jnp.asarray(oracle.ppf(np.linspace(0.02, 0.98, 25)))
    assert_allclose(prior.log_prob(x), oracle.logpdf(x), rtol=1e-10, atol=1e-12)
    draws = np.asarray(prior.sample(getkey(), (4000,), jnp.float64))
    assert st.kstest(draws, oracle.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("prior", "oracle"), PRIORS, ids=lambda p: type(p).__name__)
def test_in_unconstrained_coordinates_every_prior_integrates_to_one(prior, oracle):
    """Density times Jacobian: the mass is kept when a parameter is moved to the real line."""
    x = jnp.linspace(-40.0, 40.0, 40_001)
    density = jnp.exp(prior.log_prob(prior.bijector.forward(x)) + prior.bijector.log_det(x))
    assert_allclose(np.trapezoid(np.nan_to_num(density), x), 1.0, rtol=1e-5)


def test_lognormal_median():
    assert_allclose(LogNormal.with_median(0.05).loc, np.log(0.05))


def test_flat_says_nothing_and_cannot_be_sampled(getkey):
    assert not Flat().log_prob(jnp.ones(3)).any()
    with pytest.raises(ValueError, match="improper"):
        Flat().sample(getkey(), (1,), jnp.float64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Normal(0.0, -1.0),
        lambda: LogNormal(0.0, 0.0),
        lambda: Gamma(-1.0, 1.0),
        lambda: Uniform(1.0, 1.0),
        lambda: HalfNormal(float("nan")),
        lambda: InverseGamma(1.0, 0.0),
        lambda: LogNormal.with_median(-2.0),
    ],
)
def test_impossible_parameters_are_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()
