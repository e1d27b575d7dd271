"""The kernel of every layer, at its initial values, from what a user may choose: words, a kernel or a function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bsgp.models.kernel_words import Expression, Part, parse_kernel, parts_of
from bsgp.models.kernels import (
    RBF,
    AbstractKernel,
    AbstractStationary,
    ActiveDimensions,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Product,
    RationalQuadratic,
    Seasonal,
    Sum,
    linear,
    stationary,
)

WORD_KERNELS: dict[str, type[AbstractKernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
    "linear": Linear,
    "periodic": Seasonal,
}
"""Classes of `kernel_words.KERNEL_WORDS`."""
INDICATOR_PERIOD = 2.0
"""Half of it is the distance between a missing value and a value: the farthest apart that a periodic kernel has."""
FACTOR_VARIANCE = 1.0
"""Variance of factors after the first at the start: the first carries the product's."""


class InputColumn(NamedTuple):
    """A column of a table among the inputs of a model."""

    dimensions: tuple[int, ...]
    """Numbers of the inputs that encode it."""
    scale: float | None
    """What numbers were divided by, for the first of its inputs; None if it does not hold numbers."""


@dataclass(frozen=True)
class TableKernel:
    """A kernel in words about the columns of a table."""

    expression: Expression
    columns: Mapping[str, InputColumn]

    def __str__(self) -> str:
        return str(self.expression)


KernelMaker = Callable[[int, Any], AbstractKernel]
"""`(num_dims, dtype) -> AbstractKernel`, at its initial values."""
KernelChoice = str | TableKernel | AbstractKernel | type | Callable | None
"""Words, words about a table, a kernel for the first layer, a class or a function for every layer. None means RBF."""


def check_kernel(choice: Any) -> None:
    """Raises a `ValueError` unless a kernel can be made of `choice`. Columns are not looked up."""
    if isinstance(choice, str):
        parse_kernel(choice)
    elif isinstance(choice, type):
        _check_class(choice)
    elif not (choice is None or isinstance(choice, TableKernel | AbstractKernel) or callable(choice)):
        raise ValueError(
            "`kernel` must be words, a kernel of `bsgp.models` or a function `(num_dims, dtype) -> kernel`, "
            f"got {type(choice).__name__}. Write `linear + rbf`, for example."
        )


def is_plain_rbf(choice: KernelChoice) -> bool:
    """Whether the choice is the default kernel of every layer."""
    if isinstance(choice, str):
        choice = TableKernel(parse_kernel(choice), {})
    return choice is None or choice is RBF or (isinstance(choice, TableKernel) and choice.expression == Part("rbf"))


def layer_kernels(choice: KernelChoice, depth: int, variance: float = 0.1) -> tuple[KernelMaker, ...]:
    """One maker per layer; `variance` is that of every term at the start.

    A kernel that names columns, has a period or is an object is about the inputs: later layers have an RBF kernel.
    """
    check_kernel(choice)
    rbf = partial(stationary, RBF, variance=variance)
    if isinstance(choice, str):
        choice = TableKernel(parse_kernel(choice), {})
    if choice is None:
        return (rbf,) * depth
    if isinstance(choice, AbstractKernel):
        return partial(_given, choice), *(rbf,) * (depth - 1)
    if isinstance(choice, TableKernel):
        first = partial(_from_words, choice.expression, choice.columns, variance)
        is_about_inputs = any(part.columns or part.period is not None for part in parts_of(choice.expression))
        return first, *(rbf if is_about_inputs else first,) * (depth - 1)
    return (partial(_of_class, choice, variance) if isinstance(choice, type) else choice,) * depth


def _of_class(kind: type, variance: float, num_dims: int, dtype) -> AbstractKernel:
    return linear(num_dims, dtype) if kind is Linear else stationary(kind, num_dims, dtype, variance)


def _check_class(kind: type) -> None:
    if kind is not Linear and not issubclass(kind, AbstractStationary):
        raise ValueError(
            f"`kernel` must be `Linear` or a stationary kernel if it is a class, got `{kind.__name__}`. "
            "Pass a function `(num_dims, dtype) -> kernel`."
        )


