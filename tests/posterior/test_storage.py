"""Which classes a model folder may hold; `test_posterior.py` saves and loads whole posteriors."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bsgp.models.kernels import RBF, AbstractKernel
from bsgp.models.likelihoods import AbstractLikelihood
from bsgp.models.model import AbstractModel
from bsgp.posterior.storage import STORABLE, load_stacked, save_stacked


def concrete_subclasses(base: type) -> set[type]:
    below = {base}.union(*(concrete_subclasses(cls) for cls in base.__subclasses__()))
    return {cls for cls in below if not inspect.isabstract(cls) and cls.__module__.startswith("bsgp.models.")}


def stacked(kernel: AbstractKernel) -> AbstractKernel:
    """One chain of one draw."""
    return jax.tree.map(lambda x: x[None, None], kernel)


@pytest.mark.parametrize("base", [AbstractKernel, AbstractLikelihood, AbstractModel], ids=lambda cls: cls.__name__)
def test_every_class_of_models_is_storable_under_its_own_name(base):
    found = concrete_subclasses(base)
    assert len(found) > 2
    assert {STORABLE.get(cls.__name__) for cls in found} == found


def test_other_classes_are_refused_by_name_and_place(tmp_path):
    class OwnKernel(AbstractKernel):
        def __call__(self, X, X2):
            return X @ X2.T

        def diag(self, X):
            return jnp.sum(X * X, axis=1)

    kernel = stacked(RBF(jnp.asarray(1.0), jnp.ones(2)) + OwnKernel())
    with pytest.raises(ValueError, match=r"`right` must be .* got OwnKernel"):
        save_stacked(kernel, tmp_path / "model", meta={})
    assert not (tmp_path / "model").exists()


def test_extra_arrays_and_meta_come_back(tmp_path):
    kernel = stacked(RBF(jnp.asarray(1.0), jnp.ones(2, jnp.float32)))
    save_stacked(kernel, tmp_path / "model", meta={"a": [1, None]}, extras={"rows": np.arange(4)[::2]})
    stored = load_stacked(tmp_path / "model")
    assert stored.meta == {"a": [1, None]}
    assert stored.extras["rows"].tolist() == [0, 2]
    assert isinstance(stored.module, RBF)
    assert stored.module.lengthscales.dtype == jnp.float32
