"""Words, objects and functions become the kernels of layers."""

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import regression

from bsgp.inference.exact_target import exact_target
from bsgp.inference.target import Target
from bsgp.models import (
    RBF,
    ActiveDimensions,
    Linear,
    Matern32,
    Periodic,
    Product,
    RationalQuadratic,
    Seasonal,
    Sum,
    default_priors,
    flat_priors,
    init_deep_gp,
    stationary,
)
from bsgp.models.deep_gp import DeepGP
from bsgp.models.kernel_choice import (
    WORD_KERNELS,
    InputColumn,
    TableKernel,
    check_kernel,
    is_plain_rbf,
    layer_kernels,
)
from bsgp.models.kernel_words import KERNEL_WORDS, parse_kernel
from bsgp.models.kernels import linear
from bsgp.models.likelihoods.gaussian_noise import gaussian
from bsgp.models.parameters import DEFAULT_PRIORS, leaf_name, prior_name
from bsgp.models.priors import LogNormal

COLUMNS = {  # a number, a category of three, a number with missing values
    "age": InputColumn((0,), 4.0),
    "city": InputColumn((1, 2, 3), None),
    "month": InputColumn((4, 5), 2.0),
}
ONE = jnp.asarray(1.0)


def made(text, num_dims=6, columns=COLUMNS, **options):
    (make,) = layer_kernels(TableKernel(parse_kernel(text), columns), 1, **options)
    return make(num_dims, jnp.float64)


def test_every_word_has_a_class():
    assert tuple(WORD_KERNELS) == KERNEL_WORDS


def test_words_are_kernels_added_and_multiplied(rng):
    X, X2 = jnp.asarray(rng.standard_normal((5, 6))), jnp.asarray(rng.standard_normal((4, 6)))
    kernel = made("linear * (rbf(age) + matern32(city, age)) + rational-quadratic", variance=0.5)

    def by_hand(X, X2):
        rbf = stationary(RBF, 1, X.dtype, 1.0)(X[:, :1], X2[:, :1])
        matern = stationary(Matern32, 4, X.dtype, 1.0)(X[:, np.array([1, 2, 3, 0])], X2[:, np.array([1, 2, 3, 0])])
        rest = stationary(RationalQuadratic, 6, X.dtype, 0.5)(X, X2)
        return linear(6, X.dtype)(X, X2) * (rbf + matern) + rest

    got, want = (jax.jit(lambda X, X2, k=k: k(X, X2))(X, X2) for k in (kernel, by_hand))
    assert_allclose(got, want, rtol=1e-12)


def test_a_period_is_in_units_of_its_column():
    kernel = made("periodic(12)(month)")
    months = jnp.arange(25.0)[:, None] / COLUMNS["month"].scale - 3.0  # standardised
    X = jnp.zeros((25, 6)).at[:, 4:5].set(months)
    missing = X[:1].at[0, 5].add(1.0)
    K = np.asarray(jax.jit(lambda X, X2: kernel(X, X2))(X[:1], jnp.concatenate([X, missing]))[0])
    assert_allclose(K[[0, 12, 24]], kernel.diag(X)[0], rtol=1e-10)
    assert np.argmin(K[:13]) == 6
    assert_allclose(K[-1], K[6], rtol=1e-10)  # a missing value is half a period away


