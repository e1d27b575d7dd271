"""Predictions by which chains are compared: at probe rows, draw by draw, without the noise of u and hidden layers.

Every draw of u, and every pass through hidden layers, adds noise of its own to a prediction. That noise is the same in
all chains, and it hides chains that disagree about inducing inputs, kernel and noise. So under Gaussian noise the u of
the last layer is integrated out in closed form, given some training rows, and all draws share the random numbers of
their hidden layers.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bsgp.data.store.sources import Rows
from bsgp.inference.anchor import Anchor
from bsgp.inference.objectives import FITC
from bsgp.models.deep_gp import DeepGP
from bsgp.models.likelihoods.gaussian_noise import Gaussian
from bsgp.models.model import AbstractModel
from bsgp.posterior.posterior import Posterior

NUM_PROBES = 100
EDGE_SHARE = 0.2
"""Share of the probe rows that are at the edge of the data."""
MAX_CANDIDATES = 20_000
"""Rows of a table on disk among which probes are chosen."""
MAX_GIVEN_ROWS = 1_000
"""Training rows given which u is integrated out."""
NUM_PASSES = 16
"""Passes through hidden layers, averaged."""


class Probes(NamedTuple):
    """Rows of a training table by which a fit is judged."""

    X: np.ndarray
    """Rows to predict, standardised."""
    given: Rows
    """Rows with targets, given which u is integrated out."""


class ProbedDraws(NamedTuple):
    """Mean and variance of y under each draw at the probe rows, `[C S N P]`."""

    mean: np.ndarray
    variance: np.ndarray


def choose_probes(rows: Rows, seed: int, num_probes: int = NUM_PROBES) -> Probes:
    """Probes among standardised training rows: those farthest from the centre, and others at random."""
    rng, num_probes = np.random.default_rng(seed), min(num_probes, len(rows.X))
    outwards = np.argsort(-np.sum(np.square(rows.X), axis=1, dtype=np.float64), kind="stable")
    edge, inner = np.split(outwards, [round(EDGE_SHARE * num_probes)])
    probes = np.concatenate([edge, rng.choice(inner, num_probes - len(edge), replace=False)])
    given = rng.permutation(len(rows.X))[:MAX_GIVEN_ROWS]
    return Probes(rows.X[probes], rows.take(given))


def probed_draws(posterior: Posterior, probes: Probes, key: Array) -> ProbedDraws:
    """Predictions of every draw at the probes, with u integrated out if it has a closed form."""
    given = probes.given
    dtype = jax.tree.leaves(posterior.model)[0].dtype
    with jax.enable_x64(dtype == np.float64):
        anchor = None
        if _can_integrate(posterior.model):
            anchor = Anchor(*jax.tree.map(lambda part: jnp.asarray(part, dtype), given))
        draws = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf).reshape(-1, *leaf.shape[2:])), posterior.model)
        keys = jr.split(key, NUM_PASSES if posterior.model.depth > 1 else 1)
        found = _moments(draws, anchor, jnp.asarray(probes.X, dtype), keys)
    shape = posterior.num_chains, posterior.num_draws
    return ProbedDraws(*(np.asarray(one, np.float64).reshape(*shape, *one.shape[1:]) for one in found))


def _can_integrate(model: AbstractModel) -> bool:
    """Whether u has a closed form, and something else is left that differs between the draws of a chain."""
    if not isinstance(model, DeepGP) or not isinstance(model.likelihood, Gaussian):
        return False
    last = model.layers[-1]
    others = [*jax.tree.leaves(eqx.tree_at(lambda layer: layer.V, last, None)), model.likelihood.noise_variance]
    return last.root is None and any(np.ptp(np.asarray(leaf), axis=1).any() for leaf in others)


@eqx.filter_jit
def _moments(draws: AbstractModel, anchor: Anchor | None, X: Array, keys: Array) -> tuple[Array, Array]:
    """Mean and variance of y under each draw, `[S N P]`; the passes of all draws use the same `keys`."""

    def one_draw(draw):
        draw = draw if anchor is None else _without_u(draw, anchor)
        f = jax.lax.map(lambda key: draw.likelihood.predict(draw.propagate(X, key)), jr.clone(keys))
        return jnp.mean(f.mean, axis=0), jnp.mean(f.variance, axis=0) + jnp.var(f.mean, axis=0)

    return jax.lax.map(one_draw, draws)


def _without_u(draw: DeepGP, anchor: Anchor) -> DeepGP:
    """The draw with `p(u | anchor rows, rest)` instead of its last layer's u."""
    # rows stand for themselves only: all rows, or a sample of them that is the same for every draw
    conditional = anchor.conditional(draw, anchor.num_rows, FITC())
    roots = jnp.stack([_inverse_transposed(root) for root in conditional.root])
    last = draw.layers[-1]
    last = eqx.tree_at(
        lambda layer: (layer.V, layer.root), last, (conditional.mean, roots), is_leaf=lambda leaf: leaf is None
    )
    return eqx.tree_at(lambda model: model.layers, draw, (*draw.layers[:-1], last))


def _inverse_transposed(root: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """A root of the covariance, given that of the precision."""
    return solve_triangular(root, jnp.eye(root.shape[0], dtype=root.dtype), lower=True, trans=1)
