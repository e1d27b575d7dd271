"""A tiny run with checkpoints, to which something happens on its way."""

from collections.abc import Callable
from pathlib import Path

import jax
from numpy.testing import assert_array_equal
from problems import tiny_target

from bsgp import Plan, sample
from bsgp.inference.checkpoints import Checkpoints

PLAN = Plan(adam_steps=40, burn_in=80, num_draws=8, thinning=5, batch_size=10, chunk=10)
NUM_CHUNKS = 4 + 8 + 4
SETTINGS = {"method": "bsgp", "seed": 0}


class KilledError(Exception):
    """Stands for the end of the process."""


def run(
    folder: Path,
    key,
    *,
    resume=False,
    dies_after: int | None = None,
    happening: dict[int, Callable[[], None]] | None = None,
    plan=PLAN,
    settings=SETTINGS,
    chains=2,
    every=1e-9,
):
    """The run, and what it reported. Something may happen after a chunk of that number."""
    target, X, y = tiny_target()
    seen = []

    def report(*args):
        seen.append(args)
        (happening or {}).get(len(seen), lambda: None)()
        if len(seen) == dies_after:
            raise KilledError

    checkpoints = Checkpoints(folder, settings, resume=resume, every=every)
    return sample(target, X, y, key, plan=plan, num_chains=chains, report=report, checkpoints=checkpoints), seen


def whole_run(key):
    target, X, y = tiny_target()
    return sample(target, X, y, key, plan=PLAN, num_chains=2)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(other.model), strict=True):
        assert_array_equal(a, b)
    assert one.history.evaluations == other.history.evaluations
    for phase in ("warm start", "burn-in", "draws"):
        assert_array_equal(one.history.energy[phase], other.history.energy[phase])
    for name, heat in one.history.temperature.items():
        assert_array_equal(heat, other.history.temperature[name])
