"""Toy runs for the tests of campaigns, and access to the fits behind records."""

import os
from collections import Counter
from pathlib import Path

import pytest
from toy_kind.toy import ToyRun


class Toys:
    """Makes toy runs, and counts how often each was started."""

    def __init__(self, begun: Path):
        self._begun = begun

    def __call__(self, *folds: int, **settings) -> list[ToyRun]:
        return [ToyRun(fold, str(self._begun), **settings) for fold in folds]

    def begun(self) -> Counter[str]:
        return Counter(self._begun.read_text().split()) if self._begun.exists() else Counter()


@pytest.fixture
def toys(tmp_path_factory, monkeypatch):
    """Toy runs that workers know. In processes that are started under it, `uci` runs are toys, too."""
    begun = tmp_path_factory.mktemp("toys") / "begun"
    folder = str(Path(__file__).parents[1] / "helpers" / "toy_kind")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("TOY_BEGUN", str(begun))
    return Toys(begun)


@pytest.fixture
def fitted(monkeypatch):
    """List of the fits that `fit_method` makes during a test."""
    import bsgp.methods.registry as registry

    fits, fit_method = [], registry.fit_method

    def noting_fit(*arguments, **options):
        fits.append(fit_method(*arguments, **options))
        return fits[-1]

    monkeypatch.setattr(registry, "fit_method", noting_fit)
    return fits