# -- words ---------------------------------------------------------------------------------------------------------


def _from_words(
    expression: Expression, columns: Mapping[str, InputColumn], variance: float, num_dims: int, dtype
) -> AbstractKernel:
    if isinstance(expression, Part):
        return _of_part(expression, columns, variance, num_dims, dtype)
    is_product = expression.symbol == "*"
    left = _from_words(expression.left, columns, variance, num_dims, dtype)
    right = _from_words(expression.right, columns, FACTOR_VARIANCE if is_product else variance, num_dims, dtype)
    return Product(left, right) if is_product else Sum(left, right)


def _of_part(part: Part, columns: Mapping[str, InputColumn], variance: float, num_dims: int, dtype) -> AbstractKernel:
    chosen = [_column(name, columns) for name in part.columns]
    if part.period is not None and not chosen:
        chosen = [_only_column(part, columns, num_dims)]
    dimensions = tuple(number for column in chosen for number in column.dimensions)
    size = len(dimensions) or num_dims
    if part.period is not None:
        kernel = _seasonal(part, chosen, size, dtype, variance)
    else:
        kernel = _of_class(WORD_KERNELS[part.word], variance, size, dtype)
    return ActiveDimensions(kernel, dimensions) if part.columns else kernel


def _column(name: str, columns: Mapping[str, InputColumn]) -> InputColumn:
    if not columns:
        raise ValueError(
            f"`kernel` must not name columns of arrays without names, got `{name}`. Fit a table with an estimator, "
            "or pass a kernel with `ActiveDimensions`."
        )
    return columns[name]


def _only_column(part: Part, columns: Mapping[str, InputColumn], num_dims: int) -> InputColumn:
    """The column of a `periodic` without one."""
    if columns and len(columns) == 1:
        return next(iter(columns.values()))
    if not columns and num_dims == 1:
        return InputColumn((0,), 1.0)
    name = next((name for name, column in columns.items() if column.scale is not None), "month")
    raise ValueError(
        f"`kernel` must name the column of `{part}`, got none and {len(columns) or num_dims} to choose from. "
        f"Write `{replace(part, columns=(name,))}`, for example."
    )


def _seasonal(part: Part, chosen: list[InputColumn], size: int, dtype, variance: float) -> Seasonal:
    """`periodic` with its period in units of each column; an indicator of missing values is half a period away."""
    assert part.period is not None  # for the type checker
    periods = []
    for column in chosen:
        assert column.scale is not None  # `estimators.table_kernel` refuses columns without numbers
        periods += [part.period / column.scale, *(INDICATOR_PERIOD,) * (len(column.dimensions) - 1)]
    return Seasonal(jnp.asarray(variance, dtype), jnp.ones(size, dtype), tuple(periods))


# -- kernel objects ------------------------------------------------------------------------------------------------


def _given(kernel: AbstractKernel, num_dims: int, dtype) -> AbstractKernel:
    """A user's own kernel, in the model's precision."""
    _check_size(kernel, num_dims)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)


def _check_size(kernel: AbstractKernel, num_dims: int) -> None:
    """Raises a `ValueError` if a kernel of bsgp is for another number of inputs."""
    if isinstance(kernel, Sum | Product):
        _check_size(kernel.left, num_dims)
        _check_size(kernel.right, num_dims)
    elif isinstance(kernel, ActiveDimensions):
        if max(kernel.dimensions) >= num_dims:
            raise _wrong_size("`dimensions`", f"{max(kernel.dimensions)} among them", f"numbers below {num_dims}")
        _check_size(kernel.kernel, len(kernel.dimensions))
    for name in ("lengthscales", "variances"):
        size = np.size(getattr(kernel, name, np.zeros(num_dims)))
        if size != num_dims:
            raise _wrong_size(f"`{name}`", str(size), f"one for each of {num_dims} inputs")


def _wrong_size(what: str, got: str, expected: str) -> ValueError:
    return ValueError(f"{what} of `kernel` must be {expected}, got {got}. Make the kernel for these inputs.")
