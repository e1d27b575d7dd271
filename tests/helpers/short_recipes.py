"""Recipes with hardly any updates and draws, for tests that ask whether something works and not how well it fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import bsgp.methods.bsgp
import bsgp.methods.method


@contextmanager
def short_recipes(num_draws: int = 16, max_steps: int | None = None, **plan) -> Iterator[None]:
    """Let every recipe of bsgp draw `num_draws` times; `plan` changes the plan, `max_steps` limits other methods."""
    plan = {"num_draws": num_draws, **plan}

    def shorten(make):
        def short(size):
            recipe = make(size)
            # a warm start is by Adam or by L-BFGS: a plan for the one is not for the other
            chosen = {name: value for name, value in plan.items() if name != "adam_steps" or recipe.plan.adam_steps}
            return replace(recipe, plan=replace(recipe.plan, **chosen))

        return short

    with pytest.MonkeyPatch.context() as patch:
        for name, make in list(bsgp.methods.bsgp.RECIPES.items()):
            patch.setitem(bsgp.methods.bsgp.RECIPES, name, shorten(make))
        if max_steps is not None:
            patch.setattr(bsgp.methods.method.Task, "times", lambda task, count: min(count, max_steps))
        yield
