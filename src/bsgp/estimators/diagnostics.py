"""Diagnostics of a fit: how long it ran, whether its chains agree, and a verdict in plain words."""

from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Array

from bsgp.inference.history import History
from bsgp.posterior.posterior import Posterior
from bsgp.posterior.statistics import ess, rhat

MAX_RHAT = 1.2  # of nine predictions in ten
MAX_WOBBLE = 0.1  # of nine predictions in ten
MIN_DRAWS = 64
MAX_MOVE = 0.01  # of what is minimised, per row
NUM_TRACE_POINTS = 400


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of the predictions for up to a hundred training rows, and the warnings of the fit."""

    evaluations: int
    """Gradient evaluations of each chain."""
    seconds: float
    interrupted: bool
    num_chains: int
    num_draws: int
    """Draws of each chain."""
    rhat: float
    """R-hat of the predictive mean, the 0.9 quantile over rows and outputs. One chain is split in two."""
    ess: float
    """Effective number of draws behind a prediction, the 0.1 quantile."""
    wobble: float
    """Monte-Carlo error of a prediction as a share of its standard deviation, the 0.9 quantile."""
    temperature: dict[str, float]
    """Temperature of the hottest chain, by block of parameters; 1 is right."""
    move: float | None = None
    """Change of the objective per row over the last tenth of the steps; None for methods that sample."""
    warnings: tuple[str, ...] = field(default=())

    @property
    def is_sampled(self) -> bool:
        """Whether there are chains to judge, rather than an optimum."""
        return self.move is None

    @property
    def trustworthy(self) -> bool:
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons not to trust the predictions yet."""
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
        """The verdict in one line."""
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
        """Plain JSON, with None for what does not apply."""
        fields = asdict(self)
        return {name: None if isinstance(value, float) and value != value else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, data: dict) -> "Diagnostics":
        numbers = {name: float("nan") if data[name] is None else data[name] for name in ("rhat", "ess", "wobble")}
        return cls(**{**data, **numbers, "warnings": tuple(data["warnings"])})


def diagnose(posterior: Posterior, history: History, X: np.ndarray, key: Array) -> Diagnostics:
    """Diagnose a fit by its predictions for some standardised rows `X`."""
    if posterior.num_chains * posterior.num_draws == 1:
        return _diagnose_optimum(history)
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


def _diagnose_optimum(history: History) -> Diagnostics:
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
    """Energy / N by phase, `[C T]` with at most 400 points, each the mean of a stretch of updates."""
    return {phase: _stretches(energy) for phase, energy in history.energy.items()}


def _stretches(energy: np.ndarray) -> np.ndarray:
    length = -(-energy.shape[1] // NUM_TRACE_POINTS)
    usable = energy.shape[1] // length * length
    return energy[:, :usable].reshape(energy.shape[0], -1, length).mean(axis=2)
