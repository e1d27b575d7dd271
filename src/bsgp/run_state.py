"""What a run of chains carries from chunk to chunk, and how it is written down and read again."""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.checkpoints import Snapshot, tree_from_arrays, tree_to_arrays
from bsgp.chunks import Chain
from bsgp.target import block_of, leaf_name

PHASES = ("warm start", "burn-in", "draws")


@dataclass
class Trace:
    """What was seen on the way, per chain; time runs along the last axis."""

    energy: dict[str, np.ndarray] = field(default_factory=dict)
    """For `warm start`, `burn-in` and `draws`: energy / N of every update, `[C T]`."""
    temperature: dict[str, np.ndarray] = field(default_factory=dict)
    """During the draws, for every leaf: mean kinetic temperature of each chain, `[C]`."""
    step_size: list[np.ndarray] = field(default_factory=list)
    """After every chunk of burn-in, of each leaf, `[C leaves]`."""
    events: list[str] = field(default_factory=list)
    """Chains that were taken back, and when."""
    stopped: list[str] = field(default_factory=list)
    """Chains that were left out, and why."""


class Stretch(NamedTuple):
    """Some draws of the chains with these numbers, `[C S ...]`."""

    names: list[int]
    positions: PyTree

    def of(self, names: list[int]) -> "Stretch":
        kept = [self.names.index(name) for name in names]
        return Stretch(list(names), jax.tree.map(lambda leaf: leaf[np.asarray(kept)], self.positions))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"names": np.asarray(self.names)} | tree_to_arrays("draws", self.positions)

    @classmethod
    def from_arrays(cls, like: PyTree, arrays: dict[str, np.ndarray]) -> "Stretch":
        """`like` has the structure of one draw of all chains."""
        names = [int(name) for name in arrays["names"]]
        num_draws = arrays["draws.0"].shape[1]
        return cls(names, tree_from_arrays("draws", like, arrays, (len(names), num_draws)))


