"""Weighted rows of tables, in memory and on disk: a row of weight w is learned from as w rows."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from refusals import message

from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.summaries import TableSummary
from bsgp.data.encoding.weighted import weighted_median, weighted_quantiles
from bsgp.data.store.convert import Sizes
from bsgp.data.store.store import Store, open_store
from bsgp.data.tables.columns import from_frame

SMALL = Sizes(chunk_rows=7, bucket_bytes=600, block_rows=10)
NUM_ROWS = 60


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = pd.DataFrame({"number": rng.normal(50.0, 3.0, NUM_ROWS), "truth": rng.random(NUM_ROWS) < 0.3})
    columns["word"] = rng.choice(["red", "green", "blue"], NUM_ROWS)
    columns["pair"] = rng.choice(["yes", "no"], NUM_ROWS)
    columns["holes"] = columns["number"].where(rng.random(NUM_ROWS) < 0.7) ** 2
    columns["gaps"] = columns["word"].where(rng.random(NUM_ROWS) < 0.7)
    return columns


def assert_alike(one: InputSchema, other: InputSchema) -> None:
    for a, b in zip(one.features, other.features, strict=True):
        assert (a.name, a.kind, a.categories, a.has_missing) == (b.name, b.kind, b.categories, b.has_missing)
        moments = [[x.fill, x.mean, x.scale, x.missing_share, *x.frequencies] for x in (a, b)]
        assert_allclose(*moments, rtol=1e-9)


def test_the_schema_of_weighted_rows_is_that_of_repeated_rows():
    weight = np.random.default_rng(1).integers(1, 5, NUM_ROWS)
    repeated = frame().iloc[np.repeat(np.arange(NUM_ROWS), weight)]
    weighted, notes = InputSchema.learn(from_frame(frame()), weight.astype(float))
    expected, _ = InputSchema.learn(from_frame(repeated))
    assert_alike(weighted, expected)
    assert "18 missing values (30%)" in notes[0]  # rows are counted, not their weight


def test_a_table_in_chunks_has_the_schema_of_the_whole_table():
    weight, table = np.random.default_rng(1).uniform(0.1, 4.0, NUM_ROWS), from_frame(frame())
    summary = TableSummary(list(table.columns))
    for rows in np.split(np.arange(NUM_ROWS), [13, 14, 40]):
        summary.add(table.take(rows), weight[rows])
    schema, notes = summary.schema()
    expected, expected_notes = InputSchema.learn(table, weight)
    assert_alike(schema, expected)
    assert notes == expected_notes
    assert [(one.low, one.high) for one in schema.features] == [(one.low, one.high) for one in expected.features]


@pytest.mark.parametrize("seed", range(20))
def test_a_weighted_median_is_that_of_repeated_values(seed):
    rng = np.random.default_rng(seed)
    values, weight = rng.integers(0, 9, 7).astype(float), rng.integers(1, 4, 7)
    assert weighted_median(values, 0.1 * weight) == np.median(np.repeat(values, weight))
    low, high = weighted_quantiles(values, [0.0, 1.0], weight)
    assert (low, high) == (values.min(), values.max())


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    rows = frame().assign(row=np.arange(NUM_ROWS), w=np.random.default_rng(2).integers(0, 4, NUM_ROWS) / 3)
    rows.to_csv(folder / "weighted.csv", index=False)
    rows[rows["w"] > 0].to_csv(folder / "kept.csv", index=False)
    rows.assign(w=rows["w"].where(rows["row"] != 5)).to_csv(folder / "unknown.csv", index=False)
    rows.assign(w=-rows["w"]).to_csv(folder / "negative.csv", index=False)
    rows.assign(w=0).to_csv(folder / "zeros.csv", index=False)
    return folder


def opened(tables, name, **options) -> Store:
    options = {"targets": ["row"], "cache": tables / "cache", "sizes": SMALL, **options}
    return open_store(tables / f"{name}.csv", **options)


def test_a_store_holds_the_weight_of_every_row(tables):
    store, plain = opened(tables, "weighted", weights="w"), opened(tables, "weighted", ignore=["w"])
    rows = pd.read_csv(tables / "weighted.csv")
    kept = rows[rows["w"] > 0]
    assert (store.num_rows, store.num_inputs) == (len(kept), plain.num_inputs)
    assert store.total_weight == pytest.approx(kept["w"].sum())
    assert plain.total_weight is None
    assert any("of weight zero are left out" in note for note in store.notes)
    found = [store.some_rows(1000, 0), store.stream(4, 0).read(0, 9), store.stream(4, 0, (1, 2)).read(0, 3)]
    mean, scale = store.target_state.mean[0], store.target_state.scale[0]
    assert mean == pytest.approx(np.average(kept["row"], weights=kept["w"]))
    for some in found:
        number = np.rint(some.y[..., 0] * scale + mean).astype(int)
        assert_allclose(some.weight, rows["w"].to_numpy()[number], rtol=1e-6)
    assert plain.some_rows(5, 0).weight is None


def test_a_store_is_that_of_the_rows_above_zero(tables):
    store, kept = opened(tables, "weighted", weights="w"), opened(tables, "kept", weights="w")
    assert_alike(store.schema, kept.schema)  # to rounding: chunks end elsewhere
    assert_allclose(
        store.target_state.mean + store.target_state.scale, kept.target_state.mean + kept.target_state.scale
    )
    weight = pd.read_csv(tables / "kept.csv")["w"].to_numpy()
    schema, _ = InputSchema.learn(from_frame(pd.read_csv(tables / "kept.csv").drop(columns=["w", "row"])), weight)
    for one, other in zip(store.schema.features, schema.features, strict=True):
        assert_allclose([one.fill, one.mean, one.scale], [other.fill, other.mean, other.scale], rtol=1e-6)
    every = [np.sort(one.some_rows(1000, 0).weight) for one in (store, kept)]
    assert_array_equal(*every)


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("unknown", "w", "`w` must hold finite weights of at least zero, got nan in row 6. Correct such rows."),
        ("negative", "w", "`w` must hold finite weights of at least zero, got -"),
        ("zeros", "w", "`w` must be above zero in some row, got zeros only. Choose another column."),
        ("kept", "word", "`word` must hold weights, got text. Convert it to numbers."),
        ("kept", "mass", "The table must have the columns that you name, got no `mass`."),
    ],
)
def test_odd_columns_of_weights_are_refused(tables, name, column, expected):
    assert expected in message(lambda: opened(tables, name, weights=column))
