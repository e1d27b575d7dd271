"""How long to run the chains of SGHMC, and how."""

import functools
import warnings
from dataclasses import asdict, dataclass

import numpy as np

from bsgp.inference.sghmc import ADAPTATIONS, INTEGRATORS
from bsgp.inference.thermostats import friction_of_step
from bsgp.runtime.checks import check_count, check_option, check_positive


@dataclass(frozen=True)
class Plan:
    """How long to run, and how. One gradient evaluation per update."""

    adam_steps: int = 2_000
    """Adam steps towards the mode before sampling."""
    learns_spread: bool = False
    """Whether these steps learn how far u spreads (`bsgp.inference.spread_start`), instead of its mode."""
    lbfgs_steps: int = 0
    """Steps of L-BFGS towards the mode before sampling, instead of Adam steps. They need exact gradients."""
    learning_rate: float = 0.02
    """Rate of the first Adam step; it falls to a hundredth along a cosine."""
    burn_in: int = 10_000
    """SGHMC updates that adapt mass and step size and are discarded; rounded to whole chunks."""
    num_draws: int = 256
    thinning: int = 32
    """Updates from one draw to the next."""
    batch_size: int = 1_000
    step_size: float | None = None
    """None adapts it during burn-in; a number keeps it."""
    friction: float = 0.05
    persistence: float | None = None
    """Distance, in posterior standard deviations, after which a chain turns; friction then follows the step size. For
    the position mass. None keeps `friction`."""
    integrator: str = "baoab"
    adaptation: str = "steady"
    """Rule by which the mass adapts. `"paper"` is the authors' own, in their rhythm of 21 updates, throughout burn-in;
    `"fisher"` is for tables of many minibatches (`bsgp.inference.fisher_mass`), `"position"` for exact gradients
    (`bsgp.inference.position_mass`)."""
    optimise_every: int = 1
    """Updates of burn-in from one Adam step on the optimised blocks to the next."""
    optimise_rate: float = 0.01
    """Rate of these Adam steps."""
    window: int = 1
    """Number of latest draws, one per Adam step, of which a random one is used for the step."""
    start_spread: float = 0.1
    """Standard deviation of what is added to each chain's start, so that chains start apart."""
    max_seconds: float | None = None
    """Time limit, checked at the end of each chunk; the draws made so far are kept."""
    chunk: int = 160
    """Updates per compiled call. Progress, guard and clock are looked at between calls."""

    def __post_init__(self):
        for name in ("adam_steps", "lbfgs_steps", "burn_in"):
            check_count(name, getattr(self, name), minimum=0)
        for name in ("num_draws", "thinning", "batch_size", "chunk", "optimise_every", "window"):
            check_count(name, getattr(self, name))
        if self.adam_steps and self.lbfgs_steps:
            raise ValueError(
                f"A warm start must be by Adam or by L-BFGS, got {self.adam_steps} and {self.lbfgs_steps} steps. "
                "Set `adam_steps` or `lbfgs_steps` to 0."
            )
        for name in ("learning_rate", "optimise_rate"):
            check_positive(name, getattr(self, name))
        check_option("integrator", self.integrator, INTEGRATORS)
        check_option("adaptation", self.adaptation, ADAPTATIONS)
        for name in ("step_size", "max_seconds", "persistence"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    @property
    def evaluations(self) -> int:
        """Gradient evaluations of a full run of one chain that optimises nothing after its warm start.

        A step of L-BFGS counts for one; its line search may take more.
        """
        return self.adam_steps + self.lbfgs_steps + self.burn_in + self.num_draws * self.thinning

    def friction_at(self, step_sizes: np.ndarray) -> float:
        """Friction of chains with these step sizes: the smallest of all, if it follows them."""
        if self.persistence is None:
            return self.friction
        return float(friction_of_step(np.min(step_sizes), self.persistence))

    def to_record(self) -> dict:
        """Fields as the records in `results/` have them, under the names of version 0.1."""
        fields = asdict(self)
        return {"warm_start": fields.pop("adam_steps"), **fields}

    def __getattr__(self, name: str):
        if name == "warm_start":
            _warn_of_old_name()
            return self.adam_steps
        raise AttributeError(f"`Plan` has no attribute `{name}`")


def _warn_of_old_name() -> None:
    warnings.warn("`warm_start` of `Plan` is now `adam_steps`. Use that name.", DeprecationWarning, stacklevel=3)


def _accepting_old_name(init):
    @functools.wraps(init)
    def wrapper(self, *values, **fields):
        if "warm_start" in fields:
            _warn_of_old_name()
            fields["adam_steps"] = fields.pop("warm_start")
        init(self, *values, **fields)

    return wrapper


Plan.__init__ = _accepting_old_name(Plan.__init__)
