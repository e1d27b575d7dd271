"""Simulation-based calibration: are parameters and predictions right on average over tables drawn from the prior?

    .venv/bin/python benchmarks/sbc.py [REPLICATES] [CASES]     such as 100 "one layer, minibatches;two layers"

Each replicate is a line of results/sbc.jsonl; those that are there already are not repeated. At the end
docs/figures/sbc.png is drawn from the records.

Parameters come from the prior, a table from them, and a fit with the default recipe from the table. If the fit samples
the posterior, the rank of each true value among its draws is uniform (Talts et al., 2018). The log joint of one layer
is that of a generative model, FITC. With two layers it averages the log likelihood over draws of the hidden layer, so
that ranks show the error of that average, too.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.stats import chisquare

from bsgp.data.store.sources import as_source
from bsgp.inference.target import Target
from bsgp.methods.bsgp import default_recipe
from bsgp.methods.recipe import ProblemSize, fit_with_recipe
from bsgp.models.deep_gp import DeepGP, init_deep_gp
from bsgp.models.kernels import RBF
from bsgp.models.likelihoods.gaussian_noise import Gaussian, gaussian
from bsgp.models.parameters import default_priors, is_prior
from bsgp.models.priors import AbstractPrior

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "sbc.jsonl"
NEW_INPUTS = np.asarray([[-1.0, 0.5], [0.0, 0.0], [1.5, -1.0]])
NUM_RANKS = 100
NUM_BINS = 10


class Case(NamedTuple):
    """A kind of table and model."""

    num_rows: int
    depth: int
    num_inducing: int = 6
    is_streamed: bool = False
    """Whether the recipe is that of rows on disk, which are only seen in minibatches."""

    @property
    def recipe(self):
        """The default recipe, with fewer inducing points."""
        size = ProblemSize(
            self.num_rows, NEW_INPUTS.shape[1], 1, self.depth, is_gaussian=True, is_streamed=self.is_streamed
        )
        return replace(default_recipe(size), num_inducing=self.num_inducing)


CASES = {
    "one layer, all rows": Case(60, 1),
    "one layer, minibatches": Case(1_500, 1, is_streamed=True),
    "two layers": Case(60, 2),
}


def prior_model(case: Case, X: np.ndarray, key) -> DeepGP:
    """A model whose parameters are drawn from the priors of the default recipe."""
    start = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=case.num_inducing, depth=case.depth)
    keys = iter(jr.split(key, 100))

    def drawn(prior, leaf):
        if isinstance(prior, AbstractPrior):
            return prior.sample(next(keys), leaf.shape, leaf.dtype)
        return jr.normal(next(keys), leaf.shape)  # the default prior on Z

    free = Target(start, len(X)).select(start, "sample")
    return eqx.combine(jax.tree.map(drawn, default_priors(start), free, is_leaf=is_prior), start)


def quantities(model: DeepGP, key) -> dict[str, jax.Array]:
    """What is ranked: log parameters, and the function at new inputs, drawn once."""
    draw_key, hidden_key = jr.split(key)
    f = model.propagate(jnp.asarray(NEW_INPUTS), hidden_key)
    at_new = f.mean[:, 0] + jnp.sqrt(f.variance[:, 0]) * jr.normal(draw_key, f.mean[:, 0].shape)
    last = model.layers[-1].kernel
    assert isinstance(last, RBF)  # these for the type checker
    assert isinstance(model.likelihood, Gaussian)
    return {
        "log noise": jnp.log(model.likelihood.noise_variance[0]),
        "log kernel variance": jnp.log(last.variance),
        "log lengthscale": jnp.log(last.lengthscales[0]),
        **{f"function at point {index}": value for index, value in enumerate(at_new)},
    }


@eqx.filter_jit
def _quantities_of_draws(draws: DeepGP, keys) -> dict[str, jax.Array]:
    return jax.lax.map(lambda at: quantities(*at), (draws, keys))


def ranks(case: Case, seed: int, num_chains: int = 4) -> dict[str, int]:
    """Ranks of the true values among draws of one replicate, 0 to `NUM_RANKS` - 1."""
    table_key, model_key, y_key, truth_key, fit_key, rank_key = jr.split(jr.key(seed), 6)
    X = np.asarray(jr.normal(table_key, (case.num_rows, NEW_INPUTS.shape[1])))
    truth = prior_model(case, X, model_key)
    hidden_key, noise_key = jr.split(y_key)
    f = truth.propagate(jnp.asarray(X), hidden_key)
    assert isinstance(truth.likelihood, Gaussian)  # for the type checker
    sd = jnp.sqrt(f.variance + truth.likelihood.noise_variance[None, :])
    y = np.asarray(f.mean + sd * jr.normal(noise_key, f.mean.shape))
    fitted = fit_with_recipe(
        as_source(X, y), gaussian(1, X.dtype), fit_key, recipe=case.recipe, depth=case.depth, num_chains=num_chains
    )
    kept = fitted.posterior.subset(NUM_RANKS).model
    draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: NUM_RANKS - 1], kept)
    found = _quantities_of_draws(draws, jr.split(rank_key, NUM_RANKS - 1))
    true = quantities(truth, truth_key)
    return {name: int(np.sum(np.asarray(found[name]) < float(value))) for name, value in true.items()}


def p_values(found: dict[str, list[int]]) -> dict[str, float]:
    """Probability of ranks as uneven as these, by quantity, if they are uniform."""
    edges = np.linspace(0, NUM_RANKS, NUM_BINS + 1)
    return {name: float(chisquare(np.histogram(one, edges)[0]).pvalue) for name, one in found.items()}


def calibrate(case: Case, num_replicates: int, num_chains: int = 4) -> dict[str, list[int]]:
    """Ranks of all replicates, by quantity."""
    each = [ranks(case, seed, num_chains) for seed in range(num_replicates)]
    return {name: [one[name] for one in each] for name in each[0]}


def draw(records: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from scipy.stats import binom

    titles = [title for title in CASES if any(one["case"] == title for one in records)]
    names = list(records[0]["ranks"])
    size = (2.1 * len(names), 1.9 * len(titles) + 0.4)
    figure, axes = plt.subplots(len(titles), len(names), figsize=size, sharex=True, squeeze=False, layout="constrained")
    for row, title in zip(axes, titles, strict=True):
        found = ranks_of(records, title)
        p = p_values(found)
        for axis, name in zip(row, names, strict=True):
            counts, edges = np.histogram(found[name], np.linspace(0, NUM_RANKS, NUM_BINS + 1))
            low, high = binom.interval(0.99, sum(counts), 1 / NUM_BINS)
            axis.axhspan(low, high, color="#e4e7eb")
            axis.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color="#0072B2", edgecolor="white")
            axis.set_title(f"{name}\np = {p[name]:.2f}", fontsize=8)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel(title, fontsize=8)
    figure.supxlabel("rank of the true value among 99 draws; grey: 99% of bars if ranks are uniform", fontsize=9)
    figure.savefig(ROOT / "docs" / "figures" / "sbc.png", dpi=130)


def ranks_of(records: list[dict], title: str) -> dict[str, list[int]]:
    """Ranks of all replicates of a case, by quantity."""
    mine = [one["ranks"] for one in records if one["case"] == title]
    return {name: [one[name] for one in mine] for name in mine[0]}


def main(num_replicates: str = "100", titles: str = ";".join(CASES)) -> None:
    jax.config.update("jax_enable_x64", True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    settings = {"commit": commit.strip(), "versions": {one: version(one) for one in ("bsgp", "jax", "numpy")}}
    for title in titles.split(";"):
        seen = {one["seed"] for one in stored() if one["case"] == title}
        for seed in sorted(set(range(int(num_replicates))) - seen):
            began = time.process_time()
            found = ranks(CASES[title], seed)
            cpu = round(time.process_time() - began, 1)
            record = {"case": title, "seed": seed, "num_chains": 4, "ranks": found, "cpu_seconds": cpu, **settings}
            with OUT.open("a") as out:
                out.write(json.dumps(record) + "\n")
        found = ranks_of(stored(), title)
        counted = {name: round(p, 3) for name, p in p_values(found).items()}
        print(title, len(next(iter(found.values()))), "replicates, p:", counted, flush=True)
    draw(stored())


def stored() -> list[dict]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


if __name__ == "__main__":
    main(*sys.argv[1:])
