"""A method: its row of the paper's Table 1, what it needs, what it can do, and how it is fitted."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bsgp.data.store.sources import AbstractSource, ArraySource
from bsgp.inference.batches import starting_rows
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import Report
from bsgp.inference.host_loop import Clock
from bsgp.methods.fit import Fit
from bsgp.methods.options import Options
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import START_NOISE, Gaussian
from bsgp.models.parameters import BLOCKS

NUM_INDUCING = 100
"""Inducing points of methods that optimise them, unless the user chooses."""
NUM_CHAINS = 4
"""Chains of methods that sample, unless the user chooses: fewer cannot show whether they agree."""


@dataclass(frozen=True)
class Method:
    """One row of the table. Every file of a method ends with its row or rows."""

    name: str
    about: str
    objectives: tuple[str, ...]
    """The objective, or those that a user may choose from."""
    u: str
    """Treatment of the inducing variables; `Z`, `theta` and `noise` have theirs."""
    Z: str
    theta: str
    noise: str
    fit: "Callable[[Task], Fit]"
    is_deep: bool = False
    """Whether it takes more than one layer."""
    needs_gaussian: bool = False
    """Whether it is for regression with Gaussian noise only."""
    has_chains: bool = False
    """Whether it draws Markov chains rather than optimise."""
    can_checkpoint: bool = False
    """Whether a run can be kept on disk and resumed."""
    can_add_draws: bool = False
    """Whether a fit can be continued with more draws."""
    can_stream: bool = False
    """Whether it needs minibatches only, so that rows may stay on disk."""
    can_use_mesh: bool = False
    """Whether it spreads over several devices."""
    can_temper: bool = False
    """Whether it takes a power of the likelihood."""
    can_choose_kernel: bool = False
    """Whether it takes another kernel than RBF."""
    can_weight: bool = False
    """Whether it takes a weight for each row."""
    can_know_noise: bool = False
    """Whether it takes rows whose Gaussian noise is known in part."""

    @property
    def objective(self) -> str:
        """The objective in words."""
        *others, last = self.objectives
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def optimised(self) -> dict[str, str]:
        """Treatment of the blocks that it optimises, for `Target`."""
        return {block: "optimise" for block in BLOCKS if getattr(self, block) == "optimise"}

    def num_chains(self, options: Options) -> int:
        """Chains that a fit with these options has."""
        return options.num_chains or (NUM_CHAINS if self.has_chains else 1)

    def to_json(self) -> dict[str, Any]:
        """Everything about it that can be printed."""
        plain = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("name", "fit", "objectives")
        }
        return {"objective": self.objective, **plain}


@dataclass(frozen=True)
class Task:
    """One call of `fit_method`, as a method sees it."""

    method: Method
    source: AbstractSource
    likelihood: AbstractLikelihood
    key: Array
    options: Options
    report: Report
    clock: Clock
    checkpoints: Checkpoints | None
    target_key: Array | None
    """Key that chains in different processes share, so that they have one target."""

    @property
    def rows(self) -> tuple[Any, np.ndarray | None]:
        """Arrays `X`, `y`, or a source and None, if rows are on disk or have weights or known noise."""
        source = self.source
        if isinstance(source, ArraySource) and source.total_weight is None and not source.has_known_noise:
            return source.X, source.y
        return source, None

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    @property
    def num_chains(self) -> int:
        return self.method.num_chains(self.options)

    def times(self, count: int) -> int:
        """A number of updates, multiplied by the user's effort."""
        return max(1, round(self.options.effort * count))

    def by_rows(self, small: int, large: int) -> int:
        """`small` updates for up to 1,000 rows and `large` for more, multiplied by the user's effort."""
        return self.times(small if self.num_rows <= 1_000 else large)

    def start_model(self, key: Array) -> DeepGP:
        """The start of methods that optimise Z, kernel and noise."""
        likelihood = self.likelihood
        if isinstance(likelihood, Gaussian):
            likelihood = Gaussian(jnp.full_like(likelihood.noise_variance, START_NOISE))
        num_inducing = min(self.options.num_inducing or NUM_INDUCING, self.num_rows)
        first = starting_rows(self.source, key)
        return init_deep_gp(
            first.X, likelihood, key,
            num_targets=self.source.num_targets, num_inducing=num_inducing, depth=self.options.depth,
            kernel=self.options.kernel,
            weight=first.weight,
        )  # fmt: skip
