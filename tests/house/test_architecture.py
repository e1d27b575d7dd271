"""The house stays in order, and docs/architecture.md shows it as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import architecture

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "bsgp").rglob("*.py"))


def test_data_flows_one_way():
    """The import-linter contract of pyproject.toml."""
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_contract_has_at_most_nine_layers_and_names_every_room():
    layers = architecture.layers()
    assert len(layers) + 1 <= 9  # `__main__` is one of them
    rooms = {path.name for path in (ROOT / "src" / "bsgp").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {room for layer in layers for room in layer}
    assert {path.name for path in (ROOT / "src" / "bsgp").glob("*.*")} == {"__init__.py", "__main__.py", "py.typed"}


def test_no_file_is_too_long_to_read():
    long = {str(path): length for path in SOURCES if (length := len(path.read_text().splitlines())) > 350}
    assert not long


def test_import_is_quiet_and_leaves_jax_as_it_was():
    code = "import jax; before = jax.config.jax_enable_x64; import bsgp; assert jax.config.jax_enable_x64 == before"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_command_line_answers_without_jax():
    code = "import sys, bsgp.cli; assert not {'jax', 'sklearn', 'matplotlib'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_page_and_the_picture_are_those_of_the_code():
    page, advice = architecture.PAGE.read_text(), "run benchmarks/architecture.py"
    assert architecture.written_anew(page, {"rooms": architecture.room_table()}) == page, advice
    assert architecture.PICTURE.read_text() == architecture.picture(), advice


def test_the_files_on_the_way_of_a_call_are_those_of_the_page():
    code = "import architecture; print(architecture.count_table(architecture.fit_and_predict()))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True)
    assert result.stdout.strip() in architecture.PAGE.read_text(), "run benchmarks/architecture.py"
    predict = next(line for line in result.stdout.splitlines() if line.startswith("| `predict`"))
    assert int(predict.split("|")[2]) <= 12


@pytest.mark.parametrize("path", re.findall(r"`((?:\w+/)+\w+\.py)`", architecture.PAGE.read_text()))
def test_every_file_that_the_page_names_exists(path):
    assert (ROOT / path).exists() or (ROOT / "src" / "bsgp" / path).exists()
