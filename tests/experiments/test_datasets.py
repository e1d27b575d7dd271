"""Named data sets and the authors' folds. Tests that need the files skip without them."""

import gzip
import hashlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bsgp.cli import main
from bsgp.data.encoding.standardise import Standardiser
from bsgp.experiments.datasets.folds import fold_rows, num_train_rows, split
from bsgp.experiments.datasets.named import UCI, Schema, available, data_folder, load_named, schemas

# first 12 hex digits of the sha256 of the test rows as little-endian int64, from the data's manifest, folds 0 to 7
FOLDS = {
    "boston": "67d3a3f26ef1 8deb62a40344 0614d32f3864 bfb4ca877f85 109c6b343e49 7d80bd464af6 c36a63b66d00 09e3156607bd",
    "concrete": (
        "73b9d82ed9f9 37aefb06e82e 677caf349d73 8364850099ec ad91d661f62e afb66a331164 10b4960988ce d34b88f04aa0"
    ),
    "energy": "2db3b5f352e6 69f08a3f1763 36dbb96471b9 6be1a1cf98f3 6f01b544678e 2a3654975b8a 5dc710f0b6f9 72fad70a840d",
    "kin8nm": "09d3a6b4aba9 01a87d5b6027 65ae8a2cdc8e 96bdf51dfa54 6dcf68003233 c8314cbb7039 45dd3ee59cd2 fdde7a41d9d1",
    "naval": "b179ba3b4b93 921ad64edc75 7fcf725ad9eb 4547fd5c2286 67ce54bc77ba 2ee6acf59a05 27b515dac463 2ae82341ae82",
    "powerplant": (
        "bdf35e4baae7 23e0bca753c0 0f4fc85c43c8 b1db7b5322af 213f6f8d8a4a 9514a9738994 b16fb609f143 4a04b5a6921c"
    ),
    "protein": (
        "57be1266d69b 3936d4e20a63 dae7cf0dee2b f1cd8c8f57ba 0a5f775f1913 87bb15d46b6d e38cb5dbc9c7 5634edd4bbae"
    ),
    "yacht": "33553dd38632 ba4e123b09eb 555a59daf2c0 c965b8f4ef82 e6ae22e584f1 42030c2fbced fe5b7c6fe912 b382075e4a21",
}


@pytest.mark.parametrize("name", UCI)
def test_folds_are_the_authors_bit_for_bit(name):
    for fold, expected in enumerate(FOLDS[name].split()):
        train, test = fold_rows(schemas()[name].rows, fold)
        digest = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()
        assert digest[:12] == expected
        assert len(train) == num_train_rows(schemas()[name].rows)
        assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(schemas()[name].rows))


@pytest.mark.parametrize("name", [*UCI, "banana", "higgs"])
def test_named_sets_load_in_their_schema(name, folder):
    data = load_named(name, folder)
    assert data.X.shape == (data.schema.rows, len(data.schema.inputs))
    assert data.y.shape == (data.schema.rows, len(data.schema.targets))
    assert np.isfinite(data.X).all()
    assert set(data.other) == set(data.schema.other)


def test_two_outputs_where_the_paper_has_two():
    assert {name for name in UCI if len(schemas()[name].targets) == 2} == {"energy", "naval"}


def test_every_set_of_the_folder_is_seen(folder):
    assert all(one.state == "found" for one in available(folder))


def test_a_missing_damaged_or_unknown_set_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no such file.*Yacht"):
        load_named("yacht", tmp_path)
    with gzip.open(tmp_path / "yacht.csv.gz", "wt") as file:
        file.write("a,b\n1,2\n")
    with pytest.raises(ValueError, match="checksum"):
        load_named("yacht", tmp_path)
    assert {one.schema.name: one.state for one in available(tmp_path)}["yacht"] == "wrong checksum"
    with pytest.raises(ValueError, match="one of"):
        load_named("iris", tmp_path)
    with pytest.raises(ValueError, match="BSGP_DATA"):
        data_folder(tmp_path / "nowhere")


def test_without_a_folder_the_sets_are_still_listed(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("BSGP_DATA", raising=False)
    (tmp_path / "main").mkdir()
    (tmp_path / "shared" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "main")  # no folder beside the repository is ever used
    with pytest.raises(ValueError, match=r"--data-dir.*BSGP_DATA.*bsgp data list.*come from"):
        data_folder()
    with pytest.raises(ValueError, match="BSGP_DATA"):
        load_named("yacht")
    assert {one.state for one in available()} == {"no folder"}
    main(["data", "list"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in schemas())
    assert "--data-dir" in printed
    assert "BSGP_DATA" in printed


def test_a_file_of_another_schema_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "toy.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    toy = Schema("toy", "toy.csv", 2, ("a",), ("c",), (), "regression", digest, "nowhere")
    monkeypatch.setattr("bsgp.experiments.datasets.named.schemas", lambda: {"toy": toy})
    with pytest.raises(ValueError, match=r"must hold 2 rows of \['a', 'c'\]"):
        load_named("toy", tmp_path)


def test_statistics_come_from_training_rows_by_default(rng):
    X, y = rng.standard_normal((50, 3)) * 4 + 2, rng.standard_normal((50, 1))
    train, test = fold_rows(50, 1)
    ours, theirs = split(X, y, 1), split(X, y, 1, full_data_x=True)
    assert_allclose(ours.X.mean(axis=0), 0, atol=1e-12)
    assert_allclose(theirs.x_units.mean, X.mean(axis=0))
    assert_allclose(ours.x_units.inverse(ours.X_test), X[test])
    assert_allclose(theirs.y_units.mean, y[train].mean(axis=0))


def test_constant_columns_are_centred_and_not_divided(rng):
    X = np.column_stack([np.full(20, 288.0), rng.standard_normal(20)])
    units = Standardiser.fit(X)
    assert_array_equal(units.transform(X)[:, 0], 0.0)
    assert_allclose(units.inverse(units.transform(X)), X)