def test_the_only_column_needs_no_name():
    assert made("periodic(12)", 1, {"month": InputColumn((0,), 2.0)}).periods == (6.0,)
    (make,) = layer_kernels("periodic(12)", 1)
    assert make(1, jnp.float64).periods == (12.0,)
    for columns in (COLUMNS, {}):
        with pytest.raises(ValueError, match=r"must name the column of `periodic\(12\)`, got none and \d to choose"):
            made("periodic(12)", columns=columns)


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        (None, (RBF, RBF, RBF)),
        ("matern32", (Matern32, Matern32, Matern32)),
        ("linear + rbf", (Sum, Sum, Sum)),
        (TableKernel(parse_kernel("linear(age) + rbf"), COLUMNS), (Sum, RBF, RBF)),
        (TableKernel(parse_kernel("rbf * periodic(12)(month)"), COLUMNS), (Product, RBF, RBF)),
        (linear(6, np.float32), (Linear, RBF, RBF)),
        (Matern32, (Matern32, Matern32, Matern32)),
        (Linear, (Linear, Linear, Linear)),
        (lambda d, dtype: stationary(Matern32, d, dtype) * linear(d, dtype), (Product, Product, Product)),
    ],
)
def test_what_later_layers_get(choice, kinds, rng):
    """A kernel about the inputs is for the first layer only."""
    X = rng.standard_normal((12, 6))
    model = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=4, depth=3, kernel=choice)
    assert tuple(type(layer.kernel) for layer in model.layers) == kinds
    assert all(leaf.dtype == X.dtype for leaf in jax.tree.leaves(model))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(ONE, jnp.ones(2)), "`lengthscales` of `kernel` must be one for each of 3 inputs, got 2"),
        (RBF(ONE, jnp.ones(3)) + linear(4, jnp.float64), "`variances` of `kernel` must be one for each of 3 inputs"),
        (ActiveDimensions(RBF(ONE, jnp.ones(1)), (7,)), "`dimensions` of `kernel` must be numbers below 3, got 7"),
        (Periodic, "must be `Linear` or a stationary kernel if it is a class, got `Periodic`"),
        ("rbf(age)", "must not name columns of arrays without names, got `age`"),
    ],
)
def test_a_kernel_that_does_not_fit_is_refused(kernel, message, rng):
    with pytest.raises(ValueError, match=message):
        init_deep_gp(rng.standard_normal((9, 3)), gaussian(1, float), jr.key(0), num_inducing=2, kernel=kernel)


def test_a_number_is_no_kernel():
    with pytest.raises(ValueError, match=r"must be words, a kernel .* got int. Write `linear \+ rbf`, for example"):
        check_kernel(3)


def test_only_rbf_is_plain():
    assert all(map(is_plain_rbf, (None, "rbf", " RBF", RBF, TableKernel(parse_kernel("rbf"), COLUMNS))))
    assert not any(map(is_plain_rbf, ("linear", "rbf + rbf", "rbf(age)", Matern32, RBF(ONE, jnp.ones(1)))))
    check_kernel(stationary(RBF, 1, jnp.float64))


def test_the_first_factor_carries_the_variance_of_a_product():
    """Otherwise two variances would share one posterior, and the prior of a product would be that of neither."""
    text = "rbf * (matern32 + linear) + rbf"
    model = init_deep_gp(np.eye(3), gaussian(1, np.float64), jr.key(0), num_inducing=2, kernel=text)
    priors = default_priors(model, factor_variance=LogNormal.with_median(7.0)).layers[0].kernel
    is_factor = [prior == LogNormal.with_median(7.0) for prior in (
        priors.left.left.variance, priors.left.right.left.variance, priors.left.right.right.variances,
        priors.left.right.right.bias_variance, priors.right.variance, priors.left.right.left.lengthscales,
    )]  # fmt: skip
    assert is_factor == [False, True, True, True, False, False]
    assert flat_priors(model).layers[0].kernel.left.right.left.variance.bijector is not None
    target = exact_target(np.eye(3), np.arange(3.0)[:, None], gaussian(1, np.float64), "rbf * matern32")
    priors = target._map_with_prior(lambda prior, _: prior, target.start())
    assert priors.kernel.left.variance == DEFAULT_PRIORS["variance"]
    assert priors.kernel.right.variance == DEFAULT_PRIORS["factor_variance"]


