import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist

from bsgp.models.inducing_priors import Determinantal, InducingAround, InducingNormal, InducingUniform, Strauss
from bsgp.models.kernels import RBF

KERNEL = RBF(jnp.asarray(0.7), jnp.asarray([1.0, 0.8]))
PRIORS = [InducingNormal(), Determinantal(), Strauss(), Strauss(softness=0.0), InducingUniform()]
ACTING = PRIORS[:3]


@pytest.fixture
def Z(rng):
    return jnp.asarray(rng.standard_normal((12, 2)) * 0.6)


@pytest.mark.parametrize("prior", ACTING, ids=lambda p: type(p).__name__)
def test_every_prior_but_uniform_pulls_on_z(prior, Z):
    gradient = jax.grad(lambda Z: prior.log_prob(Z, KERNEL, 1e-7))(Z)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 1e-2


@pytest.mark.parametrize("prior", PRIORS[3:], ids=["hard Strauss", "uniform"])
def test_the_hard_count_and_uniform_do_not(prior, Z):
    assert not jax.grad(lambda Z: prior.log_prob(Z, KERNEL, 1e-7))(Z).any()


@pytest.mark.parametrize("prior", PRIORS, ids=range(5))
def test_permuting_z_changes_nothing(prior, Z, rng):
    shuffled = Z[rng.permutation(12)]
    assert_allclose(prior.log_prob(shuffled, KERNEL, 1e-7), prior.log_prob(Z, KERNEL, 1e-7), rtol=1e-7)


def test_values(Z):
    assert_allclose(InducingNormal().log_prob(Z, KERNEL, 0.0), -0.5 * np.sum(Z**2))
    assert_allclose(InducingAround(2 * Z).log_prob(Z, KERNEL, 0.0), -0.5 * np.sum(Z**2))
    assert_allclose(InducingAround(Z).log_prob(Z, KERNEL, 0.0), 0.0)
    close = np.sum(pdist(Z) < 0.5)
    assert close > 3
    assert_allclose(Strauss(softness=0.0).log_prob(Z, KERNEL, 0.0), close * np.log(0.5))
    assert_allclose(Strauss(softness=1e-4).log_prob(Z, KERNEL, 0.0), close * np.log(0.5), rtol=1e-3)
    determinant = Determinantal().log_prob(Z, KERNEL, 1e-6)
    expected = np.linalg.slogdet(KERNEL(Z, Z) + 0.7e-6 * np.eye(12))[1]
    assert_allclose(determinant, expected, rtol=1e-8)


def test_the_determinantal_prior_also_pulls_on_the_kernel(Z):
    slope = jax.grad(lambda k: Determinantal().log_prob(Z, k, 1e-7))(KERNEL)
    assert_allclose(slope.variance * KERNEL.variance, 12.0, rtol=1e-6)  # M log variance


@pytest.mark.parametrize("options", [{"radius": 0.0}, {"repulsion": 1.5}, {"repulsion": 0.0}, {"softness": -1.0}])
def test_impossible_strauss_is_refused(options):
    with pytest.raises(ValueError, match="got"):
        Strauss(**options)
