"""The prior variance of a function's slope, against automatic differentiation."""

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose

from bsgp.models import RBF, AbstractKernel, ActiveDimensions, Linear, Matern12, Periodic, Seasonal
from bsgp.models.sensitivity import sensitivity

LENGTHSCALES, VARIANCE = jnp.asarray([0.7, 1.3]), jnp.asarray(0.6)
SMOOTH = [
    RBF(VARIANCE, LENGTHSCALES),
    Linear(LENGTHSCALES, VARIANCE),
    Periodic(VARIANCE, LENGTHSCALES, jnp.asarray([2.0, 5.0])),
    Seasonal(VARIANCE, LENGTHSCALES, (2.0, 5.0)),
    ActiveDimensions(RBF(VARIANCE, LENGTHSCALES[:1]), (1,)),
]
SMOOTH += [SMOOTH[0] + SMOOTH[1], SMOOTH[0] * SMOOTH[1], SMOOTH[2] * SMOOTH[4] + SMOOTH[1]]


@pytest.mark.parametrize("kernel", SMOOTH, ids=lambda kernel: type(kernel).__name__)
def test_it_is_the_curvature_of_the_kernel(kernel):
    origin, near = jnp.zeros(2), jnp.full(2, 1e-4)  # `squared_distance` has a kink where points coincide
    slopes = jax.jacrev(jax.grad(lambda x, x2: kernel(x[None], x2[None])[0, 0]), argnums=1)
    assert_allclose(sensitivity(kernel, 2), jnp.diag(slopes(origin, near)), rtol=1e-5, atol=1e-12)


class Unknown(AbstractKernel):
    def __call__(self, X, X2):
        return X @ X2.T

    def diag(self, X):
        return jnp.sum(X * X, axis=1)


def test_a_rough_kernel_has_its_scale_and_an_unknown_one_none():
    assert_allclose(sensitivity(Matern12(VARIANCE, LENGTHSCALES), 2), VARIANCE / LENGTHSCALES**2)
    assert sensitivity(Unknown() + SMOOTH[0], 2) is None
