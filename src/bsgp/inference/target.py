"""The log joint that samplers see: priors, Jacobians, the factor N/B and the choice of blocks, all in one place.

A position is a `DeepGP` whose free leaves are unconstrained arrays and whose other leaves are None.
A tree of priors is a `DeepGP` with a prior instead of each parameter: change one with `eqx.tree_at`.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from bsgp.data.store.sources import AbstractSource, AbstractStreamedSource, ArraySource
from bsgp.inference.anchor import Anchor, Conditional
from bsgp.inference.objectives import FITC, AbstractObjective, as_objective
from bsgp.models.batch import Batch
from bsgp.models.deep_gp import DeepGP
from bsgp.models.inducing_priors import AbstractInducingPrior
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import Gaussian, with_known_variance
from bsgp.models.linalg.conditional import mean_and_explained
from bsgp.models.linalg.numerics import Marginals
from bsgp.models.parameters import BLOCKS, block_of, default_priors, is_prior, leaf_name
from bsgp.models.priors import AbstractBijector, AbstractPrior, Identity
from bsgp.runtime.checks import check_count, check_matrix, check_option, check_positive

TREATMENTS = ("sample", "optimise", "fix")
ALL_OPTIMISED: dict[str, str] = {block: "optimise" for block in BLOCKS}


def _check_treatment(treatment: Mapping[str, str]) -> dict[str, str]:
    for block, how in treatment.items():
        check_option("a block in `treatment`", block, BLOCKS)
        check_option(f"treatment[{block!r}]", how, TREATMENTS)
    return {block: treatment.get(block, "sample") for block in BLOCKS}


class Target(eqx.Module):
    """Log joint of a deep GP, `log_joint(position, batch, key)`, unbiased over minibatches and hidden draws.

    Each of the blocks u, Z, theta and noise is sampled, optimised or fixed. A sampled block brings the Jacobian of its
    coordinates, since a density is being transformed. An optimised block does not, so that its optimum does not depend
    on the coordinates.
    """

    model: DeepGP
    priors: DeepGP
    num_data: int = eqx.field(static=True)
    objective: AbstractObjective = eqx.field(static=True)
    treatment: tuple[tuple[str, str], ...] = eqx.field(static=True)
    power: float = eqx.field(static=True)
    total_weight: float | None = eqx.field(static=True)
    anchor: Anchor | None

    def __init__(
        self,
        model: DeepGP,
        num_data: int,
        *,
        priors: DeepGP | None = None,
        objective: str | AbstractObjective = FITC(),
        treatment: Mapping[str, str] | None = None,
        power: float = 1.0,
        total_weight: float | None = None,
        anchor: Anchor | None = None,
    ):
        """`objective` is an objective or its name, "fitc", "vfe" or "tighter-vfe".

        `power` raises the likelihood to a power: below 1 the data count for fewer rows than there are, and the
        posterior is wider by about the square root.

        `total_weight` is the sum of the weights of all rows, if they have weights. It is the effective number of rows,
        by which energies and gradients are divided; the weights themselves come with the batches.

        `anchor` changes the coordinates of the last layer's u, not the target; see `bsgp.inference.anchor`.
        """
        self.model = model
        self.priors = default_priors(model) if priors is None else priors
        self.num_data = check_count("num_data", num_data)
        self.objective = as_objective(objective)
        self.objective.check_likelihood(model.likelihood)
        self.treatment = tuple(_check_treatment(treatment or {}).items())
        check_positive("power", power)
        self.power = float(power)
        if total_weight is not None:
            check_positive("total_weight", total_weight)
        self.total_weight = total_weight
        self.anchor = anchor
        if anchor is not None:
            self._check_anchor()

    @property
    def num_counted(self) -> float:
        """Effective number of rows, `power` times their number or total weight. Energies and gradients are per row."""
        return self.power * (self.num_data if self.total_weight is None else self.total_weight)

    @property
    def scaled_to(self) -> float:
        """Number of rows that a minibatch is scaled up to. A row's weight comes on top."""
        return self.power * self.num_data

    @property
    def dtype(self):
        return self.model.layers[0].Z.dtype

    def _check_anchor(self):
        likelihood = type(self.model.likelihood).__name__
        if not isinstance(self.model.likelihood, Gaussian) or self._treats("u") != "sample":
            raise ValueError(
                "`anchor` must go with a Gaussian likelihood and a sampled u, got "
                f"{likelihood} and u: {self._treats('u')!r}. Pass `anchor=None`."
            )

    # -- data --------------------------------------------------------------------------------------------------

    def data_of(self, X, y=None) -> Batch | AbstractStreamedSource:
        """All rows of arrays `X`, `y`, checked against the model, or a source on disk as it is."""
        if isinstance(X, AbstractSource):
            self._check_source(X)
        if isinstance(X, AbstractStreamedSource):
            return X
        return self.all_rows(*X.rows) if isinstance(X, ArraySource) else self.all_rows(X, y)

    def all_rows(self, X, y, weight=None, known_variance=None) -> Batch:
        """All rows of the data, checked against the model."""
        X = check_matrix("X", X, columns=self.model.num_inputs, rows=self.num_data)
        y = self.model.likelihood.check_targets(check_matrix("y", y, rows=X.shape[0]))
        X = jnp.asarray(X)
        rest = jax.tree.map(lambda of_rows: jnp.asarray(of_rows, X.dtype), (weight, known_variance))
        return Batch(X, jnp.asarray(y, X.dtype), None, *rest)

    def _check_source(self, source: AbstractSource) -> None:
        if source.total_weight != self.total_weight:
            raise ValueError(
                f"The source must have rows of total weight {self.total_weight}, got {source.total_weight}. "
                "Build the target with `total_weight=source.total_weight`."
            )
        expected, got = (self.num_data, self.model.num_inputs), (source.num_rows, source.num_inputs)
        if expected != got:
            raise ValueError(
                f"The source must have {expected[0]} rows and {expected[1]} inputs, got {got[0]} and {got[1]}. "
                "Build the target for this source."
            )

    # -- blocks ------------------------------------------------------------------------------------------------

    def _treats(self, block: str) -> str:
        return dict(self.treatment)[block]

    def treatment_of(self, path) -> str:
        """How the leaf at a path of the model is treated."""
        block = block_of(path)
        return "fix" if block is None else self._treats(block)

    def select(self, tree: PyTree, *treatments: str) -> PyTree:
        """`tree` with the leaves of other treatments replaced by None."""
        return jtu.tree_map_with_path(lambda path, leaf: leaf if self.treatment_of(path) in treatments else None, tree)

    # -- coordinates -------------------------------------------------------------------------------------------

    def start(self) -> DeepGP:
        """Position of the model; an anchored u starts at its conditional mean."""
        position = self._unconstrain_without_anchor(self.model)
        if self.anchor is None:
            return position
        return _with_last_V(position, jnp.zeros_like(position.layers[-1].V))

    def unconstrain(self, model: DeepGP) -> DeepGP:
        """Position of a model: its sampled and optimised leaves on the real line."""
        if self.anchor is not None:
            model = _with_last_V(model, self._conditional(model).to_xi(model.layers[-1].V))
        return self._unconstrain_without_anchor(model)

    def _unconstrain_without_anchor(self, model: DeepGP) -> DeepGP:
        free = self.select(model, "sample", "optimise")
        return self._map_with_prior(lambda _, prior, leaf: _bijector(prior).inverse(leaf), free)

    def constrain(self, position: DeepGP) -> tuple[DeepGP, Float[Array, ""]]:
        """Model at a position, and the log Jacobian of its sampled leaves."""
        model, log_det = self._constrain_without_anchor(position)
        if self.anchor is None:
            return model, log_det
        conditional = self._conditional(model)
        return _with_last_V(model, conditional.to_V(model.layers[-1].V)), log_det + conditional.log_det

    def _constrain_without_anchor(self, position: DeepGP) -> tuple[DeepGP, Float[Array, ""]]:
        """Model at a position that holds xi instead of an anchored V, and the log Jacobian of the other leaves."""
        free = self._map_with_prior(lambda _, prior, leaf: _bijector(prior).forward(leaf), position)
        log_dets = self._map_with_prior(
            lambda _, prior, leaf: jnp.sum(_bijector(prior).log_det(leaf)), self.select(position, "sample")
        )
        return eqx.combine(free, self.model), sum(jax.tree.leaves(log_dets), start=jnp.zeros((), self.dtype))

    def _conditional(self, model: DeepGP) -> Conditional:
        assert self.anchor is not None  # for the type checker
        return self.anchor.conditional(model, self.scaled_to, self.objective)

    @property
    def integrates_u(self) -> bool:
        """Whether all rows of a shallow model are anchors, so that the log joint has a closed form in xi."""
        return self.anchor is not None and self.model.depth == 1 and self.anchor.X.shape[0] == self.num_data

    # -- densities ---------------------------------------------------------------------------------------------

    def log_prior(self, model: DeepGP, *, without: str | None = None) -> Float[Array, ""]:
        """Log prior of the free blocks (a fixed one adds a constant), `without` one of them if named."""

        def term(path, prior, leaf):
            if isinstance(prior, AbstractInducingPrior):
                layer = model.layers[path[1].idx]
                return prior.log_prob(leaf, layer.kernel, layer.jitter)
            return jnp.sum(prior.log_prob(leaf))

        free = self.select(model, "sample", "optimise")
        if without is not None:
            free = jtu.tree_map_with_path(lambda path, leaf: None if block_of(path) == without else leaf, free)
        terms = self._map_with_prior(term, free)
        return sum(jax.tree.leaves(terms), start=jnp.zeros((), self.dtype))

    def log_likelihood(self, model: DeepGP, batch: Batch, key: Array) -> Float[Array, " B"]:
        """Term of each row in the objective, weighted, outputs summed; hidden layers are drawn once."""
        return jnp.sum(self._terms(model, batch, model.propagate(batch.X, key, shard=batch.shard)), axis=1)

    def _terms(self, model: DeepGP, batch: Batch, f: Marginals) -> Float[Array, "B P"]:
        """Weighted term of each row and output, given the marginals of f."""
        likelihood: AbstractLikelihood = with_known_variance(model.likelihood, batch.known_variance)
        return batch.weighted(self.objective.row_terms(likelihood)(batch.y, f))

    def log_joint(self, position: DeepGP, batch: Batch, key: Array) -> Float[Array, ""]:
        """Eq. 5 (FITC), eq. 3 (VFE) or its tighter form on a minibatch, as a density over the sampled coordinates."""
        if self.anchor is not None:
            return self._anchored_log_joint(self.anchor, position, batch, key)
        model, log_det = self.constrain(position)
        scale = self.scaled_to / batch.X.shape[0]
        return self.log_prior(model) + log_det + scale * jnp.sum(self.log_likelihood(model, batch, key))

    def _anchored_log_joint(self, anchor: Anchor, position: DeepGP, batch: Batch, key: Array) -> Float[Array, ""]:
        """`log_joint` from one pass of batch and anchor rows together, which share every factorisation."""
        model, log_det = self._constrain_without_anchor(position)
        if self.integrates_u:  # xi stands for V, and its N(0, I) prior is the density of xi
            evidence = anchor.log_evidence(model, self.scaled_to, self.objective)
            return self.log_prior(model) + log_det + evidence
        num_rows = batch.X.shape[0]
        last = model.layers[-1]
        rows = jnp.concatenate([batch.X, anchor.X])
        A, residual = last.whitened(model.hidden(rows, key, num_drawn=num_rows, shard=batch.shard))
        times = self.scaled_to / anchor.num_rows
        anchored = [a[:, num_rows:] for a in A], residual[num_rows:]
        conditional = anchor.conditional_at(*anchored, model.likelihood, times, self.objective)
        V = conditional.to_V(last.V)
        mean, _ = mean_and_explained([a[:, :num_rows] for a in A], V)
        f = Marginals(mean, jnp.broadcast_to(residual[:num_rows, None], mean.shape))
        log_likelihood = self.scaled_to / num_rows * jnp.sum(self._terms(model, batch, f))
        return self.log_prior(_with_last_V(model, V)) + log_det + conditional.log_det + log_likelihood

    def _map_with_prior(self, function, tree):
        """`function(path, prior, leaf)` over the leaves of a masked tree; None stays None."""
        priors = {leaf_name(path): prior for path, prior in jtu.tree_leaves_with_path(self.priors, is_leaf=is_prior)}
        return jtu.tree_map_with_path(lambda path, leaf: function(path, priors[leaf_name(path)], leaf), tree)


def _with_last_V(model: DeepGP, V: Float[Array, "M P"]) -> DeepGP:
    return eqx.tree_at(lambda tree: tree.layers[-1].V, model, V)


def _bijector(prior: AbstractPrior | AbstractInducingPrior) -> AbstractBijector:
    return Identity() if isinstance(prior, AbstractInducingPrior) else prior.bijector
