"""Fitted estimators without sampling, for tests of what happens after a fit: predictions, scores, files, reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import equinox as eqx
import jax
import numpy as np

from bsgp.inference.history import History
from bsgp.methods.fit import Fit
from bsgp.models.deep_gp import init_deep_gp
from bsgp.posterior.posterior import Posterior


@contextmanager
def prior_draws(num_draws: int) -> Iterator[None]:
    """Replaces the sampler behind `fit`: draws come from the prior over u, and vary a little in everything else."""
    with mock.patch("bsgp.estimators.base.fit_method", partial(_draw, num_draws=num_draws)):
        yield


def _draw(method, source, _, likelihood, key, *, options, num_draws, **ignored) -> Fit:
    start = init_deep_gp(
        source.X, likelihood, key,
        num_targets=source.num_targets,
        num_inducing=min(options.num_inducing, source.num_rows),
        depth=options.depth,
        kernel=options.kernel,
    )  # fmt: skip
    shape, rng = (options.num_chains or 1, num_draws), np.random.default_rng(0)
    draws = jax.tree.map(
        lambda leaf: jax.numpy.asarray(np.asarray(leaf) * np.exp(0.1 * rng.standard_normal((*shape, *leaf.shape)))),
        start,
    )
    prior = [jax.numpy.asarray(rng.standard_normal((*shape, *layer.V.shape))) for layer in start.layers]
    draws = eqx.tree_at(lambda model: [layer.V for layer in model.layers], draws, prior)
    energy = {phase: 2.0 + rng.standard_normal((shape[0], 30)) for phase in ("warm start", "burn-in", "draws")}
    temperature = {"layers.0.V": np.ones(shape[0])}
    return Fit(Posterior(draws), History(energy, evaluations=90, seconds=1.0, temperature=temperature))
