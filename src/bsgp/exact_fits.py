"""exact-gp and mcmc-gp: kernel and noise of the exact GP, optimised or sampled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.chunks import scattered_starts
from bsgp.exact import exact_target
from bsgp.fitted import Fit
from bsgp.history import Report, silent
from bsgp.likelihoods import AbstractLikelihood
from bsgp.nuts import NutsPlan, sample_nuts
from bsgp.optimise import Clock, cosine_adam, minimise
from bsgp.posterior import Posterior
from bsgp.target import Batch

CHUNK = 10  # steps per compiled call: each is a factorisation of all rows
START_SPREAD = 0.1  # standard deviation of what is added to each chain's start


def fit_exact_gp(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    num_steps: int = 200,
    learning_rate: float = 0.1,
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Kernel and noise where the marginal likelihood is largest."""
    clock = clock or Clock()
    target = exact_target(X, y, likelihood)
    data = Batch(target.model.X, target.model.y)
    num_rows = data.X.shape[0]

    def loss(position, batch, step_key):
        del batch, step_key  # the model has all rows, and nothing is random
        return -target.constrain(position).log_marginal_likelihood() / num_rows

    done = minimise(
        loss, target.start(), cosine_adam(learning_rate, num_steps), data, key,
        num_steps=num_steps, batch_size=num_rows, report=report, clock=clock, chunk=CHUNK,
    )  # fmt: skip
    return Fit(Posterior.from_single(target.constrain(done.state)), done.history(clock.seconds))


def fit_mcmc_gp(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    plan: NutsPlan = NutsPlan(),
    num_chains: int = 1,
    report: Report = silent,
    clock: Clock | None = None,
) -> Fit:
    """Sample kernel and noise of the exact GP."""
    clock = clock or Clock()
    start_key, sample_key = jr.split(key)
    target = exact_target(X, y, likelihood)
    num_rows = target.model.X.shape[0]
    starts = scattered_starts(target, start_key, num_chains, START_SPREAD)
    drawn = sample_nuts(target.log_joint, starts, num_rows, sample_key, plan=plan, report=report, clock=clock)
    shape = jax.tree.leaves(drawn.positions)[0].shape[:2]
    still = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), target.data)
    free = jax.vmap(jax.vmap(target.constrain_free))(drawn.positions)
    return Fit(Posterior(eqx.combine(free, still)), drawn.history)
