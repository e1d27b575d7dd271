"""Estimates of the memory that a fit needs, so that one that is too large is refused before it starts."""

from bsgp.inference.fisher_mass import MAX_AXES

BASE_BYTES = 700_000_000
"""Python, JAX and a compiled program."""
WORK_ARRAYS = 12
"""Matrices of inducing points by rows that a gradient holds at a time, per layer; measured, with a margin."""
LATENT_ARRAYS = 60
"""Numbers per row and latent function that a gradient holds for the integral of a likelihood: a few for each node."""
JUDGED_ARRAYS = 16
"""Numbers per draw and latent function that predictions and the diagnosis of a fit hold for each row; measured."""
JUDGED_ROWS = 100
"""Rows by whose predictions the chains of a fit are compared."""
AXES_ARRAYS = 6
"""Square matrices over coordinates per chain: covariance and axes before and after a chunk, and an eigensolver's."""


def memory_of_chains(
    *,
    num_rows: int,
    num_inputs: int,
    num_targets: int,
    num_inducing: int,
    depth: int,
    num_chains: int,
    num_draws: int,
    batch_size: int,
    updates_per_chunk: int,
    itemsize: int,
    is_streamed: bool,
    learns_axes: bool = False,
) -> int:
    """Bytes needed by a fit of chains on minibatches: the rows, the work arrays of an update, all draws twice, and
    what their predictions are judged by. `num_targets` counts latent functions, of which there is one for every class.

    Chains that learn axes (`fisher_mass`) also hold square matrices over all coordinates, up to `MAX_AXES` of them.
    """
    width = num_inputs + num_targets
    if is_streamed:
        rows = 3 * 4 * num_chains * updates_per_chunk * batch_size * width  # read ahead, in use, and on the device
    else:
        rows = 3 * itemsize * num_rows * width  # the table, its copy on the device, and one in transit
    layer = num_inducing * (num_inputs + max(num_inputs, num_targets))
    work = WORK_ARRAYS * itemsize * depth * num_inducing * (num_inducing + batch_size)
    work += LATENT_ARRAYS * itemsize * num_targets * batch_size
    judged = JUDGED_ARRAYS * itemsize * num_chains * num_draws * JUDGED_ROWS * num_targets
    draws = 2 * itemsize * num_chains * num_draws * depth * layer
    coordinates = num_inducing * ((2 * depth - 1) * num_inputs + num_targets)
    axes = AXES_ARRAYS * itemsize * num_chains * coordinates**2 if learns_axes and coordinates <= MAX_AXES else 0
    return BASE_BYTES + rows + work + draws + judged + axes


def memory_of_exact(num_rows: int, itemsize: int = 8) -> int:
    """Bytes needed by a method that holds a few copies of a matrix of all rows by all rows."""
    return BASE_BYTES + 4 * itemsize * num_rows**2
