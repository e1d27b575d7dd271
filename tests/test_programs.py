"""Compiled programs are let go of before the system's limit of memory maps ends the process."""

import sys

import jax
import jax.numpy as jnp
import pytest

from bsgp.programs import let_go_of_programs, num_maps


def _compile(num: int) -> list:
    """Functions that hold on to their programs."""
    compiled = [jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x).T) for _ in range(num)]
    for size, function in enumerate(compiled, 1):
        function(jnp.ones((size, 3))).block_until_ready()
    return compiled


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc/self/maps")
def test_programs_hold_maps_until_they_are_let_go_of():
    let_go_of_programs(most=1)  # else what other tests left would go meanwhile
    before = num_maps()
    _held = _compile(20)
    full = num_maps()
    assert full > before
    assert not let_go_of_programs(most=full + 1_000)
    assert let_go_of_programs(most=1)
    assert num_maps() < full
