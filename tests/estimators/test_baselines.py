import numpy as np
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression, LogisticRegression

from bsgp.estimators.baselines import class_baselines, from_arrays, regression_baselines, to_arrays


def test_the_line_is_the_line(rng):
    X = rng.standard_normal((200, 3))
    y = X @ rng.standard_normal((3, 2)) + [5.0, -7.0] + 0.3 * rng.standard_normal((200, 2))
    found = regression_baselines(X, y)
    assert_allclose(found["linear"].mean(X), LinearRegression().fit(X, y).predict(X), atol=0.05)
    assert_allclose(found["linear"].sd, 0.3, rtol=0.15)
    assert_allclose(found["constant"].mean(X), np.broadcast_to(y.mean(axis=0), y.shape))


def test_classes_are_logistic(rng):
    X = rng.standard_normal((300, 2))
    for num_classes in (2, 3):
        codes = np.digitize(X[:, 0] + 0.5 * rng.standard_normal(300), [-0.4, 0.4][: num_classes - 1])
        found = class_baselines(X, codes, num_classes)
        assert_allclose(found["linear"].probability(X), LogisticRegression().fit(X, codes).predict_proba(X), atol=1e-3)
        assert_allclose(found["constant"].probability(X)[0], np.bincount(codes) / 300, atol=0.01)


def test_a_class_that_is_hardly_there_still_has_a_probability(rng):
    X, codes = rng.standard_normal((50, 2)), np.repeat([0, 2], 25)
    probability = class_baselines(X, codes, 4)["linear"].probability(X)
    assert probability.shape == (50, 4)
    assert np.isfinite(np.log(probability)).all()


def test_arrays_and_back(rng):
    X, y = rng.standard_normal((20, 2)), rng.standard_normal((20, 1))
    for baselines in (regression_baselines(X, y), class_baselines(X, (y[:, 0] > 0).astype(int), 2)):
        back = from_arrays({**to_arrays(baselines), "background": X})
        assert list(back) == list(baselines)
        for name in back:
            assert type(back[name]) is type(baselines[name])
            for one, other in zip(back[name], baselines[name], strict=True):
                assert_allclose(one, other)
