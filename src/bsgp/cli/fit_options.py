"""Options of `bsgp fit`: those of the model, with the names and help of the estimators' parameters, and the rest."""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

from cyclopts import Parameter

from bsgp.estimators.settings import Settings
from bsgp.methods.options import help_of


def _described(name: str, option: str | None = None) -> Parameter:
    """An option with the help of the estimators' parameter `name`."""
    return Parameter(name=option, help=help_of(Settings, name))


def as_flag(name: str) -> str:
    """The option of `bsgp fit` for an estimator's parameter, such as `--chains` for `num_chains`."""
    parameter = next(one for one in get_args(get_type_hints(ModelOptions, include_extras=True)[name])[1:])
    return f"`{parameter.name[0] if parameter.name else '--' + name.replace('_', '-')}`"


@dataclass(frozen=True)
class ModelOptions:
    """What is fitted, and for how long. A field is an estimator's parameter, or says which one it becomes."""

    method: Annotated[str, _described("method")] = Settings.method
    depth: Annotated[int, _described("depth")] = Settings.depth
    kernel: Annotated[str, _described("kernel")] = Settings.kernel
    num_inducing: Annotated[int | None, _described("num_inducing")] = Settings.num_inducing
    num_chains: Annotated[int | None, _described("num_chains", "--chains")] = Settings.num_chains
    objective: Annotated[str, _described("objective")] = Settings.objective
    inducing_prior: Annotated[str | None, _described("inducing_prior")] = Settings.inducing_prior
    noise: Annotated[str | None, _described("noise")] = Settings.noise
    exposure: Annotated[str | None, _described("exposure")] = Settings.exposure
    likelihood_power: Annotated[float, _described("likelihood_power")] = Settings.likelihood_power
    recipe: Annotated[str, _described("recipe")] = Settings.recipe
    effort: Annotated[float, _described("effort")] = Settings.effort
    thinning: Annotated[int | None, _described("thinning")] = Settings.thinning
    max_seconds: Annotated[float | None, _described("max_seconds")] = Settings.max_seconds
    mesh: Annotated[str | None, _described("mesh")] = Settings.mesh
    checkpoint_seconds: Annotated[float, _described("checkpoint_seconds")] = Settings.checkpoint_seconds
    resume: Annotated[
        bool, Parameter(negative="", help="Resume a run that was cut off, bit for bit as if it had never stopped.")
    ] = Settings.resume
    random_state: Annotated[int, Parameter(name="--seed", help="Seed of all random numbers.")] = 0


@dataclass(frozen=True)
class ProcessOptions:
    """One fit over several processes."""

    coordinator: Annotated[
        str | None,
        Parameter(help="HOST:PORT at which process 0 listens, with several processes. Default: this machine."),
    ] = None
    num_processes: Annotated[int | None, Parameter(help="Number of processes in the job. Start one per id.")] = None
    process_id: Annotated[int | None, Parameter(help="Id of this process, from 0. Process 0 writes the model.")] = None

    @property
    def are_given(self) -> bool:
        return self != ProcessOptions()
