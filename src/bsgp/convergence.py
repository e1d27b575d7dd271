"""What a fit says about itself: how long it ran, whether its chains agree, and in plain words whether to trust it."""

from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Array

from bsgp.diagnostics import ess, rhat
from bsgp.history import History
from bsgp.posterior import Posterior

MAX_RHAT = 1.2  # of nine predictions in ten
MAX_WOBBLE = 0.1  # of nine predictions in ten
MIN_DRAWS = 64
MAX_MOVE = 0.01  # of what is minimised, per row
NUM_TRACE_POINTS = 400


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of the predictions for up to a hundred training rows, and what the chains reported."""

    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool
    num_chains: int
    num_draws: int
    """Of each chain."""
    rhat: float
    """The 0.9 quantile over rows and outputs. One chain is split in two."""
    ess: float
    """The 0.1 quantile: effective number of draws behind a prediction."""
    wobble: float
    """The 0.9 quantile of the Monte-Carlo error of a prediction, as a share of its own standard deviation."""
    temperature: dict[str, float]
    """Of every block of parameters, the hottest chain; 1 is right."""
    move: float | None = None
    """Of methods that optimise: by how much the objective, per row, still changed over the last tenth of its steps."""
    warnings: tuple[str, ...] = field(default=())

    @property
    def is_sampled(self) -> bool:
        """Whether there are chains to judge, and not the end of an optimisation."""
        return self.move is None

    @property
    def trustworthy(self) -> bool:
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not to trust the predictions yet; empty if there is none."""
        if self.move is not None:
            return () if abs(self.move) <= MAX_MOVE else (
                f"the objective still moved by {abs(self.move):.3f} per row over the last tenth of its steps, "
                f"where at most {MAX_MOVE} is wanted",
            )  # fmt: skip
        reasons = []
        if self.num_draws < MIN_DRAWS:
            reasons.append(f"only {self.num_draws} draws were made")
        if not self.rhat <= MAX_RHAT:
            reasons.append(f"R-hat of the predictions is {self.rhat:.2f} where at most {MAX_RHAT} is wanted")
        if not self.wobble <= MAX_WOBBLE:
            reasons.append(
                f"another run may move a prediction by {self.wobble:.0%} of its standard deviation "
                f"where at most {MAX_WOBBLE:.0%} is wanted"
            )
        return tuple(reasons)

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.trustworthy and self.move is not None:
            return (
                f"Converged: the objective moved by {abs(self.move):.4f} per row over the last tenth of its steps. "
                "What was optimised has no uncertainty of its own: expect intervals that are a little narrow."
            )
        if self.trustworthy:
            return (
                f"Trust it: R-hat of the predictions is {self.rhat:.2f}, and another run would move them by about "
                f"{self.wobble:.0%} of their standard deviation."
            )
        return f"Run longer, because {'; '.join(self.reasons)}."

    def to_json(self) -> dict:
        """Plain JSON: what does not apply is None."""
        fields = asdict(self)
        return {name: None if isinstance(value, float) and value != value else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, data: dict) -> "Diagnostics":
        numbers = {name: float("nan") if data[name] is None else data[name] for name in ("rhat", "ess", "wobble")}
        return cls(**{**data, **numbers, "warnings": tuple(data["warnings"])})


def diagnose(posterior: Posterior, history: History, X: np.ndarray, key: Array) -> Diagnostics:
    """`X` are some rows to predict, standardised."""
    if posterior.num_chains * posterior.num_draws == 1:
        return _of_an_optimum(history)
    mean, variance = posterior.predictive_draws(X, key)  # [C S N P]
    enough = posterior.num_draws >= 8
    effective = ess(mean) if enough else np.full(mean.shape[2:], np.nan)
    spread = mean.std(axis=(0, 1))
    wobble = spread / np.sqrt(effective) / np.sqrt(spread**2 + variance.mean(axis=(0, 1)))
    return Diagnostics(
        evaluations=history.evaluations,
        seconds=history.seconds,
        interrupted=history.interrupted,
        num_chains=posterior.num_chains,
        num_draws=posterior.num_draws,
        rhat=float(np.quantile(rhat(mean), 0.9)) if enough else float("nan"),
        ess=float(np.quantile(effective, 0.1)),
        wobble=float(np.quantile(wobble, 0.9)),
        temperature={name: float(np.max(heat)) for name, heat in history.temperature.items()},
        warnings=history.warnings,
    )


def _of_an_optimum(history: History) -> Diagnostics:
    last = list(history.energy.values())[-1][0]
    tenth = max(1, len(last) // 10)
    move = float(last[-tenth:].mean() - last[-2 * tenth : -tenth].mean()) if len(last) > 1 else float("inf")
    return Diagnostics(
        evaluations=history.evaluations,
        seconds=history.seconds,
        interrupted=history.interrupted,
        num_chains=1,
        num_draws=1,
        rhat=float("nan"),
        ess=float("nan"),
        wobble=float("nan"),
        temperature={},
        move=move,
        warnings=history.warnings,
    )


def energy_trace(history: History) -> dict[str, np.ndarray]:
    """Energy / N of every phase, `[C T]` with at most 400 points, each the mean of a stretch."""
    return {phase: _stretches(energy) for phase, energy in history.energy.items()}


def _stretches(energy: np.ndarray) -> np.ndarray:
    length = -(-energy.shape[1] // NUM_TRACE_POINTS)
    usable = energy.shape[1] // length * length
    return energy[:, :usable].reshape(energy.shape[0], -1, length).mean(axis=2)
