"""Kernels in words, such as `linear + rbf(age, income) * periodic(12)(month)`. Importing it does not import JAX itself.

    kernel = product { "+" product }
    product = factor { "*" factor }
    factor = word [ columns ] | "periodic" period [ columns ] | "(" kernel ")"
    period = "(" number ")"
    columns = "(" column { "," column } ")"

A column is a name as it is, or in quotes if it has a comma, a bracket or a quote in it.
"""

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

KERNEL_WORDS = ("rbf", "matern12", "matern32", "matern52", "rational-quadratic", "linear", "periodic")
"""Words that a kernel may be made of."""
EXAMPLE = "linear + rbf"
_WORD = re.compile(r"[^\s()+*,\"'`]+")
_COLUMN = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`|([^(),\"'`]*))\s*")
_NUMBER = re.compile(r"\s*([^()]*?)\s*\)")


@dataclass(frozen=True)
class Part:
    """One word, with the columns that it is restricted to; none means all."""

    word: str
    period: float | None = None
    """Period of `periodic`, in units of the column."""
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        period = "" if self.period is None else f"({self.period:g})"
        columns = f"({', '.join(map(_spelled, self.columns))})" if self.columns else ""
        return self.word + period + columns


@dataclass(frozen=True)
class Combination:
    """The sum (`+`) or the product (`*`) of two kernels."""

    symbol: str
    left: "Expression"
    right: "Expression"

    def __str__(self) -> str:
        left, right = (self._inside(side) for side in (self.left, self.right))
        return f"{left} {self.symbol} {right}"

    def _inside(self, side: "Expression") -> str:
        is_looser = isinstance(side, Combination) and self.symbol == "*" and side.symbol == "+"
        return f"({side})" if is_looser else str(side)


Expression = Part | Combination


def parse_kernel(text: str) -> Expression:
    """The expression that `text` spells, or a `ValueError` that says what is wrong with it."""
    reader = _Reader(text)
    expression = reader.sum()
    reader.check_end()
    return expression


def parts_of(expression: Expression) -> Iterator[Part]:
    """The words of an expression, from left to right."""
    if isinstance(expression, Part):
        yield expression
    else:
        yield from parts_of(expression.left)
        yield from parts_of(expression.right)


def _spelled(column: str) -> str:
    """A column as `columns` reads it: in quotes if it must be."""
    if column == column.strip() and not re.search(r"[(),\"'`]", column):
        return column
    quote = next((mark for mark in "\"'`" if mark not in column), '"')
    return f"{quote}{column}{quote}"


class _Reader:
    """Reads an expression from left to right, one method per rule of the grammar."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def sum(self) -> Expression:
        return self._chain("+", self._product)

    def _product(self) -> Expression:
        return self._chain("*", self._factor)

    def _chain(self, symbol: str, operand) -> Expression:
        """Operands between symbols; the first binds first."""
        expression = operand()
        while self._take(symbol):
            expression = Combination(symbol, expression, operand())
        return expression

    def _factor(self) -> Expression:
        if not self._take("("):
            return self._part()
        inside = self.sum()
        if not self._take(")"):
            raise self._unclosed()
        return inside

    def _part(self) -> Part:
        word = self._word()
        period = self._period() if word == "periodic" else None
        return Part(word, period, self._columns())

    def _word(self) -> str:
        found = _WORD.match(self.text, self._skip_spaces())
        if found is None:
            raise _error(f"must have a word here: `{self._marked()}`", f"Write one of {_possible()}")
        word = found.group().lower()
        if word not in KERNEL_WORDS:
            raise _unknown_word(found.group())
        self.at = found.end()
        return word

    def _period(self) -> float:
        advice = "Write `periodic(12)` or `periodic(12)(month)`, with the period in units of the column"
        if not self._take("("):
            raise _error("must give `periodic` a period, got none", advice)
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self._unclosed()
        self.at = found.end()
        period = _as_number(found.group(1))
        if period is None:
            raise _error(f"must give `periodic` a positive number as its period, got `{found.group(1)}`", advice)
        return period

    def _columns(self) -> tuple[str, ...]:
        if not self._take("("):
            return ()
        columns = [self._column()]
        while self._take(","):
            columns.append(self._column())
        if not self._take(")"):
            raise self._unclosed()
        return tuple(dict.fromkeys(columns))

    def _column(self) -> str:
        found = _COLUMN.match(self.text, self.at)
        quoted = None if found is None else next((name for name in found.groups()[:3] if name is not None), None)
        name = quoted if quoted is not None or found is None else found.group(4).strip()
        if found is None or not name:
            raise _error(
                f"must name a column here: `{self._marked()}`",
                "Write names with commas between them, in quotes if they have commas, brackets or quotes",
            )
        self.at = found.end()
        return name

    def check_end(self) -> None:
        """Raises a `ValueError` if something is left over."""
        if self._skip_spaces() < len(self.text):
            if self.text[self.at] == ")":
                raise _error(f"has a bracket too many: `{self._marked()}`", "Take it out, or open one before it")
            raise _error(f"must have `+` or `*` here: `{self._marked()}`", f"Write `{EXAMPLE}`, for example")

    def _take(self, symbol: str) -> bool:
        """Moves past `symbol` if it comes next."""
        is_next = self.text.startswith(symbol, self._skip_spaces())
        self.at += len(symbol) if is_next else 0
        return is_next

    def _skip_spaces(self) -> int:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at

    def _marked(self) -> str:
        """The text with an arrow where the reader is."""
        return f"{self.text[: self.at].rstrip()} --> {self.text[self.at :].lstrip()}".strip()

    def _unclosed(self) -> ValueError:
        return _error(f"must close each of its brackets: `{self._marked()}`", "Write `)` at the arrow")


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _possible() -> str:
    return ", ".join(f"`{word}`" for word in KERNEL_WORDS)


def _unknown_word(word: str) -> ValueError:
    near = difflib.get_close_matches(word.lower(), KERNEL_WORDS, n=1)
    advice = f"Did you mean `{near[0]}`?" if near else f"Write `{EXAMPLE}`, for example."
    return ValueError(f"`kernel` must be made of {_possible()} with `+`, `*` and brackets, got `{word}`. {advice}")


def _error(what: str, advice: str) -> ValueError:
    return ValueError(f"`kernel` {what}. {advice}.")
