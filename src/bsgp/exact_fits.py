"""exact-gp and mcmc-gp: kernel and noise of the exact GP, optimised or sampled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from bsgp.exact import exact_target
from bsgp.fitted import Fit
from bsgp.history import History, Report, silent
from bsgp.likelihoods import AbstractLikelihood
from bsgp.nuts import NutsPlan, sample_nuts
from bsgp.optimise import Clock, begin, cosine_adam, descend, run_steps
from bsgp.posterior import Posterior
from bsgp.sghmc import normal_like
from bsgp.target import Batch

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
    optimiser = cosine_adam(learning_rate, num_steps)

    def step(state, batch, step_key):
        del batch, step_key  # all rows, and nothing random

        def loss(position):
            return -target.constrain(position).log_marginal_likelihood() / target.model.X.shape[0]

        position, optimiser_state, value = descend(optimiser, loss, *state)
        return (position, optimiser_state), value

    start = target.start()
    done = run_steps(
        step, (start, begin(optimiser, start)), Batch(target.model.X, target.model.y), key,
        num_steps=num_steps, batch_size=target.model.X.shape[0], phase="optimise", report=report, clock=clock, chunk=10,
    )  # fmt: skip
    history = History({"optimise": done.energy}, done.energy.shape[1], clock.seconds, done.interrupted)
    return Fit(Posterior.from_single(target.constrain(done.state[0])), history)


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
    start = target.start()

    def scatter(chain_key):
        return jax.tree.map(lambda x, z: x + START_SPREAD * z, start, normal_like(chain_key, start))

    starts = jax.vmap(scatter)(jr.split(start_key, num_chains))
    drawn = sample_nuts(target.log_joint, starts, num_rows, sample_key, plan=plan, report=report, clock=clock)
    shape = jax.tree.leaves(drawn.positions)[0].shape[:2]
    still = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), target.data)
    free = jax.vmap(jax.vmap(target.constrain_free))(drawn.positions)
    return Fit(Posterior(eqx.combine(free, still)), drawn.history)
