"""The log joint that is sampled: priors, Jacobians, N/B scaling and the choice of blocks, in this one place.

A position is a `DeepGP` whose free leaves are unconstrained arrays and whose other leaves are None.
A tree of priors is a `DeepGP` with a prior in the place of each parameter: change one with `eqx.tree_at`.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from bsgp.anchor import Anchor, Conditional
from bsgp.bijectors import AbstractBijector, Identity
from bsgp.checks import check_count, check_matrix, check_option, check_positive
from bsgp.data.sources import AbstractStreamedSource, ArraySource
from bsgp.fastpath import moments
from bsgp.inducing import AbstractInducingPrior, InducingNormal, InducingUniform
from bsgp.likelihoods import Gaussian
from bsgp.model import DeepGP, Share
from bsgp.numerics import Marginals, log_mean_exp
from bsgp.priors import AbstractPrior, Flat, LogNormal, Normal

BLOCKS = ("u", "Z", "theta", "noise")
TREATMENTS = ("sample", "optimise", "fix")
OBJECTIVES = ("fitc", "vfe")
ALL_OPTIMISED: dict[str, str] = {block: "optimise" for block in BLOCKS}

# METHOD section 1: medians 1 and 0.05 on the log scale for the two that the paper has
DEFAULT_PRIORS: dict[str, AbstractPrior | AbstractInducingPrior] = {
    "V": Normal(),
    "Z": InducingNormal(),
    "lengthscales": LogNormal.with_median(1.0),
    "variance": LogNormal.with_median(0.05),
    "variances": LogNormal.with_median(0.05),
    "bias_variance": LogNormal.with_median(0.05),
    "alpha": LogNormal.with_median(1.0),
    "period": LogNormal.with_median(1.0),
    "noise_variance": LogNormal.with_median(0.01, scale=3.0),
    "scale": LogNormal.with_median(0.2, scale=1.0),
}


class Batch(eqx.Module):
    """Some rows of the data."""

    X: Float[Array, "B D"]
    y: Float[Array, "B P"]
    share: Share | None = None
    """Which rows of a minibatch these are, where it is shared out over devices; None for all of it."""


def is_prior(node) -> bool:
    return isinstance(node, AbstractPrior | AbstractInducingPrior)


def _field(path) -> str:
    return path[-1].name


def block_of(path) -> str | None:
    """The block that a leaf of a `DeepGP` belongs to; None for constants such as the linear mean."""
    names = [getattr(entry, "name", None) for entry in path]
    if names[-1] in ("V", "Z", "W", "root"):
        return {"V": "u", "Z": "Z", "W": None, "root": None}[names[-1]]
    return "theta" if "kernel" in names else "noise"


def leaf_name(path) -> str:
    """A readable name of a leaf, such as `layers.0.kernel.lengthscales`."""
    return ".".join(str(getattr(entry, "name", getattr(entry, "idx", entry))) for entry in path)


def default_priors(
    model: DeepGP, inducing_prior: AbstractInducingPrior | None = None, **others: AbstractPrior
) -> DeepGP:
    """A tree of priors for `model`: the paper's, with `inducing_prior` (normal by default) on every Z.

    `others` are for parameters by name, of every layer: `lengthscales=LogNormal.with_median(2.0)`.
    """
    names = {_field(path) for path, _ in jtu.tree_leaves_with_path(model)} | DEFAULT_PRIORS.keys()
    for name in others:
        check_option("the name of a prior", name, sorted(names - {"Z"}))
    table = DEFAULT_PRIORS | others
    if inducing_prior is not None:
        table = table | {"Z": inducing_prior}

    def prior_of(path, _):
        if block_of(path) is None:
            return None
        if _field(path) not in table:
            raise ValueError(
                f"No default prior for `{leaf_name(path)}`, got a parameter of an unknown name. "
                f"Pass its prior by name, `{_field(path)}=`."
            )
        return table[_field(path)]

    return jtu.tree_map_with_path(prior_of, model)


def flat_priors(model: DeepGP) -> DeepGP:
    """No opinion on Z, theta and the noise, for methods that optimise them; V keeps its N(0, I)."""

    def flat(prior):
        if isinstance(prior, AbstractInducingPrior):
            return InducingUniform()
        return prior if isinstance(prior, Normal) else Flat(prior.bijector)

    return jax.tree.map(flat, default_priors(model), is_leaf=is_prior)


def _check_treatment(treatment: Mapping[str, str]) -> dict[str, str]:
    for block, how in treatment.items():
        check_option("a block in `treatment`", block, BLOCKS)
        check_option(f"treatment[{block!r}]", how, TREATMENTS)
    return {block: treatment.get(block, "sample") for block in BLOCKS}


class Target(eqx.Module):
    """`log_joint(position, batch, key)` of a deep GP, unbiased over minibatches and hidden draws.

    Each of the blocks u, Z, theta and noise is sampled, optimised or fixed. A sampled block brings the Jacobian
    of its coordinates, since a density is being transformed; an optimised one does not, so that its optimum
    does not depend on coordinates.
    """

    model: DeepGP
    priors: DeepGP
    num_data: int = eqx.field(static=True)
    objective: str = eqx.field(static=True)
    treatment: tuple[tuple[str, str], ...] = eqx.field(static=True)
    num_passes: int = eqx.field(static=True)
    power: float = eqx.field(static=True)
    anchor: Anchor | None

    def __init__(
        self,
        model: DeepGP,
        num_data: int,
        *,
        priors: DeepGP | None = None,
        objective: str = "fitc",
        treatment: Mapping[str, str] | None = None,
        num_passes: int = 1,
        power: float = 1.0,
        anchor: Anchor | None = None,
    ):
        """`num_passes` > 1 averages the likelihood over that many draws of the hidden layers before the log.

        `power` is that of the likelihood: below 1 the data count for fewer rows than they are, as they should where no
        parameters describe them all, and the posterior is wider by about its root.

        `anchor` changes the coordinates of the last layer's u, not the target; see `bsgp.anchor`.
        """
        self.model = model
        self.priors = default_priors(model) if priors is None else priors
        self.num_data = check_count("num_data", num_data)
        self.objective = check_option("objective", objective, OBJECTIVES)
        self.treatment = tuple(_check_treatment(treatment or {}).items())
        self.num_passes = check_count("num_passes", num_passes)
        check_positive("power", power)
        self.power = float(power)
        self.anchor = anchor
        if anchor is not None:
            self._check_anchor()

    @property
    def num_counted(self) -> float:
        """Rows that the data count for; energies and gradients are told per one of these."""
        return self.power * self.num_data

    def _check_anchor(self):
        likelihood = type(self.model.likelihood).__name__
        if not isinstance(self.model.likelihood, Gaussian) or self._treats("u") != "sample" or self.num_passes > 1:
            raise ValueError(
                "`anchor` must go with a Gaussian likelihood, a sampled u and one pass, got "
                f"{likelihood}, u: {self._treats('u')!r} and {self.num_passes}. Pass `anchor=None`."
            )

    def data_of(self, X, y=None) -> Batch | AbstractStreamedSource:
        """As `all_rows`, or a source and None: rows on disk stay there."""
        if isinstance(X, AbstractStreamedSource):
            return self._checked(X)
        return self.all_rows(*X.rows) if isinstance(X, ArraySource) else self.all_rows(X, y)

    def all_rows(self, X, y) -> Batch:
        """All of the data, checked against the model."""
        X = check_matrix("X", X, columns=self.model.num_inputs, rows=self.num_data)
        y = self.model.likelihood.check_targets(check_matrix("y", y, rows=X.shape[0]))
        X = jnp.asarray(X)
        return Batch(X, jnp.asarray(y, X.dtype))

    def _checked(self, source: AbstractStreamedSource) -> AbstractStreamedSource:
        expected, got = (self.num_data, self.model.num_inputs), (source.num_rows, source.num_inputs)
        if expected != got:
            raise ValueError(
                f"The source must have {expected[0]} rows and {expected[1]} inputs, got {got[0]} and {got[1]}. "
                "Build the target for this source."
            )
        return source

    def _treats(self, block: str) -> str:
        return dict(self.treatment)[block]

    def treatment_of(self, path) -> str:
        block = block_of(path)
        return "fix" if block is None else self._treats(block)

    def select(self, tree: PyTree, *treatments: str) -> PyTree:
        """`tree` with the leaves of other treatments replaced by None."""
        return jtu.tree_map_with_path(lambda path, leaf: leaf if self.treatment_of(path) in treatments else None, tree)

    def unconstrain(self, model: DeepGP) -> DeepGP:
        """The position of a model: its sampled and optimised leaves on the real line."""
        if self.anchor is not None:
            model = _with_last_V(model, self._conditional(model).to_xi(model.layers[-1].V))
        return self._unconstrain_all_but_u(model)

    def _unconstrain_all_but_u(self, model: DeepGP) -> DeepGP:
        free = self.select(model, "sample", "optimise")
        return self._map_with_prior(lambda _, prior, leaf: _bijector(prior).inverse(leaf), free)

    def constrain(self, position: DeepGP) -> tuple[DeepGP, Float[Array, ""]]:
        """The model at a position, and the log Jacobian of its sampled leaves."""
        model, log_det = self._constrain_all_but_u(position)
        if self.anchor is None:
            return model, log_det
        conditional = self._conditional(model)
        return _with_last_V(model, conditional.to_V(model.layers[-1].V)), log_det + conditional.log_det

    def _constrain_all_but_u(self, position: DeepGP) -> tuple[DeepGP, Float[Array, ""]]:
        """As `constrain`, with xi left in the place of an anchored V."""
        free = self._map_with_prior(lambda _, prior, leaf: _bijector(prior).forward(leaf), position)
        log_dets = self._map_with_prior(
            lambda _, prior, leaf: jnp.sum(_bijector(prior).log_det(leaf)), self.select(position, "sample")
        )
        return eqx.combine(free, self.model), sum(jax.tree.leaves(log_dets), start=jnp.zeros((), self.dtype))

    def _conditional(self, model: DeepGP) -> Conditional:
        assert self.anchor is not None  # for the type checker
        return self.anchor.conditional(model, self.num_counted, self.objective)

    @property
    def integrates_u(self) -> bool:
        """Whether the anchor is all rows of a shallow model, so that the log joint has a closed form in xi."""
        return self.anchor is not None and self.model.depth == 1 and self.anchor.X.shape[0] == self.num_data

    def start(self) -> DeepGP:
        """The model's position; an anchored u begins at its conditional mean."""
        position = self._unconstrain_all_but_u(self.model)
        if self.anchor is None:
            return position
        return _with_last_V(position, jnp.zeros_like(position.layers[-1].V))

    def log_prior(self, model: DeepGP, *, but_for: str | None = None) -> Float[Array, ""]:
        """Over the free blocks only, a fixed one adds a constant; `but_for` names a block to leave out."""

        def term(path, prior, leaf):
            if isinstance(prior, AbstractInducingPrior):
                layer = model.layers[path[1].idx]
                return prior.log_prob(leaf, layer.kernel, layer.jitter)
            return jnp.sum(prior.log_prob(leaf))

        free = self.select(model, "sample", "optimise")
        if but_for is not None:
            free = jtu.tree_map_with_path(lambda path, leaf: None if block_of(path) == but_for else leaf, free)
        terms = self._map_with_prior(term, free)
        return sum(jax.tree.leaves(terms), start=jnp.zeros((), self.dtype))

    def integral(self, model: DeepGP):
        """The likelihood's integral that the objective is made of."""
        likelihood = model.likelihood
        return likelihood.log_expected_prob if self.objective == "fitc" else likelihood.expected_log_prob

    def log_likelihood(self, model: DeepGP, batch: Batch, key: Array) -> Float[Array, " B"]:
        """The objective's integral for each row, outputs summed."""
        integral = self.integral(model)

        def one_pass(pass_key):
            return jnp.sum(integral(batch.y, model.propagate(batch.X, pass_key, share=batch.share)), axis=1)

        if self.num_passes == 1 or model.depth == 1:  # a single layer has nothing to draw
            return one_pass(key)
        passes = jax.vmap(one_pass)(jr.split(key, self.num_passes))
        return log_mean_exp(passes, axis=0) if self.objective == "fitc" else jnp.mean(passes, axis=0)

    def log_joint(self, position: DeepGP, batch: Batch, key: Array) -> Float[Array, ""]:
        """eq. 5 (FITC) or eq. 3 (VFE) on a minibatch, as a density over the sampled coordinates."""
        if self.anchor is not None:
            return self._anchored_log_joint(self.anchor, position, batch, key)
        model, log_det = self.constrain(position)
        scale = self.num_counted / batch.X.shape[0]
        return self.log_prior(model) + log_det + scale * jnp.sum(self.log_likelihood(model, batch, key))

    def _anchored_log_joint(self, anchor: Anchor, position: DeepGP, batch: Batch, key: Array) -> Float[Array, ""]:
        """The same from one pass of batch and anchor rows together, which share every factorisation."""
        model, log_det = self._constrain_all_but_u(position)
        if self.integrates_u:  # xi in the place of V: its N(0, I) prior is the density of xi
            return self.log_prior(model) + log_det + self._conditional(model).log_evidence
        num_rows = batch.X.shape[0]
        last = model.layers[-1]
        rows = jnp.concatenate([batch.X, anchor.X])
        A, left = last.whitened(model.hidden(rows, key, num_drawn=num_rows, share=batch.share))
        times = self.num_counted / anchor.num_rows
        anchored = [a[:, num_rows:] for a in A], left[num_rows:]
        conditional = anchor.conditional_at(*anchored, model.likelihood, times, self.objective)
        V = conditional.to_V(last.V)
        mean, _ = moments([a[:, :num_rows] for a in A], V)
        f = Marginals(mean, jnp.broadcast_to(left[:num_rows, None], mean.shape))
        log_likelihood = self.num_counted / num_rows * jnp.sum(self.integral(model)(batch.y, f))
        return self.log_prior(_with_last_V(model, V)) + log_det + conditional.log_det + log_likelihood

    @property
    def dtype(self):
        return self.model.layers[0].Z.dtype

    def _map_with_prior(self, function, tree):
        """`function(path, prior, leaf)` over the leaves of a masked tree; None stays None."""
        priors = {leaf_name(path): prior for path, prior in jtu.tree_leaves_with_path(self.priors, is_leaf=is_prior)}
        return jtu.tree_map_with_path(lambda path, leaf: function(path, priors[leaf_name(path)], leaf), tree)


def _with_last_V(model: DeepGP, V: Float[Array, "M P"]) -> DeepGP:
    return eqx.tree_at(lambda tree: tree.layers[-1].V, model, V)


def _bijector(prior: AbstractPrior | AbstractInducingPrior) -> AbstractBijector:
    return Identity() if isinstance(prior, AbstractInducingPrior) else prior.bijector
