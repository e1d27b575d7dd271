"""The code blocks of README and docs work, the names in them exist, their tables are current, and the site builds.

Python blocks and `bsgp` commands run, with short chains. What takes minutes or needs a cluster is checked without
running: commands are parsed with all of their options, `bsgp bench run` plans its runs, scripts and YAML are parsed,
and Python blocks under a line `<!-- not run -->` are compiled.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jax
import pytest
import yaml

import bsgp.experiments.engine.campaign
import bsgp.experiments.engine.engines
import bsgp.methods.bsgp
import bsgp.methods.method
import method_tables
import result_tables
from bsgp.cli import app, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(<!-- not run -->\n)?```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(\$ |import |from \w+ import|(\S*/)?(make|bsgp|dask|pip|srun) (?!\W))", re.MULTILINE)
"""Code that belongs in a block of its language and not in a block of text."""
NOT_RUN = ("demo", "bench table", "bench figures", "bench report")
"""`bsgp` commands that take minutes or need finished runs; their own tests run them."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Mark of a block that is not run, or an empty string; language; code."""
    return FENCE.findall(page.read_text())


@pytest.fixture
def quick(monkeypatch):
    """The same recipes with hardly any updates: whether the blocks run is asked here, not how well they fit."""

    def shorten(make):
        def short(size):
            recipe = make(size)
            plan = replace(recipe.plan, adam_steps=10, lbfgs_steps=0, burn_in=20, num_draws=16, thinning=1)
            return replace(recipe, plan=plan, num_inducing=min(5, recipe.num_inducing))

        return short

    for name, make in list(bsgp.methods.bsgp.RECIPES.items()):
        monkeypatch.setitem(bsgp.methods.bsgp.RECIPES, name, shorten(make))
    monkeypatch.setattr(bsgp.methods.method.Task, "times", lambda task, count: min(count, 20))
    plain = replace(bsgp.methods.bsgp.PLAIN_PLAN, adam_steps=10, burn_in=20, num_draws=16, thinning=1)
    monkeypatch.setattr(bsgp.methods.bsgp, "PLAIN_PLAN", plain)


@pytest.fixture
def planned_campaigns(monkeypatch, tmp_path):
    """`bsgp bench run` checks its options and plans its runs, and does none of them."""
    monkeypatch.setattr(bsgp.experiments.engine.campaign, "run_with_progress", lambda runs, out, **options: [])
    monkeypatch.setattr(bsgp.experiments.engine.engines, "dask_client", lambda address: nullcontext())
    monkeypatch.setenv("BSGP_DATA", str(tmp_path))


@pytest.fixture
def plain_jax():
    """JAX as users have it. A block may ask for float64 itself."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.mark.usefixtures("quick", "planned_campaigns", "plain_jax")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_work(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BSGP_CACHE", "off")
    _example_tables(tmp_path / "bsgp-demo")
    namespace: dict = {}
    for mark, language, code in blocks(page):
        if language == "python":
            compiled = compile(code, page.name, "exec")
            if not mark:
                exec(compiled, namespace)
        elif language == "sh":
            for line in code.splitlines():
                _check_command(shlex.split(line, comments=True))
        elif language == "bash":
            _check_script(code)
        elif language == "yaml":
            assert yaml.safe_load(code)
        else:
            assert language == "text", f"{page.name} has a block of the language {language!r}, which is not checked"
            assert not COMMAND.search(code), f"{page.name} has a block of text that holds code"


def _check_command(words: list[str]) -> None:
    """Run a command, or check it as far as that is possible here."""
    while words and re.match(r"[A-Z_]+=", words[0]):  # variables for the command
        words = words[1:]
    if not words:
        return
    program = Path(words[0]).name
    if program == "bsgp":
        _check_bsgp(words[1:])
    elif program == "dask":
        _check_dask(words[1:])
    elif program == "make":
        targets = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert targets.returncode == 0, targets.stderr
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[-1].removeprefix("bsgp[").removesuffix("]") in extras
    else:
        assert shutil.which(words[0]) or words[0].startswith(".venv/"), words


def _check_bsgp(words: list[str], *, is_run: bool = True) -> None:
    app.parse_args(words, exit_on_error=False, print_error=False)
    is_run = is_run and "--num-processes" not in words and not " ".join(words).startswith(NOT_RUN)
    if is_run or words[:2] == ["bench", "run"]:
        main(words)


def _check_dask(words: list[str]) -> None:
    command = import_module(f"distributed.cli.dask_{words[0]}").main
    command.make_context(words[0], words[1:])  # parses and does not run


def _check_script(code: str) -> None:
    """Check the syntax of a shell script, and the options of our commands and of Dask's in it."""
    checked = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    with_values = re.sub(r"\$\w+", "1", code.replace("\\\n", ""))
    found = []
    for line in with_values.splitlines():
        words = [part for word in shlex.split(line, comments=True) for part in _nested(word)]
        for start, program in enumerate(words):
            if program in ("bsgp", "dask"):
                found.append(program)
                options = [word for word in words[start + 1 :] if word != "&"]
                _check_bsgp(options, is_run=False) if program == "bsgp" else _check_dask(options)
    assert "bsgp" in found


def _nested(word: str) -> list[str]:
    """Words of a command inside another, as in `bash -c 'bsgp ...'`."""
    return shlex.split(word) if word.startswith("bsgp ") else [word]


def _example_tables(folder: Path) -> None:
    from bsgp.demos.tables import EXAMPLES, split_example

    for example in EXAMPLES:
        split_example(example, folder)


@pytest.mark.parametrize("command", ["bench run uci --dataset yacht --out runs", "demo --efort 2", "data list --json"])
def test_a_misspelt_option_in_the_docs_would_be_noticed(command, planned_campaigns):
    with pytest.raises(Exception, match="Unknown option"):
        _check_bsgp(command.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_name_in_a_page_exists(page):
    for name in sorted(set(re.findall(r"`(bsgp(?:\.\w+)+)", page.read_text()))):
        _find(name)


def _find(name: str) -> object:
    """A module, or an attribute of one. Old names of modules warn, which is an error in tests."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


# docs/architecture.md names files within the room that its sentence is about; test_architecture.py checks them
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "architecture"], ids=lambda page: page.name)
def test_every_file_in_a_page_exists(page):
    """Files and folders of the sources, such as `models/kernels.py` and `methods/`, of tests and of results."""
    text = page.read_text()
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py|(?:benchmarks|docs|results|tests)/[\w./-]+)`", text)
    missing = [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "src" / "bsgp"))]
    assert not missing


def test_the_map_of_the_method_names_files():
    table = (ROOT / "docs" / "method.md").read_text().split("## Where things are")[1].split("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    assert all(re.search(r"`\w+/", row.split("|")[-2]) for row in rows)


def test_the_site_builds_without_warnings(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "api" / "index.html").exists()


def test_every_page_is_linked_from_the_start():
    start = (ROOT / "docs" / "index.md").read_text()
    assert all(f"]({page.name})" in start for page in PAGES[1:] if page.name != "index.md")


def test_the_tables_of_methods_are_those_of_the_code():
    assert method_tables.PAGE.read_text() == method_tables.with_new_tables(), "run benchmarks/method_tables.py"


@pytest.mark.parametrize("page", list(result_tables.TABLES), ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page, folder):
    rows = result_tables.our_rows(folder)
    if rows is None:
        pytest.skip("no paper folder beside the data")
    assert page.read_text() == result_tables.with_new_table(page, rows), "run benchmarks/result_tables.py"
