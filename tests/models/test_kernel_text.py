"""A kernel's words are those that it was made from."""

import jax.numpy as jnp
import pytest

from bsgp.models import RBF, ActiveDimensions, Linear, Periodic
from bsgp.models.kernel_choice import InputColumn, TableKernel, layer_kernels
from bsgp.models.kernel_text import kernel_in_words
from bsgp.models.kernel_words import parse_kernel

COLUMNS = {"age": InputColumn((0,), 4.0), "city": InputColumn((1, 2, 3), None), "month": InputColumn((4, 5), 2.0)}
RBF_OF_TWO = RBF(jnp.asarray(1.0), jnp.ones(2))


@pytest.mark.parametrize(
    "text",
    [
        "rbf",
        "linear + rbf",
        "linear * (rbf + matern12) + rational-quadratic",
        "rbf(age, city) * periodic(12)(month) + linear",
        "periodic(0.5)(age, month) + matern52(city)",
    ],
)
def test_words_come_back(text):
    (make,) = layer_kernels(TableKernel(parse_kernel(text), COLUMNS), 1)
    assert kernel_in_words(make(6, jnp.float64), COLUMNS) == text


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (ActiveDimensions(RBF_OF_TWO, (0, 4)), "rbf(age, input 4)"),
        (ActiveDimensions(RBF_OF_TWO + RBF_OF_TWO, (4, 5)), "rbf(month) + rbf(month)"),
        (ActiveDimensions(ActiveDimensions(Linear(jnp.ones(1), jnp.ones(())), (1,)), (1, 0)), "linear(age)"),
        (Periodic(jnp.ones(()), jnp.ones(6), jnp.ones(6)), "periodic"),
    ],
)
def test_objects_have_words_too(kernel, words):
    assert kernel_in_words(kernel, COLUMNS) == words
