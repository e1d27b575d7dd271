"""How long to run the chains, and how."""

from dataclasses import dataclass

from bsgp.checks import check_count, check_option, check_positive
from bsgp.sghmc import ADAPTATIONS, INTEGRATORS


@dataclass(frozen=True)
class Plan:
    """How long to run, and how. One gradient evaluation per update."""

    warm_start: int = 2_000
    """Adam steps towards the mode before sampling."""
    learning_rate: float = 0.02
    """Of the warm start's first step; it falls to a hundredth of it along a cosine."""
    burn_in: int = 10_000
    """SGHMC updates that adapt mass and step size and are thrown away; rounded to whole chunks."""
    num_draws: int = 256
    thinning: int = 32
    """Updates from one kept draw to the next."""
    batch_size: int = 1_000
    step_size: float | None = None
    """None adapts it during burn-in; a number keeps it."""
    friction: float = 0.05
    integrator: str = "baoab"
    adaptation: str = "steady"
    """How the mass adapts. `"paper"` is the authors' rule, in their rhythm of 21 updates, all through burn-in;
    `"fisher"` is for many minibatches' worth of rows (`bsgp.fisher`)."""
    optimise_every: int = 1
    """Updates of burn-in from one step of Adam on the optimised blocks to the next."""
    optimise_rate: float = 0.01
    window: int = 1
    """That step is taken at a random one of as many latest draws, one per step."""
    start_spread: float = 0.1
    """Standard deviation of what is added to each chain's start, so that chains begin apart."""
    max_seconds: float | None = None
    """Stop early, at the end of a chunk; whatever was drawn by then is returned."""
    chunk: int = 160
    """Updates per compiled call: how often progress, guard and clock are looked at."""

    def __post_init__(self):
        for name, minimum in (("warm_start", 0), ("burn_in", 0), ("num_draws", 1), ("thinning", 1), ("batch_size", 1)):
            check_count(name, getattr(self, name), minimum)
        for name in ("chunk", "optimise_every", "window"):
            check_count(name, getattr(self, name))
        for name in ("learning_rate", "optimise_rate"):
            check_positive(name, getattr(self, name))
        check_option("integrator", self.integrator, INTEGRATORS)
        check_option("adaptation", self.adaptation, ADAPTATIONS)
        for name in ("step_size", "max_seconds"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    @property
    def evaluations(self) -> int:
        """Gradient evaluations of a full run of one chain in which nothing is optimised after the warm start."""
        return self.warm_start + self.burn_in + self.num_draws * self.thinning
