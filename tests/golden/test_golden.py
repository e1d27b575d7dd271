"""The first draws of every method are those on file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, IN_MAKE_TEST, beginning_of
from numpy.testing import assert_allclose
from record import record_file

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
RECORD = json.loads(record_file().read_text()) if record_file().exists() else {}
TOLERANCES = {"dkl": 1e-6}
"""Training a network amplifies rounding, which differs between processors."""


def test_the_pinned_series_of_jax_is_on_file():
    """Other series may have no record, and their draws are not compared; this one must have its own."""
    pinned = re.search(r"^jax==(\d+\.\d+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned is not None
    assert record_file().with_name(f"jax-{pinned[1]}.json").exists()


@pytest.mark.skipif(not RECORD, reason=f"no {record_file().name}: `python tests/golden/record.py` writes it")
@pytest.mark.parametrize("case", IN_MAKE_TEST)
def test_draws_are_those_on_file(case):
    found = beginning_of(case, CASES[case]())
    assert found.keys() == RECORD[case].keys()
    for name, value in found.items():
        tolerance = TOLERANCES.get(case, 1e-8)
        assert_allclose(value, np.asarray(RECORD[case][name]), rtol=tolerance, atol=tolerance, err_msg=name)
