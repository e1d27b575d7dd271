"""Summaries over chunks agree with what is learned from the whole table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import message

from bsgp.data.encoding.checks import OddValue
from bsgp.data.encoding.schema import MAX_CATEGORIES, InputSchema
from bsgp.data.encoding.summaries import RowSample, TableSummary
from bsgp.data.encoding.target_summary import TargetState, TargetSummary
from bsgp.data.encoding.targets import Targets, targets_of, task_of
from bsgp.data.tables.columns import Column, Table, column_from_values


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
        np.array([1, 2], "m8[D]"),
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
    summary = TableSummary(["x"], odd={"x": OddValue(500, "oops")})
    many = np.array([str(at) for at in range(60)], object)
    assert "most values are numbers, but row 500 holds `oops`" in message(summary.add, table(x=many))


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


def target(values, task=None, rows=7, odd=None) -> tuple[TargetSummary, np.ndarray]:
    whole = table(y=values)
    summary = TargetSummary(["y"], task, odd)
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
    assert state.labels[summary.class_positions(state)[codes.astype(int)].astype(int)].tolist() == expected.tolist()
    assert TargetState.from_json(state.to_json()) == state


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        (np.array([1.0] * 9 + [np.nan]), None, "`y` must be known in every row, got a missing value in row 10."),
        (np.array([1.0] * 9 + [-np.inf]), None, "`y` must hold finite numbers of at most 1e+100, got -inf in row 10."),
        (np.array([1.0] * 9 + [np.inf]), "classification", "got inf in row 10. Correct or drop such rows."),
        (np.full(3, np.datetime64("2020-12-31")), None, "got dates such as `2020-12-31`. Turn them into numbers"),
        (np.full(3, np.timedelta64(3, "s")), None, "got durations such as `3 seconds`. Turn them into numbers"),
        (np.array(["1"] * 8 + ["a"], object), "regression", "got `a` in row 9. Convert it to numbers, or fit a class"),
        (np.array([0.0] * 8 + [0.5]), "classification", "got fractions such as 0.5 in row 9. Round them"),
        (np.arange(101.0), "classification", "`y` must have at most 100 classes, got more."),
        (np.array([f"w{at}" for at in range(101)], object), None, "`y` must have at most 100 classes, got more."),
        (np.array(["1", "2", "3", "x"] * 9, object), None, "got both: most values are numbers, but row 4 holds `x`."),
        (np.ones(9), None, "`y` must vary, got 1 in every row."),
        (np.array(["a"] * 9, object), None, "`y` must have at least two classes, got `a` in every row."),
        (np.array([True] * 9), None, "`y` must have at least two classes, got `True` in every row."),
        (np.full(9, 3.0), "classification", "`y` must have at least two classes, got `3` in every row."),
    ],
)
def test_bad_targets_are_refused_in_the_same_words_in_memory_and_in_chunks(values, task, said):
    def in_memory() -> None:
        targets, _ = targets_of(table(y=values), ["y"])
        targets.training_values(task_of(targets, task))

    found = message(in_memory)
    assert said in found
    odd = {"y": OddValue(9, "a")}  # found by a first pass over the chunks
    assert message(lambda: target(values, task, odd=odd)[0].state()) == found


def test_new_targets_may_be_what_training_refuses():
    """A single row, for example, is constant and has one class."""
    for values, task in (
        (np.ones(3), "regression"),
        (np.ones(3), "classification"),
        (np.arange(200.0), "classification"),
    ):
        assert targets_of(table(y=values), ["y"])[0].values(task).tolist() == values.tolist()
    words = np.array(["1", "2", "3", "x"], object)
    assert targets_of(table(y=words), ["y"])[0].values("classification").tolist() == words.tolist()


def test_several_targets(rng):
    whole = table(a=rng.normal(size=9), b=rng.normal(size=9))
    summary = TargetSummary(["b", "a"], None)
    summary.add(whole)
    assert summary.state().names == ("b", "a")
    assert_allclose(summary.state().mean, [whole.columns[name].values.mean() for name in "ba"])
    said = message(TargetSummary(["a", "b"], "classification").add, whole)
    assert "must be one column for a classification, got `a`, `b`" in said
    assert message(targets_of(whole, ["a", "b"])[0].values, "classification") == said


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
