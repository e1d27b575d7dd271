"""The chains of a fit as runs of their own, in processes of this machine or wherever joblib's backend takes them.

They are not those that one process would draw, only equal in law: each has a key of its own, and all have one target.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bsgp.data.sources import AbstractSource
from bsgp.data.store import Store
from bsgp.fitted import Fit
from bsgp.fitting import Options, check_method, fit_method
from bsgp.health import DivergenceError
from bsgp.history import History
from bsgp.likelihoods import AbstractLikelihood
from bsgp.posterior import Posterior


class _Task(NamedTuple):
    """What the process of a chain is told. Arrays are NumPy's: JAX must not start before its core is chosen."""

    chain: int
    method: str
    source: AbstractSource | Path
    """A store is opened again where it is read."""
    likelihood: Any
    key_data: np.ndarray
    target_key_data: np.ndarray
    """The same for all: chains of one posterior."""
    options: Options
    precision: str


class _Chain(NamedTuple):
    """What it says: draws and how they came about, or why there are none."""

    model: Any
    history: History | None
    fault: str = ""


def fit_chains_apart(
    method: str,
    source: AbstractSource,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    options: Options,
    n_jobs: int,
) -> Fit:
    """As `bsgp.fit_method`, `n_jobs` chains at a time. A chain that diverges is left out, unless all do."""
    from joblib import Parallel, delayed

    check_method(method, likelihood, options)
    alone = replace(options, num_chains=1)
    target_key, chains_key = jr.split(key)
    target_key_data = np.asarray(jr.key_data(target_key))
    tasks = [
        _Task(
            chain, method, source.folder if isinstance(source, Store) else source,
            jax.tree.map(np.asarray, likelihood), np.asarray(jr.key_data(jr.fold_in(chains_key, chain))),
            target_key_data, alone, str(jnp.result_type(float)),
        )
        for chain in range(options.num_chains)
    ]  # fmt: skip
    done: Any = Parallel(n_jobs=n_jobs)(delayed(_fit_one)(task) for task in tasks)
    return _joined(done)


def _fit_one(task: _Task) -> _Chain:
    with _on_one_core(task.chain), jax.enable_x64(task.precision == "float64"):
        source = Store.open(task.source) if isinstance(task.source, Path) else task.source
        likelihood = jax.tree.map(jnp.asarray, task.likelihood)
        key, target_key = (jr.wrap_key_data(jnp.asarray(data)) for data in (task.key_data, task.target_key_data))
        try:
            fitted = fit_method(task.method, source, None, likelihood, key, options=task.options, target_key=target_key)
        except DivergenceError as error:
            return _Chain(None, None, _of_chain(task.chain, str(error)))
        history = fitted.history
        told = tuple(_of_chain(task.chain, warning) for warning in history.warnings)
        return _Chain(jax.tree.map(np.asarray, fitted.posterior.model), replace(history, warnings=told))


@contextmanager
def _on_one_core(number: int) -> Iterator[None]:
    """A second thread costs a chain more than it gives. A process that JAX has started in keeps its threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _of_chain(number: int, sentence: str) -> str:
    """Alone, every chain calls itself the first."""
    return sentence.replace("Chain 0", f"Chain {number}", 1)


def _joined(chains: Sequence[_Chain]) -> Fit:
    done = [(chain.model, chain.history) for chain in chains if chain.history is not None]
    faults = tuple(chain.fault for chain in chains if chain.fault)
    if not done:
        raise DivergenceError(faults[0])
    models, histories = zip(*done, strict=True)
    num_draws = min(jax.tree.leaves(model)[0].shape[1] for model in models)  # a time limit may have cut them short
    model = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate([leaf[:, :num_draws] for leaf in leaves])), *models)
    phases = [phase for phase in histories[0].energy if all(phase in one.energy for one in histories)]
    steps = [one.step_size for one in histories if one.step_size is not None]
    history = History(
        energy={phase: _side_by_side([one.energy[phase] for one in histories]) for phase in phases},
        evaluations=max(one.evaluations for one in histories),
        seconds=max(one.seconds for one in histories),
        interrupted=any(one.interrupted for one in histories),
        warnings=(*(f"{fault} It was left out." for fault in faults), *(w for one in histories for w in one.warnings)),
        temperature={
            name: np.concatenate([one.temperature[name] for one in histories]) for name in histories[0].temperature
        },
        step_size=max(steps, default=None),
    )
    return Fit(Posterior(model), history)


def _side_by_side(energies: list[np.ndarray]) -> np.ndarray:
    shortest = min(energy.shape[1] for energy in energies)
    return np.concatenate([energy[:, :shortest] for energy in energies])
