"""State that a run of chains carries from chunk to chunk, and how it is saved and restored."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.inference.checkpoints import Snapshot, tree_from_arrays, tree_to_arrays
from bsgp.inference.events import Dropped, Failure, SetBack, failure_from_json
from bsgp.inference.guard import Fault
from bsgp.inference.history import PHASES
from bsgp.inference.host_loop import EnergyTrace
from bsgp.inference.position_mass import Moments, no_moments
from bsgp.inference.programs import Chain
from bsgp.inference.sghmc_plan import Plan
from bsgp.models.parameters import block_of, leaf_name


class Stretch(NamedTuple):
    """Draws `[C S ...]` of the chains with these numbers."""

    chains: list[int]
    positions: PyTree

    def of(self, chains: list[int]) -> "Stretch":
        """The draws of some of its chains."""
        kept = [self.chains.index(chain) for chain in chains]
        return Stretch(list(chains), jax.tree.map(lambda leaf: leaf[np.asarray(kept)], self.positions))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"chains": np.asarray(self.chains)} | tree_to_arrays("draws", self.positions)

    @classmethod
    def from_arrays(cls, like: PyTree, arrays: dict[str, np.ndarray]) -> "Stretch":
        """The draws that `to_arrays` wrote; `like` has the structure of one draw of all chains."""
        chains = [int(chain) for chain in arrays["chains"]]
        num_draws = arrays["draws.0"].shape[1]
        return cls(chains, tree_from_arrays("draws", like, arrays, (len(chains), num_draws)))


class RunState:
    """All chains, stacked along the first axis, and what was seen of them."""

    def __init__(self, key: Array, positions: PyTree, spreads: PyTree, adam: PyTree, chains: Chain):
        self.key, self.positions, self.adam, self.chains = key, positions, adam, chains
        self.spreads = spreads
        """Log spreads of u that the warm start learns; no leaves if it learns none."""
        num_chains = len(chains.num_recent)
        self.numbers = list(range(num_chains))
        """Numbers of the chains that are left."""
        self.draws: list[Stretch] = []
        self.energy = EnergyTrace()
        self.step_sizes: list[np.ndarray] = []
        """Step sizes after every chunk of burn-in, `[C leaves]`."""
        self.failures: list[Failure] = []
        self.evaluations = 0
        self.heat = np.zeros((num_chains, len(self.leaf_sizes)))
        """Temperature of every leaf, summed over the draws."""
        self.moments = no_moments(*chains.sampler.momentum.shape)
        """Moments of positions during burn-in, from which the position mass is learned."""
        self.times_set_back = np.zeros(num_chains, int)
        """How often each chain was set back during the draws."""

    @property
    def num_chains(self) -> int:
        return len(self.numbers)

    @property
    def leaf_sizes(self) -> dict[str, int]:
        """Numbers in each leaf of a chain's position, by its name."""
        paths = jtu.tree_leaves_with_path(self.chains.sampler.position)
        return {leaf_name(path): leaf[0].size for path, leaf in paths}

    def friction(self, plan: Plan) -> float:
        """Friction of the chains at their present step sizes."""
        return plan.friction_at(np.asarray(self.chains.sampler.step_size))

    @property
    def is_noise(self) -> np.ndarray:
        """Whether each leaf belongs to the noise."""
        paths = jtu.tree_leaves_with_path(self.chains.sampler.position)
        return np.asarray([block_of(path) == "noise" for path, _ in paths])

    @property
    def temperature(self) -> dict[str, np.ndarray]:
        """Mean temperature of each chain over the draws so far, `[C]`, by leaf."""
        num_updates = self.energy.done("draws")
        return dict(zip(self.leaf_sizes, self.heat.T / num_updates, strict=True)) if num_updates else {}

    def note(self, kind: type[SetBack] | type[Dropped], phase: str, chain: int, fault: Fault, **more: str) -> Failure:
        """Remember what happened to the chain at a place, and return it."""
        update = self.energy.done(phase) + fault.update
        failure = kind(self.numbers[chain], phase, update, fault.what, **more)
        self.failures.append(failure)
        return failure

    def add_draws(self, positions: PyTree, temperature: np.ndarray) -> None:
        """Add the draws `[C S ...]` of a recorded chunk and the temperatures of its updates, `[C T leaves]`."""
        self.draws.append(Stretch(list(self.numbers), jax.tree.map(np.asarray, positions)))
        self.heat = self.heat + temperature.sum(axis=1)

    def all_draws(self) -> PyTree:
        """Draws so far, `[C S ...]`."""
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *(one.positions for one in self.draws))

    def keep(self, kept: np.ndarray) -> None:
        """Forget all chains but those at these places."""
        self.numbers = [self.numbers[place] for place in kept]
        self.times_set_back, self.heat = self.times_set_back[kept], self.heat[kept]
        self.energy.keep(kept)
        self.moments = Moments(*(one[kept] for one in self.moments))
        self.step_sizes = [step[kept] for step in self.step_sizes]
        self.draws = [one.of(self.numbers) for one in self.draws]
        of_all = self.positions, self.spreads, self.adam, self.chains
        self.positions, self.spreads, self.adam, self.chains = jax.tree.map(lambda leaf: leaf[kept], of_all)

    # -- on disk -----------------------------------------------------------------------------------------------

    def snapshot(self, phase: str, num_saved: int, facts: dict) -> Snapshot:
        """Everything but the first `num_saved` stretches of draws; `facts` are added to its own.

        Before the end of the warm start there are no chains to save, and later its positions do not matter.
        """
        arrays = {f"energy.{name}": energy for name, energy in self.energy.by_phase.items()}
        arrays |= {"key": np.asarray(jr.key_data(self.key)), "heat": self.heat, "times_set_back": self.times_set_back}
        if self.moments.weight.any():
            arrays |= {f"moments.{name}": one for name, one in self.moments._asdict().items()}
        if self.step_sizes:
            arrays["step_size"] = np.stack(self.step_sizes)
        if phase == "warm start":
            arrays |= tree_to_arrays("positions", self.positions) | tree_to_arrays("adam", self.adam)
            arrays |= tree_to_arrays("spreads", self.spreads)
        else:
            arrays |= tree_to_arrays("chains", self.chains)
        facts = {
            **facts,
            "phase": phase,
            "chains": self.numbers,
            "evaluations": self.evaluations,
            "failures": [failure.to_json() for failure in self.failures],
        }
        return Snapshot(arrays, facts, [one.to_arrays() for one in self.draws[num_saved:]])

    def restore(self, saved: Snapshot) -> str:
        """Take over the state of a snapshot, and return the phase in which it was taken."""
        arrays, facts = saved.arrays, saved.facts
        try:
            phase, numbers = facts["phase"], [int(number) for number in facts["chains"]]
            if phase not in PHASES or not numbers or not set(numbers) <= set(self.numbers):
                raise ValueError(f"its phase is {phase!r} and its chains are {numbers}")
            self.energy.by_phase = {p: arrays[f"energy.{p}"] for p in PHASES if f"energy.{p}" in arrays}
            self.step_sizes = list(arrays.get("step_size", ()))
            if "moments.weight" in arrays:
                self.moments = Moments(*(arrays[f"moments.{name}"] for name in Moments._fields))
            self.failures = [failure_from_json(one) for one in facts["failures"]]
            self.evaluations = int(facts["evaluations"])
            self.heat, self.times_set_back = arrays["heat"], arrays["times_set_back"]
            self.key = jr.wrap_key_data(jnp.asarray(arrays["key"]))
            one_draw = self.chains.sampler.position
            self.draws = [Stretch.from_arrays(one_draw, draws).of(numbers) for draws in saved.draws]
        except (KeyError, TypeError, ValueError) as error:
            raise does_not_belong(error) from None
        self.numbers = numbers
        as_jax = partial(jax.tree.map, jnp.asarray)
        if phase == "warm start":
            self.positions = as_jax(tree_from_arrays("positions", self.positions, arrays, (len(numbers),)))
            self.spreads = as_jax(tree_from_arrays("spreads", self.spreads, arrays, (len(numbers),)))
            self.adam = as_jax(tree_from_arrays("adam", self.adam, arrays, (len(numbers),)))
        else:
            self.chains = as_jax(tree_from_arrays("chains", self.chains, arrays, (len(numbers),)))
        return phase


def does_not_belong(error: Exception) -> ValueError:
    return ValueError(
        f"The checkpoint must be as it was written, got {error!r}: it belongs to another run. "
        "Delete its folder, or start over without `--resume`."
    )
