"""Kernels in words about the columns of a table: `kernel=` of the estimators, from words to inputs and back."""

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bsgp.data.encoding.feature import Feature
from bsgp.data.encoding.schema import InputSchema
from bsgp.data.tables.columns import quoted
from bsgp.methods.options import Options
from bsgp.models.deep_gp import DeepGP
from bsgp.models.kernel_choice import InputColumn, KernelChoice, TableKernel
from bsgp.models.kernel_text import kernel_in_words
from bsgp.models.kernel_words import Part, parse_kernel, parts_of
from bsgp.models.kernels import AbstractKernel
from bsgp.models.model import AbstractModel

if TYPE_CHECKING:
    from bsgp.estimators.base import BSGPEstimator


def with_columns(options: Options, schema: InputSchema) -> Options:
    """The options of a fit, with the columns of a kernel in words found among the inputs of the table."""
    if not isinstance(options.kernel, str):
        return options
    expression = parse_kernel(options.kernel)
    for part in parts_of(expression):
        _check_columns(part, schema)
    return replace(options, kernel=TableKernel(expression, input_columns(schema)))


def input_columns(schema: InputSchema) -> dict[str, InputColumn]:
    """Each column of a table among the inputs of a model."""
    return {one.name: _input_column(one, schema.columns_of(one.name)) for one in schema.features}


def _input_column(feature: Feature, inputs: slice) -> InputColumn:
    scale = feature.scale if feature.kind == "number" else None
    return InputColumn(tuple(range(inputs.start, inputs.stop)), scale)


def _check_columns(part: Part, schema: InputSchema) -> None:
    """A `ValueError` if a part names a column that is not among the inputs, or one that cannot have a period."""
    features = {one.name: one for one in schema.features}
    for name in part.columns:
        if name in schema.dropped:
            raise ValueError(
                f"`kernel` must name columns with information, got {quoted([name])}, which is left out "
                f"({schema.dropped[name]}). Take it out."
            )
        if name not in features:
            raise _unknown_column(name, schema)
    if part.period is not None:
        _check_numbers(part, [features[name] for name in part.columns] or list(schema.features))


def _unknown_column(name: str, schema: InputSchema) -> ValueError:
    near = difflib.get_close_matches(name, schema.names, n=1)
    advice = f"Did you mean {quoted(near)}?" if near else f"Choose from {quoted(schema.names)}."
    return ValueError(f"`kernel` must name columns of the table, got {quoted([name])}. {advice}")


def _check_numbers(part: Part, features: list[Feature]) -> None:
    others = [one for one in features if one.kind != "number"]
    if others and (part.columns or len(features) == 1):
        raise ValueError(
            f"`kernel` must give `periodic` columns of numbers, got {quoted([others[0].name])}, a {others[0].kind}. "
            "Use `rbf` for it."
        )


# -- back to words -------------------------------------------------------------------------------------------------


def kernel_text(kernel: KernelChoice, schema: InputSchema) -> str | None:
    """A choice of a kernel as JSON can hold it: words as they are, objects in words, functions by their names."""
    if kernel is None or isinstance(kernel, str):
        return kernel
    if isinstance(kernel, AbstractKernel):
        return kernel_in_words(kernel, input_columns(schema))
    return getattr(kernel, "__name__", type(kernel).__name__)


def fitted_kernel_words(estimator: "BSGPEstimator") -> tuple[str, ...]:
    """The kernel of every layer of a fitted model, in words; of other models, that over the inputs if they have one."""
    columns = input_columns(estimator.schema_)
    first, *others = _kernels(estimator.posterior_.model) or [None]
    if first is None:
        return ()
    return kernel_in_words(first, columns), *map(kernel_in_words, others)


def _kernels(model: AbstractModel) -> list[Any]:
    return [layer.kernel for layer in model.layers] if isinstance(model, DeepGP) else [model.input_kernel]


def describe_kernel(estimator: "BSGPEstimator") -> str:
    """The kernel of a fitted model in one phrase; empty if it has none over its inputs."""
    words = fitted_kernel_words(estimator)
    distinct = dict.fromkeys(words)
    if len(distinct) < 2:
        return "".join(distinct)
    return f"{words[0]} in the first layer, {words[1]} after it"


def saved_kernel(estimator: "BSGPEstimator") -> str | None:
    """`kernel` of a fitted estimator as a model file holds it: words that another fit takes, if there are any."""
    kernel = estimator.kernel
    if kernel is None or isinstance(kernel, str):
        return kernel
    return next(iter(fitted_kernel_words(estimator)), None)
