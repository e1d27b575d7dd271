"""Encoding of tables: learned once, applied to every later table the same way, or refused in one line."""

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import message

from bsgp.data.encoding.feature import Feature
from bsgp.data.encoding.schema import MAX_CATEGORIES, InputSchema
from bsgp.data.tables.columns import Table, from_frame
from bsgp.data.tables.files import read_table


def table(**columns) -> Table:
    return from_frame(pd.DataFrame(columns))


PEOPLE = dict(
    age=[20.0, None, 40.0, 90.0],
    member=[True, False, True, True],
    colour=["red", "blue", None, "green"],
    side=["left", "right", "left", "left"],
)


@pytest.fixture
def people() -> InputSchema:
    return InputSchema.learn(table(**PEOPLE))[0]


# -- learning -------------------------------------------------------------------------------------------------


def test_what_is_learned(people):
    age, member, colour, side = people.features
    assert (age.kind, age.fill, age.median, age.has_missing) == ("number", 40.0, 40.0, True)
    assert (age.mean, age.scale) == (np.mean([20, 40, 40, 90]), np.std([20, 40, 40, 90]))
    assert (age.low, age.high) == tuple(np.quantile([20, 40, 90], [0.05, 0.95]))
    assert (member.kind, member.fill, member.has_missing) == ("boolean", 0.75, False)
    assert (colour.kind, colour.categories, colour.has_missing) == ("category", ("blue", "green", "red"), True)
    assert colour.frequencies == (0.25, 0.25, 0.25)
    assert side.categories == ("left", "right")
    assert people.names == ("age", "member", "colour", "side")
    assert people.encoded_names == (
        "age",
        "age is missing",
        "member",
        "colour = blue",
        "colour = green",
        "colour = red",
        "colour is missing",
        "side = right",
    )
    assert people.width == 8
    assert [people.columns_of(name) for name in people.names] == [slice(0, 2), slice(2, 3), slice(3, 7), slice(7, 8)]
    assert "`name` must be an input column, got `size`" in message(people.columns_of, "size")


def test_the_matrix_by_hand(people):
    X, notes = people.encode(table(**PEOPLE))
    assert notes == []
    age = (np.array([20, 40, 40, 90]) - 47.5) / np.std([20, 40, 40, 90])
    one_hot = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]) - 0.25
    expected = np.column_stack(
        [
            age,
            [-0.25, 0.75, -0.25, -0.25],
            (np.array([1, 0, 1, 1]) - 0.75) / np.sqrt(0.75 * 0.25),
            one_hot,
            (np.array([0, 1, 0, 0]) - 0.25) / np.sqrt(0.25 * 0.75),
        ]
    )
    assert X.dtype == np.float64
    assert_allclose(X, expected, atol=1e-15)


def test_notes_say_what_was_done():
    values = np.arange(200.0)
    with_gaps = np.where(values < 6, np.nan, values)
    data = table(
        a=values,
        gaps=with_gaps,
        one=np.where(values == 3, np.nan, -values),
        words=[None if v < 50 else str(v % 2 == 0) for v in values],
        flag=pd.array([None if v < 2 else v < 101 for v in values], "boolean"),
        again=values,
        same=np.ones(200),
        none=np.full(200, np.nan),
    )
    schema, notes = InputSchema.learn(data)
    assert notes == [
        "`gaps`: 6 missing values (3%) are filled with the median 102.5 and marked by an indicator.",
        "`one`: 1 missing value (under 1%) is filled with the median -100 and marked by an indicator.",
        "`words`: 50 missing values (25%) are treated as one more category.",
        "`flag`: 2 missing values (1%) are filled with the mean 0.5 and marked by an indicator.",
        "`again` is left out: same as `a`.",
        "`same` is left out: constant.",
        "`none` is left out: all values are missing.",
    ]
    assert [note.column for note in notes] == ["gaps", "one", "words", "flag", "again", "same", "none"]
    assert schema.dropped == {"again": "same as `a`", "same": "constant", "none": "all values are missing"}
    assert schema.names == ("a", "gaps", "one", "words", "flag")


def test_copies_are_found_in_every_kind():
    data = table(
        flag=[True, False, True, False],
        number=[1, 0, 1, 0],
        minus=[1.0, -0.0, 1.0, 0.0],
        word=["x", None, "y", "x"],
        category=pd.Categorical(["x", None, "y", "x"]),
        gap=[1.0, np.nan, 2.0, 3.0],
        other_gap=[1.0, np.nan, 2.0, 4.0],
        gap_too=[1.0, np.nan, 2.0, 3.0],
    )
    schema, _ = InputSchema.learn(data)
    assert schema.names == ("flag", "word", "gap", "other_gap")
    assert schema.dropped == {
        "number": "same as `flag`",
        "minus": "same as `flag`",
        "category": "same as `word`",
        "gap_too": "same as `gap`",
    }


