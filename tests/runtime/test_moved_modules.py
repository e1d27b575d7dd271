"""Module names of version 0.1.0 still lead to the modules."""

import importlib
import subprocess
import sys
import warnings

import pytest

from bsgp.runtime.moved_modules import KEPT, MOVED


@pytest.fixture
def forget():
    """Makes the next import of a module run again, also its warning."""
    forgotten = {}

    def forget(name: str) -> str:
        forgotten[name] = sys.modules.pop(name, None)
        return name

    yield forget
    for name, module in forgotten.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module


@pytest.mark.parametrize("old", KEPT)
def test_a_short_name_is_the_module_itself_without_a_warning(old, forget):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module(forget(f"bsgp.{old}"))
    assert module is importlib.import_module(f"bsgp.{KEPT[old]}")


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_says_where_it_is_now(old, forget):
    with pytest.warns(DeprecationWarning, match=rf"`bsgp\.{old}` is now `bsgp\.{MOVED[old]}`"):
        module = importlib.import_module(forget(f"bsgp.{old}"))
    assert module is importlib.import_module(f"bsgp.{MOVED[old]}")
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == f"bsgp.{MOVED[old]}"


def test_classes_are_the_same_whichever_way_they_are_imported():
    from bsgp.kernels import RBF

    from bsgp.models.kernels import RBF as home

    assert RBF is home


@pytest.mark.parametrize("unknown", ["bsgp.nonsense", "bsgp.models.kernels.infer", "bsgp.inference.infer"])
def test_unknown_modules_are_not_found(unknown):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(unknown)


def test_importing_the_package_does_not_import_jax():
    code = "import bsgp, sys; assert not {'jax', 'numpy', 'sklearn'} & sys.modules.keys(), 'slow import'"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