def names_of_priors(text, suffix):
    """`prior_name` of every leaf of a kernel whose field ends with `suffix`, from left to right."""
    model = init_deep_gp(np.eye(3), gaussian(1, np.float64), jr.key(0), num_inducing=2, kernel=text)
    leaves = jtu.tree_leaves_with_path(model)
    return [prior_name(model, path) for path, _ in leaves if leaf_name(path).endswith(f".{suffix}")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rbf + matern32", ["variance", "variance"]),
        ("linear + rbf", ["rest_variance"]),
        ("rbf + matern32 + linear", ["rest_variance", "rest_variance"]),
        ("linear * rbf + matern32", ["factor_variance", "variance"]),
        ("linear + rbf * matern32", ["rest_variance", "factor_variance"]),
    ],
)
def test_terms_beside_a_line_have_wider_priors(text, names):
    """What a line leaves over may be nothing, and may be nearly straight itself."""
    assert names_of_priors(text, "variance") == names
    assert all(name.startswith("rest_") == ("rest_variance" in names) for name in names_of_priors(text, "lengthscales"))


def test_a_prior_given_by_name_holds_beside_a_line_too():
    model = init_deep_gp(np.eye(3), gaussian(1, np.float64), jr.key(0), num_inducing=2, kernel="linear + rbf")
    given = default_priors(model, variance=LogNormal(), rest_lengthscales=LogNormal()).layers[0].kernel.right
    assert (given.variance, given.lengthscales) == (LogNormal(), LogNormal())
    assert default_priors(model).layers[0].kernel.right.variance == DEFAULT_PRIORS["rest_variance"]


class PlainLinear(Linear):
    """`Linear` as autodiff differentiates it."""

    def __call__(self, X, X2):
        return jnp.sum(X[:, None, :] * X2[None, :, :] * self.variances[None, None, :], axis=2) + self.bias_variance


class PlainRBF(RBF):
    """`RBF` as autodiff differentiates it."""

    def __call__(self, X, X2):
        difference = (X[:, None, :] - X2[None, :, :]) / self.lengthscales[None, None, :]
        return self.variance * jnp.exp(-0.5 * jnp.sum(difference**2, axis=2))


@pytest.mark.parametrize("is_exact", [True, False], ids=["u integrated out", "a minibatch"])
def test_gradients_of_the_log_joint_are_those_of_autodiff(is_exact):
    from bsgp.inference.anchor import Anchor
    from bsgp.models.batch import Batch

    X, y = (jnp.asarray(value) for value in regression(30, 2))

    def gradient(linear_kind, rbf_kind):
        def kernel(num_dims, dtype):
            lengthscales = jnp.linspace(0.5, 1.5, num_dims)
            return linear_kind(0.3 * lengthscales, 0.2 * ONE) + rbf_kind(0.7 * ONE, lengthscales)

        model = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=7, kernel=kernel, jitter=1e-6)
        target = Target(model, 30, anchor=Anchor(X, y) if is_exact else None)
        assert target.integrates_u == is_exact
        start = jax.tree.map(lambda leaf: leaf + 0.1, target.start())
        return jax.jit(jax.value_and_grad(target.log_joint))(start, Batch(X, y), jr.key(1))

    value, got = gradient(Linear, RBF)
    expected, want = gradient(PlainLinear, PlainRBF)
    assert_allclose(value, expected, rtol=1e-10)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())


def test_a_seasonal_kernel_is_a_periodic_one_with_known_periods(rng):
    X, X2 = jnp.asarray(rng.standard_normal((5, 2))), jnp.asarray(rng.standard_normal((4, 2)))
    lengthscales, periods = jnp.asarray([0.4, 1.2]), (2.0, 3.0)
    known = Seasonal(ONE, lengthscales, periods)
    assert_allclose(known(X, X2), Periodic(ONE, lengthscales, jnp.asarray(periods))(X, X2))
    assert len(jax.tree.leaves(known)) == 2
    model = init_deep_gp(X, gaussian(1, X.dtype), jr.key(0), num_inducing=2, kernel=known)
    assert isinstance(model, DeepGP)
    assert model.layers[0].kernel.periods == periods