def test_a_constant_with_missing_values_is_kept():
    data = table(number=[5.0, np.nan, 5.0], word=["x", "x", None])
    X, _ = (schema := InputSchema.learn(data)[0]).encode(data)
    assert schema.encoded_names == ("number", "number is missing", "word = x", "word is missing")
    assert_allclose(X[:, 0], 0)
    assert_allclose(X[:, 1], [-1 / 3, 2 / 3, -1 / 3])


def test_rounding_is_no_variation():
    column = np.full(10, 0.3)
    column[::2] = 0.1 + 0.2
    assert column[0] != column[1]
    assert InputSchema.learn(table(a=column, b=np.arange(10)))[0].dropped == {"a": "constant"}


def test_what_cannot_be_learned():
    many = [f"w{row}" for row in range(MAX_CATEGORIES + 1)]
    late = [str(row) for row in range(99)] + ["1,234"]
    assert "at most 50 different values to be a category, got 51. Group" in message(InputSchema.learn, table(id=many))
    assert "got 100 (most values are numbers, but row 100 holds `1,234`). Correct it" in message(
        InputSchema.learn, table(id=late)
    )
    assert "--ignore" in message(InputSchema.learn, table(id=many))
    days = pd.date_range("2020-01-01", periods=3)
    assert "`day` must hold numbers or categories, got dates such as `2020-01-01" in (
        text := message(InputSchema.learn, table(day=days))
    )
    assert "days since a start" in text
    assert "leave the column out (`--ignore` in `bsgp fit`)" in text
    assert (
        "`a` must hold numbers or categories, got durations such as `0:01:00`. Turn them into numbers (such as sec"
        in (message(InputSchema.learn, table(a=pd.to_timedelta([60, 90], "s"))))
    )
    assert "`a` must hold finite numbers of at most 1e+100, got inf in row 2" in message(
        InputSchema.learn, table(a=[1, np.inf, -np.inf])
    )
    assert "got -2e+100 in row 3" in message(InputSchema.learn, table(a=[1.0, np.nan, -2e100]))
    assert "must have a column that varies, got none (`a`: constant; `b`: all values are missing)" in message(
        InputSchema.learn, table(a=[1, 1], b=[None, None])
    )
    assert "no columns" in message(InputSchema.learn, table(a=[1, 2]).without(["a"]))
    assert len(InputSchema.learn(table(id=many[:-1]))[0].features[0].categories) == MAX_CATEGORIES


def test_a_constant_date_is_left_out_like_other_constants():
    data = table(day=pd.to_datetime(["2020-01-01"] * 2), a=[1, 2])
    assert InputSchema.learn(data)[0].dropped == {"day": "constant"}


# -- other tables ---------------------------------------------------------------------------------------------


def test_columns_are_found_by_name(people):
    X, _ = people.encode(table(**PEOPLE))
    turned, _ = people.encode(table(**dict(reversed(PEOPLE.items()))))
    assert_array_equal(turned, X)


def test_missing_and_unknown_columns_are_all_named(people):
    text = message(people.encode, table(side=["left"], member=[True]))
    assert "got no `age`, `colour` among `side`, `member`" in text
    extra = table(**PEOPLE, y=[1, 2, 3, 4], id=list("abcd"))
    text = message(people.encode, extra)
    assert "known from training, got `y`, `id`. Remove them: pass only the columns of training." in text
    assert "--ignore" not in text  # `bsgp predict` and Python have no such option
    assert "got `y`. Remove" in message(people.encode, extra, ["id"])
    X, _ = people.encode(extra, ignore={"id", "y", "elsewhere"})
    assert_array_equal(X, people.encode(table(**PEOPLE))[0])


def test_columns_left_out_in_training_are_optional():
    schema, _ = InputSchema.learn(table(a=[1, 2], same=[1, 1]))
    for new in (table(a=[1, 2]), table(same=["anything", "at all"], a=[1, 2])):
        assert_allclose(schema.encode(new)[0][:, 0], [-1, 1])


def test_missing_values_that_training_did_not_have_are_filled_and_noted():
    train = table(
        number=[1.0, 2.0, 9.0, 4.0],
        flag=[True, False, True, True],
        word=["a", "b", "c", "a"],
        pair=["x", "y", "x", "x"],
    )
    schema, _ = InputSchema.learn(train)
    X, notes = schema.encode(table(**{name: [None] for name in train.columns}))
    assert_allclose(X, [[(3.0 - 4.0) / np.std([1, 2, 9, 4]), 0, 0, 0, 0, 0]], atol=1e-15)
    assert notes == [
        "`number`: 1 missing value (100%) is filled with the median 3; training had none.",
        "`flag`: 1 missing value (100%) is filled with the mean 0.75; training had none.",
        "`word`: 1 missing value (100%) is filled with the average category; training had none.",
        "`pair`: 1 missing value (100%) is filled with the average category; training had none.",
    ]
    assert [note.column for note in copy.deepcopy(notes)] == ["number", "flag", "word", "pair"]


