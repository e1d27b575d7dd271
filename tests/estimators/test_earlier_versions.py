"""Model folders saved by earlier versions load, and predict as they did when they were saved.

`tests/fixtures/models` holds small folders named VERSION-KIND, a table of new rows, and the predictions for it that the
version itself made. The rows have numbers, categories, booleans and a missing value.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import bsgp

FOLDER = Path(__file__).parents[1] / "fixtures" / "models"
EXPECTED: dict[str, dict] = json.loads((FOLDER / "expected.json").read_text())


@pytest.fixture(scope="module")
def new_rows() -> pd.DataFrame:
    table = pd.read_csv(FOLDER / "new.csv")
    assert table["flag"].dtype == bool
    assert table["a"].isna().any()
    return table


def assert_predicts(model, new_rows: pd.DataFrame, expected: dict) -> None:
    if "probability" in expected:
        assert_allclose(model.predict_proba(new_rows), expected["probability"], rtol=1e-10)
        assert model.predict(new_rows).tolist() == expected["label"]
        return
    mean, sd = model.predict(new_rows, return_std=True)
    assert_allclose(mean, expected["mean"], rtol=1e-10)
    assert_allclose(sd, expected["sd"], rtol=1e-10)
    assert_allclose(model.predict_quantiles(new_rows), expected["quantiles"], rtol=1e-10)


def test_every_folder_is_checked():
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_earlier_model_predicts_the_same_also_when_it_is_saved_again(name, new_rows, tmp_path):
    model = bsgp.load(FOLDER / name)
    assert_predicts(model, new_rows, EXPECTED[name])
    model.save(tmp_path / "again")
    assert_predicts(bsgp.load(tmp_path / "again"), new_rows, EXPECTED[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_an_earlier_model_keeps_its_diagnostics(name):
    stored = json.loads((FOLDER / name / "posterior.json").read_text())["meta"]["diagnostics"]
    found = bsgp.load(FOLDER / name).diagnostics_
    # today's rule asks for more than that of 0.1.0, which called one chain "Trust it"
    assert found.grade == ("not sampled" if stored["move"] is not None else "not converged")
    assert (found.num_chains, found.num_draws) == (stored["num_chains"], stored["num_draws"])
    assert list(found.warnings) == stored["warnings"]
    assert found.temperature == stored["temperature"]
    for value, saved in ((found.rhat, stored["rhat"]), (found.ess, stored["ess"]), (found.move, stored["move"])):
        assert value == saved or (saved is None and (value is None or np.isnan(value)))
