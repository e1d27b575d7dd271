"""Time of predictions relative to one M x M x rows product per draw, and their peak memory. Part of `make bench`."""

import resource
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bsgp import Posterior, init_deep_gp
from bsgp.models.likelihoods.gaussian_noise import gaussian
from step import cpu_milliseconds

M, D = 100, 8


def posterior_of(num_draws: int, dtype: str) -> Posterior:
    """Posterior of draws that differ slightly from an initial model."""
    X = np.random.default_rng(0).standard_normal((2_000, D)).astype(dtype)
    model = init_deep_gp(X, gaussian(1, dtype), jr.key(0), num_inducing=M)

    def spread(leaf):
        noise = jr.normal(jr.key(1), (1, num_draws, *(1,) * leaf.ndim), leaf.dtype)
        return jnp.broadcast_to(leaf, (1, num_draws, *leaf.shape)) * (1 + 1e-3 * noise)

    return Posterior(jax.tree.map(spread, model))


def measure(num_rows: int, num_draws: int, dtype: str, repeats: int) -> tuple[float, float]:
    """CPU seconds of `predict` and of the products alone."""
    posterior = posterior_of(num_draws, dtype)
    X_new = np.random.default_rng(1).standard_normal((num_rows, D)).astype(dtype)
    posterior.predict(X_new[: min(num_rows, 40_000)], jr.key(0))
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        posterior.predict(X_new, jr.key(0))
        best = min(best, time.process_time() - began)
    Q, K = jr.normal(jr.key(2), (M, M), dtype) / M, jr.normal(jr.key(3), (M, 1_024), dtype)
    product = cpu_milliseconds({"product": (lambda K: Q @ K, K)})["product"]
    return best, product * 1e-3 * num_rows / 1_024 * num_draws


def main():
    for dtype in ("float64", "float32"):
        seconds, floor = measure(20_000, 256, dtype, repeats=3)
        share = f"{floor / seconds:.0%} of the speed of the products alone ({floor:.2f} s)"
        print(f"{dtype}: 20,000 rows, 256 draws: {seconds:.2f} CPU s, {share}")
    seconds, _ = measure(1_000_000, 64, "float64", repeats=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"float64: 1,000,000 rows, 64 draws: {seconds:.0f} CPU s; peak memory of the process {peak:.2f} GB")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
