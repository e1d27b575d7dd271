"""Kernels as words: what `kernel_words` reads, written from a kernel."""

from collections.abc import Mapping
from dataclasses import replace

from bsgp.models.kernel_choice import WORD_KERNELS, InputColumn
from bsgp.models.kernel_words import Combination, Expression, Part
from bsgp.models.kernels import AbstractKernel, ActiveDimensions, Periodic, Product, Seasonal, Sum

WORDS = {kind: word for word, kind in WORD_KERNELS.items()} | {Periodic: "periodic"}


def kernel_in_words(kernel: AbstractKernel, columns: Mapping[str, InputColumn] | None = None) -> str:
    """The words for a kernel, with the names and units of `columns`. Inputs that are no column's are numbered."""
    return str(_expression(kernel, columns or {}))


def _expression(kernel: AbstractKernel, columns: Mapping[str, InputColumn]) -> Expression:
    if isinstance(kernel, Sum | Product):
        symbol = "+" if isinstance(kernel, Sum) else "*"
        return Combination(symbol, _expression(kernel.left, columns), _expression(kernel.right, columns))
    if isinstance(kernel, ActiveDimensions):
        names = _names_of(kernel.dimensions, columns)
        return _restricted(_expression(kernel.kernel, _renumbered(kernel.dimensions, columns)), names)
    word = WORDS.get(type(kernel), type(kernel).__name__)
    return Part(word, _period(kernel, columns) if isinstance(kernel, Seasonal) else None)


def _restricted(expression: Expression, names: tuple[str, ...]) -> Expression:
    """An expression whose every part without columns has these."""
    if isinstance(expression, Part):
        return expression if expression.columns else replace(expression, columns=names)
    left, right = _restricted(expression.left, names), _restricted(expression.right, names)
    return replace(expression, left=left, right=right)


def _names_of(dimensions: tuple[int, ...], columns: Mapping[str, InputColumn]) -> tuple[str, ...]:
    names = [name for name, column in columns.items() if set(column.dimensions) <= set(dimensions)]
    named = {number for name in names for number in columns[name].dimensions}
    return *names, *(f"input {number}" for number in dimensions if number not in named)


def _renumbered(dimensions: tuple[int, ...], columns: Mapping[str, InputColumn]) -> dict[str, InputColumn]:
    """The columns that lie within `dimensions`, as a kernel inside `ActiveDimensions` sees them."""
    place = {number: at for at, number in enumerate(dimensions)}
    return {
        name: InputColumn(tuple(place[number] for number in column.dimensions), column.scale)
        for name, column in columns.items()
        if set(column.dimensions) <= set(dimensions)
    }


def _period(kernel: Seasonal, columns: Mapping[str, InputColumn]) -> float:
    """The first period, in units of its column if that is known."""
    first = next((column for column in columns.values() if column.dimensions[0] == 0), None)
    return kernel.periods[0] * (1.0 if first is None or first.scale is None else first.scale)
