"""Diagnostics of a fit: how long it ran, how well its chains agree, and a grade by one rule.

The rule follows Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and localization:
an improved R-hat for assessing convergence of MCMC. It looks at predictions, because parameters have symmetries.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

import numpy as np

MAX_MOVE = 0.01
"""Change of an optimised objective per row over the last tenth of its steps, above which it is still moving."""
MAX_HEAT = 1.5
"""Temperature above which draws are too wide to use."""
MAX_FACTOR = 10
"""Largest factor on the effort that is advised: beyond it, more of the same rarely helps."""


class Grade(StrEnum):
    """What can be said about the chains of a fit."""

    CONVERGED = "converged"
    USABLE = "usable"
    NOT_CONVERGED = "not converged"
    NOT_SAMPLED = "not sampled"


class Limits(NamedTuple):
    """What a grade asks of the probe rows."""

    rhat_median: float
    rhat: float
    """R-hat of 95% of the rows."""
    ess: float
    """Effective draws of 95% of the rows, over all chains together, in bulk and tails."""
    num_chains: int


LIMITS = {Grade.CONVERGED: Limits(1.01, 1.05, 400, 4), Grade.USABLE: Limits(1.05, 1.1, 100, 2)}

Spelling = Callable[[str], str]
"""How a surface spells the name of a setting: `effort` in Python, `--effort` on the command line."""


def as_parameter(name: str) -> str:
    """The name of a setting as a parameter of the estimators."""
    return f"`{name}`"


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of the predictions for a hundred training rows, a fifth of them at the edge of the data.

    R-hat and effective draws are those of the predictive mean and of the log of the predictive standard deviation,
    whichever is worse, with u integrated out where it can be (`estimators.probes`).
    """

    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool
    num_chains: int
    """Chains that are left at the end."""
    num_draws: int
    """Draws of each chain."""
    rhat: float
    """R-hat that 95% of the rows stay below. A single chain is split in two, and cannot show whether chains agree."""
    ess: float
    """Effective draws in the bulk that 95% of the rows exceed, over all chains together."""
    rhat_median: float = float("nan")
    """R-hat of the median row."""
    tail_ess: float = float("nan")
    """Effective draws in the tails that 95% of the rows exceed."""
    movement: float = float("nan")
    """Bound on how far another run would move nine predictions in ten, as a share of their standard deviation."""
    temperature: dict[str, float] = field(default_factory=dict)
    """Temperature of the hottest chain, by block of parameters; 1 is right."""
    num_dropped: int = 0
    """Chains that failed and were left out."""
    move: float | None = None
    """Change of the objective per row over the last tenth of the steps; None for methods that sample."""
    warnings: tuple[str, ...] = field(default=())

    @property
    def is_sampled(self) -> bool:
        """Whether there are chains to judge, rather than an optimum."""
        return self.move is None

    @property
    def grade(self) -> Grade:
        """The grade, by one rule for estimators, command line and report."""
        if not self.is_sampled:
            return Grade.NOT_SAMPLED
        if not self._shortfalls(Grade.CONVERGED) and not self.reservations:
            return Grade.CONVERGED
        if not self._shortfalls(Grade.USABLE) and self._hottest <= MAX_HEAT:
            return Grade.USABLE
        return Grade.NOT_CONVERGED

    @property
    def is_settled(self) -> bool:
        """Whether nothing speaks against the fit: its chains have converged, or its objective has stopped moving."""
        if self.move is not None:
            return abs(self.move) <= MAX_MOVE and not self.reservations
        return self.grade is Grade.CONVERGED

    @property
    def reservations(self) -> tuple[str, ...]:
        """What happened during the fit that an expert would not sign, whatever R-hat is."""
        found = ["the fit was stopped early"] if self.interrupted else []
        if self.num_dropped:
            found.append(f"{self.num_dropped} of {self.num_chains + self.num_dropped} chains failed")
        if self._hottest > MAX_HEAT:
            found.append(f"draws are too wide, with a temperature of {self._hottest:.1f} where 1 is right")
        elif self.warnings and not self.num_dropped:
            found.append("the sampler warned")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """Grade, reasons and advice in one line, with the names of the estimators' parameters."""
        return self.verdict_for(as_parameter)

    def verdict_for(self, spelling: Spelling) -> str:
        """The verdict with settings spelled as on the surface where it is read."""
        grade = self.grade
        if self.move is not None:
            return self._verdict_on_optimum(self.move, spelling)
        if grade is Grade.CONVERGED:
            return (
                f"Converged: {self.num_chains} chains agree, with R-hat {self.rhat:.3f} and {self._least_ess:.0f} "
                f"effective draws or better for 95% of predictions. {self._movement_in_words}"
            )
        reasons = "; ".join([*self._shortfalls(Grade.CONVERGED), *self.reservations])
        if grade is Grade.USABLE:
            return f"Usable, but not converged: {reasons}. {self._movement_in_words} {self._advice(spelling)}"
        return f"Not converged: {reasons}. {self._advice(spelling)}"

    def _verdict_on_optimum(self, move: float, spelling: Spelling) -> str:
        if abs(move) > MAX_MOVE:
            return (
                f"Not sampled, and not finished: the objective still moved by {abs(move):.3f} per row over the last "
                f"tenth of its steps, where at most {MAX_MOVE} is wanted. Raise {spelling('effort')}."
            )
        return (
            f"Not sampled: the objective moved by {abs(move):.4f} per row over the last tenth of its steps. "
            "What was optimised has no uncertainty of its own: expect intervals that are a little narrow."
        )

    @property
    def _least_ess(self) -> float:
        return float(np.minimum(self.ess, self.tail_ess))

    @property
    def _hottest(self) -> float:
        return max(self.temperature.values(), default=1.0)

    @property
    def _movement_in_words(self) -> str:
        return f"Another run would move nine predictions in ten by less than {self.movement:.0%} of their sd."

    def _shortfalls(self, grade: Grade) -> list[str]:
        """What is missing for a grade, in words; NaN falls short."""
        limits, found = LIMITS[grade], []
        if self.num_chains < limits.num_chains:
            found.append(f"{self.num_chains} chain{'s' * (self.num_chains > 1)} where {limits.num_chains} are wanted")
        if np.isnan(self.rhat):
            return [*found, f"{self.num_draws} draws of each chain are too few to judge them by"]
        if not self.rhat_median <= limits.rhat_median:
            found.append(f"R-hat is {self.rhat_median:.3f} in the median, where {limits.rhat_median} is wanted")
        if not self.rhat <= limits.rhat:
            found.append(f"R-hat of 95% of predictions is up to {self.rhat:.2f}, where {limits.rhat} is wanted")
        if not self._least_ess >= limits.ess:
            found.append(f"a prediction rests on {self._least_ess:.0f} effective draws, where {limits.ess} are wanted")
        return found

    def _advice(self, spelling: Spelling) -> str:
        """Which setting to change, and by how much."""
        wanted, advice = LIMITS[Grade.CONVERGED], []
        if self.num_chains + self.num_dropped < wanted.num_chains:
            advice.append(f"Set {spelling('num_chains')} to {wanted.num_chains}.")
        if self.interrupted:
            advice.append(f"Raise {spelling('max_seconds')} if it ended the fit.")
        # effective draws grow with the effort, and what R-hat exceeds 1 by falls with it
        missing = (wanted.ess / self._least_ess, (self.rhat - 1) / (wanted.rhat - 1))
        missing = [factor for factor in missing if factor > 1]
        if missing or not advice:
            factor = int(np.clip(np.ceil(max(missing, default=2.0)), 2, MAX_FACTOR))
            advice.append(f"Raise {spelling('effort')} {factor}-fold{' or more' * (factor == MAX_FACTOR)}.")
        return " ".join(advice)

    def to_json(self) -> dict:
        """Plain JSON, with None for what does not apply."""
        values = asdict(self)
        return {name: None if isinstance(value, float) and value != value else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: dict) -> "Diagnostics":
        """Diagnostics that `to_json` wrote, also in 0.1.0, which kept fewer and other numbers."""
        data = {"rhat_median": data["rhat"], "tail_ess": data["ess"], **data}
        values = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        for name in FLOATS:
            if values.get(name, 0.0) is None:
                values[name] = float("nan")
        return cls(**{**values, "warnings": tuple(data["warnings"])})


FLOATS = tuple(one.name for one in fields(Diagnostics) if one.type in (float, "float"))
"""Numbers that may be NaN, which JSON does not know."""
