"""What is learned over chunks is what is learned at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from bsgp.data.schema import MAX_CATEGORIES, InputSchema
from bsgp.data.summaries import RowSample, TableSummary, TargetState, TargetSummary
from bsgp.data.tables import Column, Table, column_from_values
from bsgp.data.targets import Targets
from refusals import message


def table(**columns) -> Table:
    made = {name: column_from_values(name, values) for name, values in columns.items()}
    return Table(made, len(next(iter(made.values())).values))


def in_chunks(whole: Table, rows: int):
    return (whole.take(slice(start, start + rows)) for start in range(0, whole.num_rows, rows))


def summarised(whole: Table, rows: int) -> TableSummary:
    summary = TableSummary(list(whole.columns))
    for chunk in in_chunks(whole, rows):
        summary.add(chunk)
    return summary


def assert_same_schema(found: tuple, expected: tuple) -> None:
    (schema, notes), (wanted, wanted_notes) = found, expected
    assert notes == wanted_notes
    assert schema.dropped == wanted.dropped
    for one, other in zip(schema.features, wanted.features, strict=True):
        exact = ("name", "kind", "categories", "frequencies", "has_missing", "missing_share", "low", "high")
        assert [getattr(one, name) for name in exact] == [getattr(other, name) for name in exact]
        assert_allclose([one.fill, one.mean, one.scale], [other.fill, other.mean, other.scale], rtol=1e-9, atol=1e-300)


def mixed(rng, num_rows: int = 200) -> Table:
    number = rng.normal(size=num_rows)
    holes = np.where(rng.random(num_rows) < 0.2, np.nan, number)
    late = np.where(np.arange(num_rows) < num_rows // 2, np.nan, number)
    words = rng.choice(["red", "green", "blue"], num_rows)
    return table(
        number=number,
        again=number.copy(),
        holes=holes,
        late=late,
        seconds=1.6e9 + number,
        tiny=1e-40 * number,
        constant=np.full(num_rows, 0.1),
        half=np.where(holes == holes, 3.0, np.nan),
        none=np.full(num_rows, np.nan),
        truth=number > 0,
        as_number=(number > 0).astype(float),
        word=words.astype(object),
        same_word=words.astype(object),
        gaps=np.where(rng.random(num_rows) < 0.1, None, words.astype(object)),
        side=rng.choice(["left", "right"], num_rows).astype(object),
        day=np.full(num_rows, np.datetime64("2020-12-31")),
        nothing=np.full(num_rows, None, dtype=object),
    )


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_the_schema_is_that_of_the_whole_table(rng, rows):
    whole = mixed(rng)
    assert_same_schema(summarised(whole, rows).schema(), InputSchema.learn(whole))


@settings(max_examples=50)
@given(
    values=st.lists(st.one_of(st.none(), st.floats(-1e90, 1e90)), min_size=2, max_size=30),
    words=st.lists(st.sampled_from(["a", "b", "1", None]), min_size=30, max_size=30),
    rows=st.integers(1, 31),
)
def test_any_numbers_and_words(values, words, rows):
    numbers = np.array([np.nan if value is None else value for value in values])
    whole = Table(
        {
            "x": Column("number", numbers),
            "w": column_from_values("w", np.array([*words[: len(values)], None], object)[:-1]),
            "t": column_from_values("t", np.arange(len(values)) % 2.0),
        },
        len(values),
    )
    expected = InputSchema.learn(whole)
    schema, notes = summarised(whole, rows).schema()
    assert notes == expected[1]
    for one, other in zip(schema.features, expected[0].features, strict=True):
        assert one.encoded_names == other.encoded_names
        size = np.nanmax(np.abs(numbers), initial=0.0) + 1.0
        assert_allclose([one.fill, one.mean], [other.fill, other.mean], rtol=1e-9, atol=1e-13 * size)


def test_a_large_offset_keeps_its_spread(rng):
    whole = table(x=1e9 + rng.normal(size=5000))
    (feature,) = summarised(whole, 100).schema()[0].features
    assert_allclose([feature.mean, feature.scale], [whole.columns["x"].values.mean(), whole.columns["x"].values.std()])


@pytest.mark.parametrize(("first", "second"), [((1.0, 2.0), (2.0, 1.0)), ((0.0, 1.0), (1.0, 2.0)), ((1.0, 4.0),) * 2])
def test_columns_that_differ_in_few_rows_or_in_order_are_not_the_same(first, second):
    base = np.tile(first, 50)
    other = np.tile(second, 50)
    one_off = base.copy()
    one_off[7] = 9.0
    schema, _ = summarised(table(a=base, b=other, c=one_off, d=base[::-1].copy()), 10).schema()
    expected, _ = InputSchema.learn(table(a=base, b=other, c=one_off, d=base[::-1].copy()))
    assert (schema.names, schema.dropped) == (expected.names, expected.dropped)


@pytest.mark.parametrize(
    "column",
    [
        np.array([f"w{at}" for at in range(MAX_CATEGORIES + 1)], object),
        np.array(["x", *(str(at) for at in range(99))], object),
        np.array(["x", *(f"{at}.5" for at in range(60))], object),
        np.array([f"2020-01-{at % 28 + 1}" for at in range(60)], object),
        np.array([1.0, 2.0, np.inf, 1e200]),
    ],
)
def test_what_cannot_be_learned_is_refused_in_the_same_words(column):
    whole = table(x=column)
    assert message(lambda: summarised(whole, len(column)).schema()) == message(InputSchema.learn, whole)


def test_refused_early_and_with_the_row_of_the_whole_table():
    summary = TableSummary(["x"])
    summary.add(table(x=np.arange(10.0)))
    assert "got inf in row 13" in message(summary.add, table(x=np.array([1.0, 2.0, np.inf])))
    summary = TableSummary(["x"], odd={"x": (500, "oops")})
    many = np.array([str(at) for at in range(60)], object)
    assert "numbers, but for `oops` in row 500" in message(summary.add, table(x=many))


@pytest.mark.parametrize(("first", "second"), [(np.ones(2), ["a", "b"]), (["a", "b"], np.ones(2)), ([True], [2.0])])
def test_chunks_of_kinds_that_do_not_agree(first, second):
    summary = TableSummary(["x"])
    summary.add(table(x=first))
    assert "Read it as text" in message(summary.add, table(x=second))


def test_a_sample_is_uniform(rng):
    picked = np.zeros(60)
    for _ in range(2000):
        sample = RowSample(10, 2, rng)
        for start in range(0, 60, 7):
            rows = np.arange(start, min(start + 7, 60), dtype=float)
            sample.add([rows, -rows])
        kept = sample.column(0)
        assert len(set(kept)) == 10
        assert (sample.column(1) == -kept).all()
        picked[kept.astype(int)] += 1
    expected = 2000 / 6
    assert np.abs(picked - expected).max() < 4.5 * np.sqrt(expected * 5 / 6)


def test_quantiles_of_many_rows_are_near(rng):
    whole = table(x=rng.normal(size=20_000))
    summary = TableSummary(["x"], sample_rows=5000)
    for chunk in in_chunks(whole, 3000):
        summary.add(chunk)
    (feature,) = summary.schema()[0].features
    assert_allclose([feature.fill, feature.low, feature.high], [0.0, -1.645, 1.645], atol=0.08)


# -- targets --------------------------------------------------------------------------------------------------


def target(values, task=None, rows=7) -> tuple[TargetSummary, np.ndarray]:
    whole = table(y=values)
    summary = TargetSummary(["y"], task)
    return summary, np.concatenate([summary.add(chunk)[0] for chunk in in_chunks(whole, rows)])


def test_numbers_are_standardised(rng):
    values = 1e6 + rng.normal(size=100)
    summary, raw = target(values)
    state = summary.state()
    assert (summary.task, state.task) == ("regression", "regression")
    assert_allclose([*state.mean, *state.scale], [values.mean(), values.std()], rtol=1e-9)
    assert raw.tolist() == values.tolist()
    assert TargetState.from_json(state.to_json()) == state


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.array(["no", "yes", "maybe"] * 10, object), None),
        (np.array([True, False, True]), None),
        (np.array([5.0, -1.0, 2e15, 5.0] * 9), "classification"),
    ],
)
def test_classes_are_sorted(values, task):
    summary, codes = target(values, task)
    state = summary.state()
    expected = Targets({"y": column_from_values("y", values)}).values("classification")
    assert state.labels.dtype.kind == expected.dtype.kind
    assert state.labels.tolist() == np.unique(expected).tolist()
    assert state.labels[summary.codes(state)[codes.astype(int)].astype(int)].tolist() == expected.tolist()
    assert TargetState.from_json(state.to_json()) == state


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        (np.array([1.0] * 9 + [np.nan]), None, "missing value in row 10"),
        (np.array([1.0] * 9 + [np.inf]), None, "got inf in row 10"),
        (np.full(3, np.datetime64("2020-12-31")), None, "got dates"),
        (np.array(["a", "b"], object), "regression", "Pass `--task classification`"),
        (np.array([0.0, 0.5]), "classification", "fractions such as 0.5"),
        (np.arange(101.0), "classification", "at most 100 classes"),
        (np.array([f"w{at}" for at in range(101)], object), None, "at most 100 classes"),
        (np.array(["1", "2", "3", "x"], object), None, "but for `x` in row 4"),
        (np.ones(9), None, "must vary, got 1 in every row"),
        (np.array(["a"] * 9, object), None, "two classes, got `a`"),
    ],
)
def test_bad_targets(values, task, said):
    assert said in message(lambda: target(values, task)[0].state())


def test_several_targets(rng):
    whole = table(a=rng.normal(size=9), b=rng.normal(size=9))
    summary = TargetSummary(["b", "a"], None)
    summary.add(whole)
    assert summary.state().names == ("b", "a")
    assert_allclose(summary.state().mean, [whole.columns[name].values.mean() for name in "ba"])
    assert "one column for a classification" in message(TargetSummary(["a", "b"], "classification").add, whole)


@pytest.mark.parametrize(
    "damage",
    [
        {"names": []},
        {"kind": "other"},
        {"mean": [1.0, 2.0]},
        {"scale": [0.0]},
        {"classes": [1, "a"]},
        {"more": 1},
        {"mean": ["x"]},
    ],
)
def test_damaged_states_are_refused(damage):
    state = TargetState(("y",), (1.0,), (2.0,)).to_json()
    assert "damaged" in message(TargetState.from_json, state | damage)
    assert "damaged" in message(TargetState.from_json, [state])
