"""The interface between models and prediction."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
from jaxtyping import Array, Float

from bsgp.models.kernels import AbstractKernel
from bsgp.models.likelihoods.base import AbstractLikelihood
from bsgp.models.linalg.numerics import Marginals


class AbstractModel(eqx.Module):
    """One draw of a posterior: everything that prediction needs."""

    if TYPE_CHECKING:  # a field of the base class would be the first argument of every subclass

        @property
        def likelihood(self) -> AbstractLikelihood: ...

    else:
        likelihood: eqx.AbstractVar[AbstractLikelihood]

    @property
    @abc.abstractmethod
    def num_inputs(self) -> int: ...

    @property
    @abc.abstractmethod
    def num_latent(self) -> int: ...

    @property
    def depth(self) -> int:
        """Number of layers. Models without layers have depth 1."""
        return 1

    @property
    @abc.abstractmethod
    def support(self) -> str:
        """Description of what the functions are represented by, such as `100 inducing points`."""

    @property
    @abc.abstractmethod
    def input_kernel(self) -> AbstractKernel | None:
        """Kernel over the inputs; None if the model only has a kernel over learned features."""

    def factors(self) -> Any:
        """Row-independent quantities that `propagate` can reuse; None if there is nothing to precompute."""
        return None

    @abc.abstractmethod
    def propagate(self, X: Float[Array, "N D"], key: Array, factors=None) -> Marginals:
        """Marginals of the latent functions, one per row and output."""

    @abc.abstractmethod
    def propagate_with_prior(
        self, X: Float[Array, "N D"], key: Array, factors=None
    ) -> tuple[Marginals, Float[Array, " N"]]:
        """`propagate`, and the variance that the latent functions have without any data, per row."""

    @abc.abstractmethod
    def sample_function(self, X: Float[Array, "N D"], key: Array) -> Float[Array, "N P"]:
        """One function, evaluated jointly at all rows of X."""
