"""exact-gp and mcmc-gp: the exact GP of a small table, its kernel and noise optimised or sampled by NUTS."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.inference.exact_target import exact_target
from bsgp.inference.history import Report, silent
from bsgp.inference.host_loop import Clock
from bsgp.inference.nuts import NutsPlan, sample_nuts
from bsgp.inference.optimise import cosine_adam, minimise
from bsgp.inference.starts import scattered_starts
from bsgp.methods.fit import Fit
from bsgp.methods.memory import memory_of_exact
from bsgp.methods.method import Method, Task
from bsgp.models.batch import Batch
from bsgp.models.kernel_choice import KernelChoice
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.memory import check_memory

CHUNK = 10  # steps per compiled call; few, because each step factorises a matrix of all rows


def fit_exact_gp(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    kernel: KernelChoice = None,
    num_steps: int = 200,
    learning_rate: float = 0.1,
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Maximises the marginal likelihood over kernel and noise."""
    clock = clock or Clock()
    target = exact_target(X, y, likelihood, kernel)
    data = Batch(target.model.X, target.model.y)
    num_rows = data.X.shape[0]

    def loss(position, batch, step_key):
        del batch, step_key  # the model holds all rows, and the loss is deterministic
        return -target.constrain(position).log_marginal_likelihood() / num_rows

    done = minimise(
        loss, target.start(), cosine_adam(learning_rate, num_steps), data, key,
        num_steps=num_steps, batch_size=num_rows, report=report, clock=clock, chunk=CHUNK,
    )  # fmt: skip
    return Fit(Posterior.from_single(target.constrain(done.state)), done.history)


def fit_mcmc_gp(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    kernel: KernelChoice = None,
    plan: NutsPlan = NutsPlan(),
    num_chains: int = 1,
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Samples kernel and noise of the exact GP by NUTS."""
    clock = clock or Clock()
    start_key, sample_key = jr.split(key)
    target = exact_target(X, y, likelihood, kernel)
    num_rows = target.model.X.shape[0]
    starts = scattered_starts(target, start_key, num_chains)
    drawn = sample_nuts(target.log_joint, starts, num_rows, sample_key, plan=plan, report=report, clock=clock)
    shape = jax.tree.leaves(drawn.positions)[0].shape[:2]
    data = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), target.data)
    free = jax.vmap(jax.vmap(target.constrain_free))(drawn.positions)
    return Fit(Posterior(eqx.combine(free, data)), drawn.history)


def _check_memory(task: Task) -> None:
    check_memory(memory_of_exact(task.num_rows), "Pass fewer rows, or use `bsgp`.")


def _fit_optimised(task: Task) -> Fit:
    _check_memory(task)
    num_steps = task.times(200)
    return fit_exact_gp(
        *task.rows, task.likelihood, task.key,
        kernel=task.options.kernel, num_steps=num_steps, report=task.report, clock=task.clock,
    )  # fmt: skip


def _fit_sampled(task: Task) -> Fit:
    _check_memory(task)
    plan = NutsPlan(warm_up=task.times(200), num_draws=task.times(200))
    return fit_mcmc_gp(
        *task.rows, task.likelihood, task.key,
        kernel=task.options.kernel, plan=plan, num_chains=task.num_chains, report=task.report, clock=task.clock,
    )  # fmt: skip


EXACT_GP = Method(
    name="exact-gp",
    about="The exact Gaussian process with its kernel and noise optimised, for small tables.",
    objectives=("exact",),
    u="-",
    Z="-",
    theta="optimise",
    noise="optimise",
    fit=_fit_optimised,
    needs_gaussian=True,
    can_choose_kernel=True,
    can_weight=True,
    can_know_noise=True,
)
MCMC_GP = replace(
    EXACT_GP,
    name="mcmc-gp",
    about="NUTS over kernel and noise of the exact Gaussian process, for small tables.",
    theta="sample",
    noise="sample",
    fit=_fit_sampled,
    has_chains=True,
)