def test_missing_values_of_training_are_a_category(people):
    X, notes = people.encode(table(**PEOPLE))
    block = X[2, people.columns_of("colour")]
    assert_allclose(block, [-0.25, -0.25, -0.25, 0.75])
    assert notes == []


def test_no_word_collides_with_a_missing_one():
    data = table(a=["missing", None, "nan", "x"])
    X, _ = InputSchema.learn(data)[0].encode(data)
    assert_allclose(X + 0.25, np.eye(4)[[0, 3, 1, 2]])


def test_an_unseen_category_is_named(people):
    new = table(**{**PEOPLE, "colour": ["red", None, "pink", "mauve"]})
    text = message(people.encode, new)
    assert (
        "`colour` must be one of the categories seen in training (`blue`, `green`, `red`), got `pink` in row 3" in text
    )
    many, _ = InputSchema.learn(table(id=[f"w{row}" for row in range(40)]))
    assert "`w17` and 30 more), got `w99` in row 1" in message(many.encode, table(id=["w99"]))


def test_another_kind_is_named_by_its_first_value(people):
    def said(**changed):
        return message(people.encode, table(**{**PEOPLE, **changed}))

    assert "`age` must hold numbers as in training, got `old` in row 2" in said(age=["7", "old", None, "older"])
    assert "`age` must hold numbers as in training, got dates" in said(age=pd.date_range("2020", periods=4))
    assert "`age` must hold numbers as in training, got durations" in said(age=pd.to_timedelta([1, 2, 3, 4], "D"))
    assert "`age` must hold finite numbers" in said(age=[1, 2, 3, np.inf])
    assert "`member` must hold true or false as in training, got 2 in row 4" in said(member=[0, 1, 1, 2])
    assert "`member` must hold true or false as in training, got `yes` in row 1" in said(
        member=["yes", "true", "x", "y"]
    )
    assert "got `7.5` in row 1" in said(colour=[7.5, 1, 2, 3])
    assert "got `True` in row 1" in said(colour=[True] * 4)


@pytest.mark.parametrize(
    ("train", "new", "meant"),
    [
        (["1", "2", "x"], [2.0, 1.0], ["2", "1"]),
        (["1", "2", "x"], [2, np.nan], ["2", None]),
        (["1.5", "2", "x"], [1.5, 2], ["1.5", "2"]),
        (["1.0", "2.0", "x"], [2.0, 1.0], ["2.0", "1.0"]),
        (["01", "02", "x"], [2, 1], ["02", "01"]),
        (["1", "01", "x"], [1], ["1"]),
        (["False", "True", "x"], [True, False], ["True", "False"]),
        (["FALSE", "TRUE", "x"], [True, False], ["TRUE", "FALSE"]),
        (["2020-01-01", "2020-01-02", "never"], pd.Series(["2020-01-02", "2020-01-01"]), ["2020-01-02", "2020-01-01"]),
        ([1.0, 2.0, 4.0], ["1", "004", " 2.0 "], [1, 4, 2]),
        ([1.0, 2.0, 4.0], [True, False], [1, 0]),
        ([True, False, True], [0, 1, np.nan], [False, True, None]),
        ([True, False, True], ["TRUE", "false", "0"], [True, False, False]),
    ],
)
def test_other_spellings_of_a_value_are_understood(train, new, meant):
    schema, _ = InputSchema.learn(table(a=train))
    assert_array_equal(schema.encode(table(a=new))[0], schema.encode_values("a", meant))


def test_a_number_that_names_two_categories_is_refused():
    schema, _ = InputSchema.learn(table(a=["1.0", "01", "x"]))
    assert "got `1` in row 1" in message(schema.encode, table(a=[1]))


def test_a_later_file_with_only_the_numbers_of_a_text_column(tmp_path):
    (tmp_path / "train.csv").write_text("a,b\n007,1\n12,2\nx,3\n")
    (tmp_path / "new.csv").write_text("b,a\n1,12\n1,12\n")
    schema, _ = InputSchema.learn(read_table(tmp_path / "train.csv"))
    X, _ = schema.encode(read_table(tmp_path / "new.csv"))
    assert_array_equal(X[:, schema.columns_of("a")], schema.encode_values("a", ["12", "12"]))
    assert_array_equal(X[:, schema.columns_of("b")], schema.encode_values("b", [1, 1]))


