"""Arrays as a source of rows, and minibatches of row numbers."""

import numpy as np
from numpy.testing import assert_array_equal

from bsgp.data.store.minibatches import Minibatches
from bsgp.data.store.sources import ArraySource, as_source


def test_arrays_are_a_source(rng):
    X, y = rng.normal(size=(20, 3)), np.arange(20.0)[:, None]
    source = as_source(X, y)
    assert as_source(source) is source
    assert (source.num_rows, source.num_inputs, source.num_targets) == (20, 3, 1)
    some = source.some_rows(7, 3)
    rows = some.y[:, 0].astype(int)
    assert len(set(rows)) == 7
    assert_array_equal(some.X, X[rows])
    assert_array_equal(source.some_rows(7, 3).y, some.y)
    assert not np.array_equal(source.some_rows(7, 4).y, some.y)
    assert sorted(source.some_rows(100, 0).y[:, 0]) == list(range(20))


def test_the_fingerprint_of_arrays_depends_on_values_shape_and_precision():
    X, y = np.arange(6.0).reshape(3, 2), np.arange(3.0)[:, None]
    sources = [
        ArraySource(X, y),
        ArraySource(X[::-1], y),
        ArraySource(X, -y),
        ArraySource(X.astype(np.float32), y),
        ArraySource(np.arange(6.0).reshape(6, 1), y),
    ]
    assert len({source.fingerprint for source in sources}) == len(sources)
    assert ArraySource(np.asfortranarray(X), y.copy()).fingerprint == sources[0].fingerprint


def test_skipped_minibatches_are_those_that_would_be_taken():
    taken, skipped = (Minibatches(10, 4, seed=2) for _ in range(2))
    rows = taken.take(9)
    skipped.skip(5)
    assert_array_equal(skipped.take(4), rows[5:])
    epochs = rows[:8].reshape(4, 8)  # two batches of four per epoch; its last two rows are skipped
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert set(rows.ravel()) == set(range(10))
