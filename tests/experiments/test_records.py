"""Records: strict JSON, and what they say about packages and data."""

import json
import math
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from bsgp import __version__
from bsgp.experiments.datasets.named import schemas
from bsgp.experiments.engine.provenance import PACKAGES, data_checksum, package_versions
from bsgp.experiments.engine.records import from_line, to_line
from bsgp.experiments.engine.runner import read_records, run_all

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "results").rglob("*") if path.suffix in (".json", ".jsonl"))


def strictly(text: str):
    """Parse JSON without the constants that Python adds to it."""

    def refuse(constant: str):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_record_in_the_repository_is_strict_json(path):
    text = path.read_text()
    parts = text.splitlines() if path.suffix == ".jsonl" else [text]
    assert parts
    assert all(strictly(part) for part in parts)


def test_the_strict_parser_notices_a_bare_nan():
    with pytest.raises(ValueError, match="NaN is not JSON"):
        strictly('{"rhat_max": NaN}')


def test_numbers_that_json_lacks_become_null_and_scores_are_read_back_as_nan():
    record = {"key": "a", "test_mnll": math.nan, "rhat_max": math.nan, "points": [{"test_mnll": math.inf, "n": 1}]}
    line = to_line(record)
    assert strictly(line) == {"key": "a", "test_mnll": None, "rhat_max": None, "points": [{"test_mnll": None, "n": 1}]}
    found = from_line(line)
    assert math.isnan(found["test_mnll"])
    assert math.isnan(found["points"][0]["test_mnll"])
    assert found["rhat_max"] is None
    assert math.isnan(from_line('{"key": "a", "rhat_max": NaN}')["rhat_max"])  # a record of an older version


def test_a_new_record_holds_versions_and_the_checksum_of_its_data(toys, tmp_path):
    assert run_all(toys(0), tmp_path) == []
    (record,) = read_records(tmp_path)
    assert tuple(record["packages"]) == PACKAGES == ("bsgp", "jax", "jaxlib", "numpy", "scikit-learn")
    assert record["packages"] == package_versions()
    assert record["packages"]["bsgp"] == record["version"] == __version__
    assert record["packages"]["jax"] == version("jax")
    assert record["data_sha256"] == schemas()["yacht"].sha256
    assert "commit" in record


def test_only_named_files_have_a_checksum():
    assert data_checksum({"dataset": "higgs", "source": "staged"}) == schemas()["higgs"].sha256
    assert data_checksum({"dataset": "higgs", "source": "original"}) is None
    assert data_checksum({"dataset": "mine"}) is None
    assert data_checksum({}) is None


def test_versions_are_read_without_importing_jax():
    code = (
        "import sys; from bsgp.experiments.engine.provenance import package_versions; package_versions(); "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