def test_values_of_one_column_are_its_block(people):
    X, _ = people.encode(table(**PEOPLE))
    for name, values in PEOPLE.items():
        assert_array_equal(people.encode_values(name, values), X[:, people.columns_of(name)])
        assert_array_equal(people.encode_values(name, np.array(values, object)), X[:, people.columns_of(name)])
    assert_array_equal(people.encode_values("age", np.array([90.0])), X[3:, :2])
    assert "input column" in message(people.encode_values, "size", [1])


# -- properties -----------------------------------------------------------------------------------------------

CELLS = st.tuples(
    st.one_of(st.none(), st.floats(-1e6, 1e6).map(lambda value: round(value, 3))),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.sampled_from(["red", "green", "blue", "1", ""])),
    st.sampled_from(["left", "right"]),
    st.floats(1e99, 1e100),
)
ROWS = st.lists(CELLS, min_size=3, max_size=12)


def drawn(rows) -> Table:
    columns = {f"c{at}": pd.Series(list(cells), dtype=object) for at, cells in enumerate(zip(*rows, strict=True))}
    return table(**columns, row=np.arange(len(rows)))


@settings(max_examples=50)
@given(rows=ROWS, order=st.permutations(["c0", "c1", "c2", "c3", "c4", "row"]))
def test_training_rows_are_centred_finite_and_found_in_any_order(rows, order):
    data = drawn(rows)
    schema, _ = InputSchema.learn(data)
    X, notes = schema.encode(data)
    assert notes == []
    assert X.shape == (len(rows), schema.width)
    assert np.isfinite(X).all()
    assert_allclose(X.mean(axis=0), 0, atol=1e-6)
    assert np.abs(X).max() <= np.sqrt(len(rows)) + 1e-6  # the largest possible standardised value
    assert_array_equal(schema.encode(data.select(order))[0], X)
    assert_array_equal(schema.encode(data.take(np.arange(len(rows))[::-1]))[0], X[::-1])


@settings(max_examples=50)
@given(rows=ROWS)
def test_a_schema_survives_json_to_the_last_digit(rows):
    data = drawn(rows)
    schema, _ = InputSchema.learn(data)
    saved = json.loads(json.dumps(schema.to_json(), allow_nan=False))
    assert saved == schema.to_json()
    again = InputSchema.from_json(saved)
    assert again == schema
    assert_array_equal(again.encode(data)[0], schema.encode(data)[0])


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved.pop("dropped"),
        lambda saved: saved.update(features=[]),
        lambda saved: saved.update(features=None),
        lambda saved: saved.update(dropped=[1]),
        lambda saved: saved.update(dropped={"a": 1}),
        lambda saved: saved["features"].append(saved["features"][0]),
        lambda saved: saved["features"].append("age"),
        lambda saved: saved["features"][0].pop("mean"),
        lambda saved: saved["features"][0].update(extra=1),
        lambda saved: saved["features"][0].update(kind="date"),
        lambda saved: saved["features"][0].update(name=3),
        lambda saved: saved["features"][0].update(mean=math.nan),
        lambda saved: saved["features"][0].update(mean="1"),
        lambda saved: saved["features"][0].update(scale=0.0),
        lambda saved: saved["features"][0].update(has_missing=1),
        lambda saved: saved["features"][0].update(missing_share=0.0),
        lambda saved: saved["features"][0].update(categories=["a"], frequencies=[1.0]),
        lambda saved: saved["features"][2]["categories"].reverse(),
        lambda saved: saved["features"][2]["categories"].append("zebra"),
        lambda saved: saved["features"][2].update(categories="blu"),
        lambda saved: saved["features"][2].update(frequencies=[0.5, 0.5, None]),
    ],
)
def test_a_damaged_schema_is_refused(people, damage):
    saved = json.loads(json.dumps(people.to_json()))
    assert InputSchema.from_json(saved) == people
    damage(saved)
    assert "damaged" in message(InputSchema.from_json, saved)


@pytest.mark.parametrize("saved", [None, [], "x", {}])
def test_what_was_never_a_schema_is_refused(saved):
    assert "damaged" in message(InputSchema.from_json, saved)


def test_most_fields_of_a_feature_have_defaults():
    assert Feature("a", "number").encoded_names == ("a",)
    assert Feature("a", "category", ("x", "y"), (0.5, 0.5), has_missing=True, missing_share=0.1).width == 3


def test_fractions_with_a_word_among_them_are_no_categories():
    sizes = [f"{number}.5" for number in range(20)]
    with pytest.raises(ValueError, match=r"got both: most values are numbers, but row 3 holds `two`"):
        InputSchema.learn(from_frame(pd.DataFrame({"size": [*sizes[:2], "two", *sizes[2:]]})))
    schema, _ = InputSchema.learn(from_frame(pd.DataFrame({"size": ["0.5", "1.5", "two", "0.5"]})))
    assert schema.features[0].categories == ("0.5", "1.5", "two")
