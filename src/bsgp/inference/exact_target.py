"""Log joint of the kernel and noise of an exact GP."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from bsgp.data.store.sources import ArraySource, as_source
from bsgp.models.exact_gp import ExactGP, check_few_rows
from bsgp.models.kernel_choice import KernelChoice, layer_kernels
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.likelihoods.gaussian_noise import START_NOISE, Gaussian, check_gaussian
from bsgp.models.parameters import DEFAULT_PRIORS, prior_name
from bsgp.runtime.checks import check_matrix

DATA = ("X", "y", "weight", "known_variance")
"""Fields of an `ExactGP` that hold its data."""


class ExactTarget(eqx.Module):
    """Log joint of an exact GP's kernel and noise given its data, in unconstrained coordinates."""

    model: ExactGP

    @property
    def _is_data(self) -> ExactGP:
        return jtu.tree_map_with_path(lambda path, _: path[0].name in DATA, self.model)

    @property
    def data(self) -> ExactGP:
        """The model with its data only; kernel and learned noise are None."""
        return eqx.filter(self.model, self._is_data)

    def start(self) -> ExactGP:
        """Position of the model: its unconstrained kernel and noise; the data are None."""
        free = eqx.filter(self.model, self._is_data, inverse=True)
        return self._map_with_prior(lambda prior, leaf: prior.bijector.inverse(leaf), free)

    def constrain_free(self, position: ExactGP) -> ExactGP:
        """Kernel and likelihood at a position; the data are None."""
        return self._map_with_prior(lambda prior, leaf: prior.bijector.forward(leaf), position)

    def constrain(self, position: ExactGP) -> ExactGP:
        """Model at a position, with the data."""
        return eqx.combine(self.constrain_free(position), self.data)

    def log_joint(self, position: ExactGP) -> Float[Array, ""]:
        """Log prior plus log marginal likelihood, as a density over unconstrained coordinates."""

        def log_prior(prior, leaf):
            return jnp.sum(prior.log_prob(prior.bijector.forward(leaf)) + prior.bijector.log_det(leaf))

        terms = jax.tree.leaves(self._map_with_prior(log_prior, position))
        return self.constrain(position).log_marginal_likelihood() + sum(terms)

    def _map_with_prior(self, function, tree: ExactGP) -> ExactGP:
        """`function(prior, leaf)` of every leaf."""

        def mapped(path, leaf):
            return function(DEFAULT_PRIORS[prior_name(self.model, path)], leaf)

        return jtu.tree_map_with_path(mapped, tree)


def exact_target(X, y, likelihood: AbstractLikelihood, kernel: KernelChoice = None) -> ExactTarget:
    """Target of the exact GP of a small table, or a source, with kernel and noise at their starting values."""
    likelihood = check_gaussian("exact-gp", likelihood)
    source = as_source(X, y)
    assert isinstance(source, ArraySource)  # for the type checker: the methods take rows in memory only
    check_few_rows(source.X)
    X = jnp.asarray(check_matrix("X", source.X))
    y = jnp.asarray(likelihood.check_targets(check_matrix("y", source.y, rows=X.shape[0])), X.dtype)
    weight, known = jax.tree.map(lambda part: jnp.asarray(part, X.dtype), (source.weight, source.known_variance))
    noise = Gaussian(jnp.full_like(likelihood.noise_variance, START_NOISE), likelihood.shared_by)
    (make_kernel,) = layer_kernels(kernel, 1, variance=1.0)
    return ExactTarget(ExactGP(make_kernel(X.shape[1], X.dtype), noise, X, y, weight, known))
