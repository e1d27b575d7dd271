"""The chains of a fit in processes of their own, on this machine or wherever joblib's backend takes them.

The draws are not those of a single process, only equal in law: each chain has its own key, and all have one target.
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

from bsgp.data.store.sources import AbstractSource
from bsgp.data.store.store import Store
from bsgp.inference.events import Dropped
from bsgp.inference.history import History
from bsgp.methods.fit import Fit
from bsgp.methods.options import Options
from bsgp.methods.registry import METHODS, check_method, fit_method
from bsgp.models.kernels import AbstractKernel
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.posterior.posterior import Posterior
from bsgp.runtime.errors import DivergenceError


class _ChainTask(NamedTuple):
    """What the process of a chain needs. Arrays are NumPy's: JAX must not start before its core is chosen."""

    chain: int
    method: str
    source: AbstractSource | Path
    """Rows in memory, or the folder of a store, which each process opens itself."""
    likelihood: Any
    key_data: np.ndarray
    target_key_data: np.ndarray
    """Key data that all chains share: they sample one posterior."""
    options: Options
    precision: str


class _ChainResult(NamedTuple):
    """Draws of one chain and how they went, or the event that ended it."""

    model: Any = None
    history: History | None = None
    failure: Dropped | None = None


def fit_chains_in_parallel(
    method: str,
    source: AbstractSource,
    likelihood: AbstractLikelihood,
    key: Array,
    *,
    options: Options,
    n_jobs: int,
) -> Fit:
    """`fit_method` with `n_jobs` chains at a time. A chain that diverges is dropped, unless all do."""
    from joblib import Parallel, delayed

    check_method(method, likelihood, options, source=source)
    kernel = options.kernel
    if isinstance(kernel, AbstractKernel):
        kernel = jax.tree.map(np.asarray, kernel)
    alone = replace(options, num_chains=1, kernel=kernel)
    target_key, chains_key = jr.split(key)
    target_key_data = np.asarray(jr.key_data(target_key))
    tasks = [
        _ChainTask(
            chain, method, source.folder if isinstance(source, Store) else source,
            jax.tree.map(np.asarray, likelihood), np.asarray(jr.key_data(jr.fold_in(chains_key, chain))),
            target_key_data, alone, str(jnp.result_type(float)),
        )
        for chain in range(METHODS[method].num_chains(options))
    ]  # fmt: skip
    results: Any = Parallel(n_jobs=n_jobs)(delayed(_fit_one)(task) for task in tasks)
    return _joined(results)


def _fit_one(task: _ChainTask) -> _ChainResult:
    """Fit one chain; it calls itself chain 0 and is given its own number here."""
    with _on_one_core(task.chain), jax.enable_x64(task.precision == "float64"):
        source = Store.open(task.source) if isinstance(task.source, Path) else task.source
        likelihood = jax.tree.map(jnp.asarray, task.likelihood)
        key, target_key = (jr.wrap_key_data(jnp.asarray(data)) for data in (task.key_data, task.target_key_data))
        try:
            fitted = fit_method(task.method, source, None, likelihood, key, options=task.options, target_key=target_key)
        except DivergenceError as error:
            if not isinstance(error.event, Dropped):
                raise
            return _ChainResult(failure=replace(error.event, chain=task.chain))
        events = tuple(event.of_chain(task.chain) for event in fitted.history.events)
        model = jax.tree.map(np.asarray, fitted.posterior.model)
        return _ChainResult(model, replace(fitted.history, events=events))


@contextmanager
def _on_one_core(number: int) -> Iterator[None]:
    """Keep to one core: a second thread costs a chain more than it gains. Threads that JAX has started stay."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _joined(results: Sequence[_ChainResult]) -> Fit:
    done = [(result.model, result.history) for result in results if result.history is not None]
    failures = tuple(result.failure for result in results if result.failure is not None)
    if not done:
        raise DivergenceError(failures[0].as_error, failures[0])
    models, histories = zip(*done, strict=True)
    num_draws = min(jax.tree.leaves(model)[0].shape[1] for model in models)  # a time limit may have cut them short
    model = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate([leaf[:, :num_draws] for leaf in leaves])), *models)
    phases = [phase for phase in histories[0].energy if all(phase in one.energy for one in histories)]
    steps = [one.step_sizes[-1] for one in histories if one.step_sizes]
    history = History(
        energy={phase: _side_by_side([one.energy[phase] for one in histories]) for phase in phases},
        evaluations=max(one.evaluations for one in histories),
        seconds=max(one.seconds for one in histories),
        interrupted=any(one.interrupted for one in histories),
        events=(*failures, *(event for one in histories for event in one.events)),
        temperature={
            name: np.concatenate([one.temperature[name] for one in histories]) for name in histories[0].temperature
        },
        step_sizes=(np.concatenate(steps),) if steps else (),
    )
    return Fit(Posterior(model), history)


def _side_by_side(energies: list[np.ndarray]) -> np.ndarray:
    """Energies of several chains `[C T]`, cut to the shortest."""
    shortest = min(energy.shape[1] for energy in energies)
    return np.concatenate([energy[:, :shortest] for energy in energies])
