"""Compiled programs are released before the system's limit of memory maps ends the process."""

import json
import subprocess
import sys

import pytest

# in a process of its own: in a worker of the suite, releasing thousands of programs takes ten seconds
SCRIPT = """
import json
import jax
from bsgp.runtime.compilation import num_memory_maps, release_compiled_programs

jax.jit(jax.numpy.cos)(1.0).block_until_ready()  # starts the backend
before = num_memory_maps()
held = [jax.jit(lambda x, shift=shift: jax.numpy.sin(x + shift)) for shift in range(5)]
for function in held:
    function(1.0).block_until_ready()
full = num_memory_maps()
kept = not release_compiled_programs(max_memory_maps=full + 1_000)
released = release_compiled_programs(max_memory_maps=1)
print(json.dumps([before, full, kept, released, num_memory_maps()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc/self/maps")
def test_programs_hold_memory_maps_until_they_are_released():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, full, kept, released, after = json.loads(run.stdout)
    assert full >= before + 5
    assert kept
    assert released
    assert after < full
