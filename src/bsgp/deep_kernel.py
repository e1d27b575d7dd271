"""Deep kernel learning (Wilson et al., 2016): a network makes two features, and KISS-GP takes them as its inputs."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array

from bsgp.checks import check_count
from bsgp.fitted import Fit
from bsgp.grids import DeepKernelGP, Grid, GridGP, Network
from bsgp.history import History, Report
from bsgp.likelihoods import AbstractLikelihood
from bsgp.optimise import FINAL_RATE, Clock, Optimised, cosine_adam, minimise
from bsgp.posterior import Posterior
from bsgp.structured import (
    LEAST_NOISE,
    MOST_INPUTS,
    Hyperparameters,
    check_data,
    check_gaussian,
    check_sizes,
    condition,
    negative_log_marginal,
)
from bsgp.target import Batch

# Chosen by rows held out of the training rows of one fold of kin8nm and of powerplant. Small batches and strong decay
# matter: of kin8nm's standardised target the error there is 0.32 by batches of 256 with a decay of 0.01, and 0.26 so.
BATCH_SIZE = 32
NUM_EPOCHS = 40
FEWEST_UPDATES, MOST_UPDATES = 1_000, 20_000  # of the network alone, where the number of epochs is not given
WEIGHT_DECAY = 0.5
NETWORK_RATE, JOINT_RATE, KERNEL_RATE = 1e-3, 1e-4, 0.1
HELD_OUT = 0.1  # to say what the noise is; on kin8nm that is worth 0.5 nats a row
NETWORK_SHARE = 0.5  # of the time, if that is limited
START_LENGTHSCALE = 0.5  # in a box of width 2
JOINT_CHUNK = 5
NUM_CANDIDATES = 500
NETWORK_DTYPE = jnp.float32  # half the time, and no worse a feature


def fit_dkl(
    X,
    y,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    widths: tuple[int, ...] = (1000, 1000, 500, 50, 2),
    grid_size: int = 100,
    num_epochs: int | None = None,
    num_steps: int = 30,
    effort: float = 1.0,
    report: Report,
    clock: Clock,
) -> Fit:
    """The network with a linear head on minibatches, then network, kernel and noise on the marginal likelihood.

    A network fits the rows that it is trained on too well, and the marginal likelihood does not see that: it takes
    what is left of them for all the noise there is. So a tenth of the rows are kept back and say what the noise is;
    the GP is then given all rows. `effort` multiplies the number of updates of either phase.
    """
    gaussian = check_gaussian("dkl", likelihood)
    X, y = check_data(X, y, gaussian)
    widths = tuple(check_count("widths", width) for width in widths)
    num_steps = max(1, round(effort * check_count("num_steps", num_steps)))
    if widths[-1] > MOST_INPUTS:
        raise ValueError(
            f"`widths` must end with at most {MOST_INPUTS} features, got {widths[-1]}: the points of a grid multiply "
            "with every one. End with 2."
        )
    grid = _box(check_sizes((grid_size,) * widths[-1], widths[-1]), X.dtype)
    split_key, init_key, network_key, joint_key = jr.split(key, 4)
    order = np.asarray(jr.permutation(split_key, X.shape[0]))
    held_out, rest = np.split(order, [math.ceil(HELD_OUT * X.shape[0])])
    data = Batch(jnp.asarray(X[rest]), jnp.asarray(y[rest]))
    network = Network.init((X.shape[1], *widths), init_key, NETWORK_DTYPE)

    num_updates = max(1, round(effort * _num_updates(rest.size, num_epochs)))
    alone = _pretrain(network, data, network_key, num_updates, report, clock)
    network, residual = alone.state[0], float(alone.energy[0, -BATCH_SIZE:].mean())
    hyper = Hyperparameters.start(np.full(widths[-1], START_LENGTHSCALE), residual, X.dtype)
    stopped = alone.interrupted and not clock.is_past(NETWORK_SHARE)  # by Ctrl-C: come to an end
    joint = _train_jointly(network, hyper, grid, data, joint_key, 0 if stopped else num_steps, report, clock)
    network, hyper = joint.state

    network = jax.tree.map(lambda leaf: leaf.astype(X.dtype), network)
    features = network(jnp.asarray(X))
    gp = condition(hyper, grid, features[rest], data.y)
    noise = _noise_seen(gp, features[held_out], y[held_out])
    hyper = hyper.with_noise(max(noise, float(hyper.noise)))
    model = DeepKernelGP(network, condition(hyper, grid, features, jnp.asarray(y)))
    energy = {"network": alone.energy, "optimise": joint.energy}
    evaluations = alone.energy.size + joint.energy.size
    history = History(energy, evaluations, clock.seconds, alone.interrupted or joint.interrupted)
    return Fit(Posterior.from_single(model), history)


def _box(sizes: tuple[int, ...], dtype) -> Grid:
    """A grid over all values that squashed features can take."""
    corners = np.asarray([[-1.0], [1.0]], dtype) * np.ones((1, len(sizes)), dtype)
    return Grid.around(corners, sizes)


def _num_updates(num_rows: int, num_epochs: int | None) -> int:
    per_epoch = max(num_rows // BATCH_SIZE, 1)
    if num_epochs is not None:
        return check_count("num_epochs", num_epochs) * per_epoch
    return min(max(NUM_EPOCHS * per_epoch, FEWEST_UPDATES), MOST_UPDATES)


def _pretrain(network: Network, data: Batch, key: Array, num_updates: int, report: Report, clock: Clock) -> Optimised:
    """The network and a linear head on the squared error, by Adam with weight decay."""
    num_features, num_targets = network.weights[-1].shape[1], data.y.shape[1]
    head = jnp.ones((num_features, num_targets), NETWORK_DTYPE), jnp.zeros(num_targets, NETWORK_DTYPE)
    rate = optax.cosine_decay_schedule(NETWORK_RATE, num_updates, FINAL_RATE)
    optimiser = optax.adamw(rate, weight_decay=WEIGHT_DECAY)

    def loss(free, batch, step_key):
        del step_key  # nothing is random
        network, (weight, bias) = free
        mean = network(batch.X.astype(NETWORK_DTYPE)) @ weight + bias[None, :]
        return jnp.mean((batch.y.astype(NETWORK_DTYPE) - mean) ** 2)

    return minimise(
        loss, (network, head), optimiser, data, key,
        num_steps=num_updates, batch_size=BATCH_SIZE, phase="network", report=report, clock=clock, share=NETWORK_SHARE,
    )  # fmt: skip


def _train_jointly(
    network: Network,
    hyper: Hyperparameters,
    grid: Grid,
    data: Batch,
    key: Array,
    num_steps: int,
    report: Report,
    clock: Clock,
) -> Optimised:
    """All of it on the marginal likelihood of all rows: the network by small steps, kernel and noise by long ones."""
    optimiser = optax.partition(
        {"network": cosine_adam(JOINT_RATE, num_steps), "kernel": cosine_adam(KERNEL_RATE, num_steps)},
        ("network", "kernel"),
    )
    num_rows, dtype = data.X.shape[0], data.X.dtype

    def loss(free, batch, step_key):
        network, hyper = free
        features = network(batch.X.astype(NETWORK_DTYPE)).astype(dtype)
        return negative_log_marginal(hyper, grid, features, batch.y, step_key) / num_rows

    return minimise(
        loss, (network, hyper), optimiser, data, key,
        num_steps=num_steps, batch_size=num_rows, report=report, clock=clock, chunk=JOINT_CHUNK,
    )  # fmt: skip


def _noise_seen(gp: GridGP, features: Array, y: np.ndarray) -> float:
    """The noise under which rows that were not trained on are the most probable."""
    f = gp.marginals(features)
    left = (y - np.asarray(f.mean)) ** 2
    candidates = np.geomspace(LEAST_NOISE, 10.0, NUM_CANDIDATES)
    surprise = [np.mean(np.log(v) + left / v) for v in (np.asarray(f.variance) + noise for noise in candidates)]
    return float(candidates[np.argmin(surprise)])
