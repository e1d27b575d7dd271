"""`objective="tighter-vfe"` through the estimators: fits, files, refusals."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from refusals import message
from short_recipes import short_recipes

import bsgp
from bsgp import BSGPClassifier, BSGPRegressor

TINY = {"objective": "tighter-vfe", "num_inducing": 5, "num_chains": 1, "random_state": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_with_checkpoints_is_saved_and_read(rng, tmp_path):
    X = rng.uniform(-2, 2, (30, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(30)
    with short_recipes(num_draws=16, burn_in=64, thinning=4, chunk=16):
        model = BSGPRegressor(**TINY, checkpoint=tmp_path / "checkpoint").fit(X, y)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.9
    model.save(tmp_path / "model")
    same = bsgp.load(tmp_path / "model")
    assert same.objective == "tighter-vfe"
    assert_array_equal(same.predict(X), model.predict(X))


def test_several_classes_are_refused_before_anything_is_drawn(rng):
    X = rng.standard_normal((30, 2))
    refused = message(BSGPClassifier(**TINY).fit, X, np.arange(30) % 3)
    assert "`objective` tighter-vfe must go with Gaussian noise, counts or two classes" in refused
