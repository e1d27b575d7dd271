"""dkl, deep kernel learning (Wilson et al., 2016): a neural network to two features, and kiss-gp on these features."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array

from bsgp.inference.history import Report
from bsgp.inference.host_loop import Clock
from bsgp.inference.optimise import FINAL_RATE, Optimised, cosine_adam, minimise
from bsgp.methods.fit import Fit
from bsgp.methods.kiss_gp import (
    KISS_GP,
    MAX_INPUTS,
    MIN_NOISE,
    Hyperparameters,
    check_data,
    check_sizes,
    condition_on_data,
    negative_log_marginal,
)
from bsgp.methods.method import Task
from bsgp.models.batch import Batch
from bsgp.models.grid_gp import DeepKernelGP, Grid, GridGP, Network
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import check_gaussian
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.checks import check_count

# Chosen on rows held out of the training rows of one fold of kin8nm and one of powerplant. Small batches and strong
# decay matter: kin8nm's standardised error is 0.26 with these and 0.32 with batches of 256 and a decay of 0.01.
BATCH_SIZE = 32
NUM_EPOCHS = 40
MIN_UPDATES, MAX_UPDATES = 1_000, 20_000  # of the network alone, if the number of epochs is not given
WEIGHT_DECAY = 0.5
NETWORK_RATE, JOINT_RATE, KERNEL_RATE = 1e-3, 1e-4, 0.1
HELD_OUT = 0.1  # share of the rows from which the noise is estimated; worth 0.5 nats per row on kin8nm
NETWORK_SHARE = 0.5  # of a time limit
START_LENGTHSCALE = 0.5  # of features between -1 and 1
JOINT_CHUNK = 5  # steps per compiled call
NUM_CANDIDATES = 500  # values of the noise that are tried
NETWORK_DTYPE = jnp.float32  # half the time of float64, and features that are as good


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
    """Trains the network with a linear head, then network, kernel and noise on the marginal likelihood.

    A network overfits its training rows, and the marginal likelihood takes their small residuals for the noise. So the
    noise is estimated from a tenth of the rows, which are held out of the training; the GP is then given all rows.
    `effort` multiplies the number of updates of both phases.
    """
    gaussian = check_gaussian("dkl", likelihood)
    X, y = check_data(X, y, gaussian)
    widths = tuple(check_count("widths", width) for width in widths)
    num_steps = max(1, round(effort * check_count("num_steps", num_steps)))
    if widths[-1] > MAX_INPUTS:
        raise ValueError(
            f"`widths` must end with at most {MAX_INPUTS} features, got {widths[-1]}: the number of grid "
            "points is exponential in it. End with 2."
        )
    grid = _feature_grid(check_sizes((grid_size,) * widths[-1], widths[-1]), X.dtype)
    split_key, init_key, network_key, joint_key = jr.split(key, 4)
    order = np.asarray(jr.permutation(split_key, X.shape[0]))
    held_out, kept = np.split(order, [math.ceil(HELD_OUT * X.shape[0])])
    data = Batch(jnp.asarray(X[kept]), jnp.asarray(y[kept]))
    network = Network.init((X.shape[1], *widths), init_key, NETWORK_DTYPE)

    num_updates = max(1, round(effort * _num_updates(kept.size, num_epochs)))
    pretrained = _pretrain(network, data, network_key, num_updates, report, clock)
    network, residual = pretrained.state[0], float(pretrained.history.energy["network"][0, -BATCH_SIZE:].mean())
    hyper = Hyperparameters.start(np.full(widths[-1], START_LENGTHSCALE), residual, X.dtype)
    # interrupted before the time limit means Ctrl-C: finish without the joint phase
    stopped = pretrained.history.interrupted and not clock.is_past(NETWORK_SHARE)
    joint = _train_jointly(network, hyper, grid, data, joint_key, 0 if stopped else num_steps, report, clock)
    network, hyper = joint.state

    network = jax.tree.map(lambda leaf: leaf.astype(X.dtype), network)
    features = network(jnp.asarray(X))
    gp = condition_on_data(hyper, grid, features[kept], data.y)
    noise = _held_out_noise(gp, features[held_out], y[held_out])
    hyper = hyper.with_noise(max(noise, float(hyper.noise)))
    model = DeepKernelGP(network, condition_on_data(hyper, grid, features, jnp.asarray(y)))
    history = replace(pretrained.history.then(joint.history), seconds=clock.seconds)
    return Fit(Posterior.from_single(model), history)


def _feature_grid(sizes: tuple[int, ...], dtype) -> Grid:
    """Grid over all values that features can take, -1 to 1."""
    corners = np.asarray([[-1.0], [1.0]], dtype) * np.ones((1, len(sizes)), dtype)
    return Grid.around(corners, sizes)


def _num_updates(num_rows: int, num_epochs: int | None) -> int:
    """Updates of the network alone."""
    per_epoch = max(num_rows // BATCH_SIZE, 1)
    if num_epochs is not None:
        return check_count("num_epochs", num_epochs) * per_epoch
    return min(max(NUM_EPOCHS * per_epoch, MIN_UPDATES), MAX_UPDATES)


def _pretrain(network: Network, data: Batch, key: Array, num_updates: int, report: Report, clock: Clock) -> Optimised:
    """Trains the network and a linear head on the squared error, by Adam with weight decay."""
    num_features, num_targets = network.weights[-1].shape[1], data.y.shape[1]
    head = jnp.ones((num_features, num_targets), NETWORK_DTYPE), jnp.zeros(num_targets, NETWORK_DTYPE)
    rate = optax.cosine_decay_schedule(NETWORK_RATE, num_updates, FINAL_RATE)
    optimiser = optax.adamw(rate, weight_decay=WEIGHT_DECAY)

    def loss(free, batch, step_key):
        del step_key  # the loss is deterministic
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
    """Trains network, kernel and noise on the marginal likelihood of all rows; the network has the smaller rate."""
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


def _held_out_noise(gp: GridGP, features: Array, y: np.ndarray) -> float:
    """Noise variance that maximises the likelihood of held-out rows."""
    f = gp.marginals(features)
    squared_error = (y - np.asarray(f.mean)) ** 2
    candidates = np.geomspace(MIN_NOISE, 10.0, NUM_CANDIDATES)
    losses = [np.mean(np.log(v) + squared_error / v) for v in (np.asarray(f.variance) + noise for noise in candidates)]
    return float(candidates[np.argmin(losses)])


def _fit(task: Task) -> Fit:
    effort = task.options.effort
    return fit_dkl(*task.rows, task.likelihood, task.key, effort=effort, report=task.report, clock=task.clock)


DKL = replace(
    KISS_GP,
    name="dkl",
    about="Deep kernel learning: a neural network to two features, and kiss-gp on these.",
    fit=_fit,
)
