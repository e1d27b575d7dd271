"""The house stays in order."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_data_flows_one_way():
    """The import-linter contract of pyproject.toml."""
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_import_is_quiet_and_leaves_jax_as_it_was():
    code = "import jax; before = jax.config.jax_enable_x64; import bsgp; assert jax.config.jax_enable_x64 == before"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