class RunState:
    """All chains, stacked along the first axis, and what was seen of them."""

    def __init__(self, key: Array, positions: PyTree, adam: PyTree, chains: Chain):
        self.key, self.positions, self.adam, self.chains = key, positions, adam, chains
        num_chains = len(chains.num_recent)
        self.names = list(range(num_chains))
        """The numbers of the chains that are still there."""
        self.draws: list[Stretch] = []
        self.trace = Trace()
        self.evaluations = 0
        self.heat = np.zeros((num_chains, len(self.leaf_names)))
        """Temperatures of every leaf, summed over the draws."""
        self.taken_back = np.zeros(num_chains, int)
        """How often each chain was, during the draws."""

    @property
    def num_chains(self) -> int:
        return len(self.names)

    @property
    def leaf_names(self) -> list[str]:
        return [leaf_name(path) for path, _ in jtu.tree_leaves_with_path(self.chains.sampler.position)]

    @property
    def leaf_sizes(self) -> list[int]:
        return [leaf[0].size for leaf in jax.tree.leaves(self.chains.sampler.position)]

    @property
    def is_noise(self) -> np.ndarray:
        """Of every leaf, whether it is the noise."""
        paths = jtu.tree_leaves_with_path(self.chains.sampler.position)
        return np.asarray([block_of(path) == "noise" for path, _ in paths])

    def done(self, phase: str) -> int:
        """Updates."""
        return self.trace.energy[phase].shape[1] if phase in self.trace.energy else 0

    def record(self, phase: str, energy: np.ndarray) -> None:
        """Energies of a chunk, per row, `[C T]`."""
        before = [self.trace.energy[phase]] if phase in self.trace.energy else []
        self.trace.energy[phase] = np.concatenate([*before, energy], axis=1)

    def add_draws(self, positions: PyTree, temperature: np.ndarray) -> None:
        """Of a chunk that was recorded: draws `[C S ...]`, and the temperatures of its updates, `[C T leaves]`."""
        self.draws.append(Stretch(list(self.names), jax.tree.map(np.asarray, positions)))
        self.heat = self.heat + temperature.sum(axis=1)
        self.trace.temperature = dict(zip(self.leaf_names, self.heat.T / self.done("draws"), strict=True))

    def all_draws(self) -> PyTree:
        """`[C S ...]`."""
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *(one.positions for one in self.draws))

    def keep(self, kept: np.ndarray) -> None:
        """Only the chains at these places."""
        self.names = [self.names[place] for place in kept]
        self.taken_back, self.heat = self.taken_back[kept], self.heat[kept]
        self.trace.energy = {phase: energy[kept] for phase, energy in self.trace.energy.items()}
        self.trace.step_size = [step[kept] for step in self.trace.step_size]
        self.draws = [one.of(self.names) for one in self.draws]
        of_all = self.positions, self.adam, self.chains
        self.positions, self.adam, self.chains = jax.tree.map(lambda leaf: leaf[kept], of_all)

    # -- on disk -----------------------------------------------------------------------------------------------

    def snapshot(self, phase: str, num_saved: int, facts: dict) -> Snapshot:
        """All of it, with the draws but for the first `num_saved` stretches; `facts` are the loop's own.

        Until the warm start is over there are no chains, and later its positions do not matter.
        """
        arrays = {f"energy.{name}": energy for name, energy in self.trace.energy.items()}
        arrays |= {"key": np.asarray(jr.key_data(self.key)), "heat": self.heat, "taken_back": self.taken_back}
        if self.trace.step_size:
            arrays["step_size"] = np.stack(self.trace.step_size)
        if phase == "warm start":
            arrays |= tree_to_arrays("positions", self.positions) | tree_to_arrays("adam", self.adam)
        else:
            arrays |= tree_to_arrays("chains", self.chains)
        facts = {
            **facts,
            "phase": phase,
            "chains": self.names,
            "evaluations": self.evaluations,
            "events": self.trace.events,
            "stopped": self.trace.stopped,
        }
        return Snapshot(arrays, facts, [one.to_arrays() for one in self.draws[num_saved:]])

    def restore(self, saved: Snapshot) -> str:
        """Stand where a snapshot does, and return the phase that it was taken in."""
        arrays, facts = saved.arrays, saved.facts
        try:
            phase, names = facts["phase"], [int(name) for name in facts["chains"]]
            if phase not in PHASES or not names or not set(names) <= set(self.names):
                raise ValueError(f"its phase is {phase!r} and its chains are {names}")
            self.trace.energy = {p: arrays[f"energy.{p}"] for p in PHASES if f"energy.{p}" in arrays}
            self.trace.step_size = list(arrays.get("step_size", ()))
            self.trace.events, self.trace.stopped = list(facts["events"]), list(facts["stopped"])
            self.evaluations = int(facts["evaluations"])
            self.heat, self.taken_back = arrays["heat"], arrays["taken_back"]
            self.key = jr.wrap_key_data(jnp.asarray(arrays["key"]))
            one_draw = self.chains.sampler.position
            self.draws = [Stretch.from_arrays(one_draw, draws).of(names) for draws in saved.draws]
        except (KeyError, TypeError, ValueError) as error:
            raise does_not_belong(error) from None
        self.names = names
        as_jax = partial(jax.tree.map, jnp.asarray)
        if phase == "warm start":
            self.positions = as_jax(tree_from_arrays("positions", self.positions, arrays, (len(names),)))
            self.adam = as_jax(tree_from_arrays("adam", self.adam, arrays, (len(names),)))
        else:
            self.chains = as_jax(tree_from_arrays("chains", self.chains, arrays, (len(names),)))
        return phase


def does_not_belong(error: Exception) -> ValueError:
    return ValueError(
        f"The checkpoint must be as it was written, got {error!r}: it does not belong. "
        "Delete its folder, or begin anew without `--resume`."
    )
