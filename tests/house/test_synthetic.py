"""The synthetic table: its truth is calibrated, and the same arguments give the same rows."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from synthetic import MIN_INPUTS, TARGET, true_probability, write_synthetic


def written(path, num_rows=40_000, **options):
    write_synthetic(path, num_rows, **options)
    frame = pd.read_parquet(path)
    return frame.drop(columns=TARGET).to_numpy(), frame[TARGET].to_numpy()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return written(tmp_path_factory.mktemp("synthetic") / "rows.parquet", chunk_rows=15_000)


def mean_nll(label, probability):
    return -np.mean(np.log(np.where(label == 1, probability, 1.0 - probability)))


def test_shapes_and_types(rows):
    X, label = rows
    assert X.shape == (40_000, 28)
    assert X.dtype == np.float32
    assert set(np.unique(label)) == {0, 1}
    assert np.isfinite(X).all()
    assert (X[:, 1::3] > 0).all()
    assert X[:, 2::3].min() >= 0
    assert X[:, 2::3].max() <= 1
    correlations = np.corrcoef(X.T)[np.triu_indices(28, 1)]
    assert 0.1 < np.abs(correlations).mean() < 0.4


def test_the_truth_is_calibrated(rows):
    X, label = rows
    probability = true_probability(X)
    bins = np.digitize(probability, np.linspace(0.1, 0.9, 9))
    for one in range(10):
        there = bins == one
        expected = probability[there].mean()
        noise = np.sqrt(expected * (1 - expected) / there.sum())
        assert abs(label[there].mean() - expected) < 4 * noise


def test_the_best_error_is_neither_small_nor_large(rows):
    X, label = rows
    probability = true_probability(X)
    assert 0.20 < np.mean(np.minimum(probability, 1 - probability)) < 0.25
    assert 0.4 < label.mean() < 0.6


def test_no_constant_and_no_line_comes_near_the_truth(rows):
    from sklearn.linear_model import LogisticRegression

    X, label = rows
    truth = mean_nll(label, true_probability(X))
    line = LogisticRegression(max_iter=500).fit(X[:20_000], label[:20_000]).predict_proba(X[20_000:])[:, 1]
    assert truth < mean_nll(label[20_000:], line) - 0.03
    assert truth < mean_nll(label, np.full(len(label), label.mean())) - 0.15


def test_same_arguments_give_the_same_rows(tmp_path):
    first, again = (written(tmp_path / name, 1_000, seed=3) for name in ("a.parquet", "b.parquet"))
    other = written(tmp_path / "c.parquet", 1_000, seed=4)
    assert (first[0] == again[0]).all()
    assert (first[1] == again[1]).all()
    assert (first[0] != other[0]).any(axis=1).all()


def test_files_of_any_seed_have_one_truth(tmp_path, rows):
    X, label = written(tmp_path / "a.parquet", seed=9)
    assert_allclose(X.mean(axis=0), rows[0].mean(axis=0), atol=0.05)
    assert_allclose(mean_nll(label, true_probability(X)), mean_nll(rows[1], true_probability(rows[0])), atol=0.02)


def test_sorting_by_target_keeps_the_rows(tmp_path):
    options = {"num_inputs": MIN_INPUTS, "chunk_rows": 300}
    X, label = written(tmp_path / "a.parquet", 1_000, **options)
    by_target, sorted_label = written(tmp_path / "b.parquet", 1_000, sorted_by_target=True, **options)
    assert (np.diff(sorted_label) >= 0).all()
    assert (by_target == np.concatenate([X[label == 0], X[label == 1]])).all()


@pytest.mark.parametrize("options", [{"num_rows": 0}, {"num_inputs": 9}, {"chunk_rows": 0}, {"seed": -1}])
def test_bad_arguments_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        write_synthetic(tmp_path / "a.parquet", **{"num_rows": 10, **options})
    assert not list(tmp_path.iterdir())
