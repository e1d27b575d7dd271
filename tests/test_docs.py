"""Every code block of README and docs is run, and the site builds without warnings."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest

import bsgp.fitting
import bsgp.recipes
import result_tables
from bsgp.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {"text", ""}
"""What programs print; blocks without a language are not allowed to hold commands."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text())


@pytest.fixture
def quick(monkeypatch):
    """The same recipes with hardly any updates: whether the blocks run is asked here, not how well they fit."""

    def shorten(make):
        def short(*shape):
            recipe = make(*shape)
            plan = replace(recipe.plan, warm_start=10, burn_in=20, num_draws=16, thinning=1)
            return replace(recipe, plan=plan, num_inducing=min(5, recipe.num_inducing))

        return short

    for name, make in list(bsgp.recipes.RECIPES.items()):
        monkeypatch.setitem(bsgp.recipes.RECIPES, name, shorten(make))
    monkeypatch.setattr(bsgp.fitting._Task, "times", lambda task, count: min(count, 20))
    plain = replace(bsgp.recipes.PLAIN_PLAN, warm_start=10, burn_in=20, num_draws=16, thinning=1)
    monkeypatch.setattr(bsgp.recipes, "PLAIN_PLAN", plain)


@pytest.fixture
def plain_jax():
    """JAX as users have it. A block may ask for float64 itself."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.mark.usefixtures("quick", "plain_jax")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BSGP_CACHE", "off")
    _example_tables(tmp_path / "bsgp-demo")
    namespace: dict = {}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, page.name, "exec"), namespace)
        elif language == "sh":
            for line in code.splitlines():
                _run_command(shlex.split(line, comments=True))
        else:
            assert language in NOT_RUN, f"{page.name} has a block of an unknown language, {language!r}"
            assert not re.search(r"^\s*(\$ |import |from \w+ import|make )", code, re.MULTILINE), page.name


def _run_command(words: list[str]) -> None:
    if not words:
        return
    if words[0] == "make":
        targets = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert targets.returncode == 0, targets.stderr
    elif Path(words[0]).name == "bsgp":
        if words[1] in ("bench", "demo", "data"):
            main([*words[1:3], "--help"])  # minutes long, or in need of a data folder: their own tests run them
        else:
            main(words[1:])
    else:
        assert shutil.which(words[0]) or words[0].startswith(".venv/"), words


def _example_tables(folder: Path) -> None:
    from bsgp.demos.tables import EXAMPLES, split_example

    for example in EXAMPLES:
        split_example(example, folder)


def test_the_site_builds_without_warnings(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "api" / "index.html").exists()


@pytest.mark.parametrize("page", list(result_tables.TABLES), ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page):
    rows = result_tables.our_rows()
    if rows is None:
        pytest.skip("no paper folder beside the data")
    assert page.read_text() == result_tables.written_anew(page, rows), "run benchmarks/result_tables.py"
