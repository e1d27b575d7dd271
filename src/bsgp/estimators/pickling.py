"""Pickles of fitted estimators: their draws keep every digit, whatever the precision of the reader."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

_WITH_DRAWS = ("posterior_", "_session")


class PicklesDraws:
    """Pickles JAX arrays as NumPy's: read without float64 they would silently lose half their digits."""

    def __getstate__(self):
        state = dict(cast(dict[str, Any], super().__getstate__()))
        state.pop("_checkpoints", None)
        for name in _WITH_DRAWS:
            if state.get(name) is not None:
                state[name] = jax.tree.map(_as_numpy, state[name])
        return state

    def __setstate__(self, state):
        cast(Any, super()).__setstate__(state)
        with jax.enable_x64(True):
            for name in _WITH_DRAWS:
                if state.get(name) is not None:
                    setattr(self, name, jax.tree.map(_as_jax, state[name]))


def _as_numpy(leaf):
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _as_jax(leaf):
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
