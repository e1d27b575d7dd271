"""Parameters of the estimators: the options of a fit, and how and where it runs. Importing it does not import JAX."""

from dataclasses import dataclass, fields, replace
from typing import Any

from bsgp.methods.options import Options, option
from bsgp.runtime.checks import check_option, check_positive

PRECISIONS = ("float64", "float32")
NOT_IN_CHECKPOINTS = (
    *("max_seconds", "mesh", "n_jobs", "warm_start", "checkpoint", "checkpoint_seconds", "resume", "verbose"),
    "random_state",
)
"""Parameters in which a resumed run may differ from the one it resumes."""


@dataclass(frozen=True)
class Settings(Options):
    """Parameters of `BSGPRegressor` and `BSGPClassifier`, checked against each other."""

    method: str = option("bsgp", "A method that `bsgp methods` lists.")
    noise: str | None = option(
        None,
        "Noise of a regression: `gaussian`, `student`, `heteroskedastic`, `mixture`, `poisson`, `negative-binomial` or "
        "`ordinal`. None: `gaussian`.",
    )
    likelihood: Any = option(None, "A `bsgp.models.AbstractLikelihood` of your own, instead of a noise by name.")
    exposure: Any = option(
        None,
        "Column with the exposure of each row, such as hours or persons, for counts: their mean is proportional to it.",
    )
    """A name, or the position of a column of an array."""
    n_jobs: int | None = option(
        None, "Chains at a time, each in its own process, by joblib's backend. None or 1: all in this process."
    )
    precision: str = option("float64", "`float64` or `float32`.")
    warm_start: bool = option(False, "Whether another `fit` on the same data adds draws to those of the last one.")
    checkpoint: Any = option(None, "Folder in which an unfinished run is kept until the model is saved. None: nowhere.")
    checkpoint_seconds: float = option(60.0, "Seconds from one checkpoint to the next.")
    resume: bool = option(False, "Whether to resume the run in `checkpoint`, bit for bit as if it had never stopped.")
    verbose: bool = option(False, "Whether to show a progress bar, on a terminal.")
    random_state: Any = option(None, "Seed, a NumPy generator, or None for a new seed each time.")

    def __post_init__(self):
        from bsgp.methods.registry import METHODS

        super().__post_init__()
        method = METHODS[check_option("method", self.method, list(METHODS))]
        check_option("precision", self.precision, PRECISIONS)
        check_positive("checkpoint_seconds", self.checkpoint_seconds)
        self._check_noise()
        if self.resume and self.checkpoint is None:
            raise ValueError("`resume` must come with the folder of the run to resume. Pass it as `checkpoint`.")
        if self.checkpoint is not None and not method.can_checkpoint:
            raise ValueError(f"`checkpoint` keeps chains, got the method `{self.method}`, which has none. Use `bsgp`.")
        if self.warm_start and not method.can_add_draws:
            raise ValueError(
                f"`warm_start` adds draws to chains, got the method `{self.method}`, which cannot. Use `bsgp`."
            )
        if self.is_parallel and (self.checkpoint is not None or self.mesh is not None or self.warm_start):
            raise ValueError(
                f"`n_jobs` runs every chain on its own, got {self.n_jobs} with `checkpoint`, `mesh` or `warm_start`, "
                "which keep them together. Leave it out."
            )

    def _check_noise(self) -> None:
        from bsgp.models.likelihoods.base import AbstractLikelihood
        from bsgp.models.likelihoods.noises import NOISES

        if self.noise is not None:
            check_option("noise", self.noise, list(NOISES))
        if self.likelihood is not None and not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(
                f"`likelihood` must be a `bsgp.models.AbstractLikelihood`, got {type(self.likelihood).__name__}. "
                f"Pass an instance, or one of {', '.join(NOISES)} as `noise`."
            )
        if self.noise is not None and self.likelihood is not None:
            raise ValueError("`noise` and `likelihood` must not both be given, got both. Leave one out.")
        if self.exposure is not None and not (self.noise and NOISES[self.noise].takes_exposure):
            counts = ", ".join(f"`{name}`" for name, noise in NOISES.items() if noise.takes_exposure)
            raise ValueError(f"`exposure` is for counts, got the noise `{self.noise}`. Set `noise` to one of {counts}.")

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Settings":
        """The settings among the parameters of an estimator, which may have others of its own."""
        return cls(**{one.name: params[one.name] for one in fields(cls) if one.name in params})

    @property
    def is_parallel(self) -> bool:
        """Whether chains run in processes of their own."""
        return self.n_jobs not in (None, 1)

    @property
    def in_checkpoints(self) -> dict[str, Any]:
        """The settings that a resumed run must share with the one it resumes."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in NOT_IN_CHECKPOINTS}

    @property
    def options(self) -> Options:
        """The options of the fit itself."""
        return Options(**{one.name: getattr(self, one.name) for one in fields(Options)})

    def samples_the_target_of(self, other: "Settings") -> bool:
        """Whether chains under `other` could continue under these: they may differ in length and place only."""

        def of_target(options: Options) -> Options:
            return replace(options, effort=1.0, thinning=None, max_seconds=None, mesh=None)

        model = ("method", "noise", "likelihood", "exposure")
        is_same = all(getattr(self, name) == getattr(other, name) for name in model)
        return is_same and of_target(self.options) == of_target(other.options)
