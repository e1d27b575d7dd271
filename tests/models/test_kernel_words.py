"""Kernels in words: the grammar, and one clear line for every mistake."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bsgp.models.kernel_words import KERNEL_WORDS, Combination, Part, parse_kernel, parts_of

RBF, LINEAR = Part("rbf"), Part("linear")

SPELLINGS = [
    ("rbf", RBF),
    ("  RBF ", RBF),
    ("linear + rbf", Combination("+", LINEAR, RBF)),
    ("linear+rbf", Combination("+", LINEAR, RBF)),
    ("linear * rbf + rbf", Combination("+", Combination("*", LINEAR, RBF), RBF)),
    ("linear * (rbf + rbf)", Combination("*", LINEAR, Combination("+", RBF, RBF))),
    ("rbf + rbf + linear", Combination("+", Combination("+", RBF, RBF), LINEAR)),
    ("rbf(age, income)", Part("rbf", None, ("age", "income"))),
    ("rbf (age,age)", Part("rbf", None, ("age",))),
    ("rbf(living area)", Part("rbf", None, ("living area",))),
    ("rbf(a+b*c, 3)", Part("rbf", None, ("a+b*c", "3"))),
    ("rbf(\"size, m\", 'x (new)')", Part("rbf", None, ("size, m", "x (new)"))),
    ("rbf(`it's`)", Part("rbf", None, ("it's",))),
    ("periodic(12)", Part("periodic", 12.0)),
    ("periodic( 3.5e1 )(month)", Part("periodic", 35.0, ("month",))),
    ("rational-quadratic(x) + matern12", Combination("+", Part("rational-quadratic", None, ("x",)), Part("matern12"))),
]


@pytest.mark.parametrize(("text", "expression"), SPELLINGS, ids=[text for text, _ in SPELLINGS])
def test_the_grammar(text, expression):
    assert parse_kernel(text) == expression
    assert parse_kernel(str(expression)) == expression


COLUMN = some.text("ab 1+*(),'\"", min_size=1, max_size=5).filter(lambda name: not {"'", '"'} <= set(name))
PARTS = some.tuples(some.sampled_from(KERNEL_WORDS), some.floats(0.01, 1e4), some.lists(COLUMN, unique=True))
TREES = some.recursive(PARTS, lambda side: some.tuples(some.sampled_from("+*"), side, side))


def expression_of(tree):
    """An expression from what hypothesis made: its classes may not be built while it makes examples."""
    first, second, third = tree
    if first in "+*":
        return Combination(first, expression_of(second), expression_of(third))
    return Part(first, float(f"{second:g}") if first == "periodic" else None, tuple(third))


@settings(max_examples=60)
@given(TREES)
def test_what_is_written_can_be_read_again(tree):
    expression = expression_of(tree)
    again = parse_kernel(str(expression))
    assert str(again) == str(expression)
    assert list(parts_of(again)) == list(parts_of(expression))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer + rbf", "`kernel` must be made of `rbf`, .*`periodic` with .*, got `linaer`. Did you mean `linear`?"),
        ("banana", "got `banana`. Write `linear [+] rbf`, for example"),
        ("2 * rbf", "got `2`"),
        ("", "must have a word here: `-->`. Write one of `rbf`"),
        ("rbf +", "must have a word here: `rbf [+] -->`"),
        ("+ rbf", "must have a word here: `--> [+] rbf`"),
        ("rbf(age", r"must close each of its brackets: `rbf\(age -->`. Write `\)` at the arrow"),
        ("(rbf + linear", "must close each of its brackets"),
        ("periodic(3", "must close each of its brackets"),
        ("rbf(a(b)", r"must close each of its brackets: `rbf\(a --> \(b\)`"),
        ("rbf)", r"has a bracket too many: `rbf --> \)`. Take it out"),
        ("rbf linear", "must have `[+]` or `[*]` here: `rbf --> linear`"),
        ("rbf()", r"must name a column here: `rbf\( --> \)`"),
        ("rbf(a,,b)", r"must name a column here: `rbf\(a, --> ,b\)`"),
        ("periodic", "must give `periodic` a period, got none. Write `periodic"),
        ("periodic(month)", "a positive number as its period, got `month`. Write `periodic"),
        ("periodic(-1)(month)", "a positive number as its period, got `-1`"),
        ("periodic(3, month)", "a positive number as its period, got `3, month`"),
        ("periodic(nan)", "a positive number as its period, got `nan`"),
        ("periodic(1e999)", "a positive number as its period, got `1e999`"),
    ],
)
def test_a_mistake_is_said_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_kernel(text)
    assert "\n" not in str(caught.value)


@given(some.text("rbfline()+*, 3'\"`periodic", max_size=25))
@settings(max_examples=200)
def test_no_text_does_more_than_parse_or_be_refused(text):
    try:
        expression = parse_kernel(text)
    except ValueError as error:
        refused = str(error)
        assert refused.startswith("`kernel` ")
    else:
        assert parse_kernel(str(expression))
