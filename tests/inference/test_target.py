import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from numpy.testing import assert_allclose
from problems import tiny_target

from bsgp import Batch, Target, default_priors
from bsgp.inference.anchor import Anchor
from bsgp.models.inducing_priors import Determinantal, InducingUniform
from bsgp.models.priors import Exp, Flat, Gamma


def batch_of(X, y, rows=slice(None)):
    return Batch(jnp.asarray(X[rows]), jnp.asarray(y[rows]))


@pytest.mark.parametrize("objective", ["fitc", "vfe", "tighter-vfe"])
def test_mean_over_minibatches_is_the_full_log_joint(objective, getkey):
    target, X, y = tiny_target(objective=objective)
    position, key = target.unconstrain(target.model), getkey()
    full = target.log_joint(position, batch_of(X, y), key)
    parts = [target.log_joint(position, batch_of(X, y, rows), key) for rows in np.split(np.arange(30), 6)]
    assert_allclose(np.mean(parts), full, rtol=1e-12)


def test_log_joint_written_out(getkey):
    """eq. 5 with the priors of docs/method.md: densities in the log coordinates, no further Jacobian."""
    target, X, y = tiny_target()
    model = target.model
    layer, noise = model.layers[0], model.likelihood.noise_variance
    f = layer.conditional(jnp.asarray(X))
    expected = (
        st.norm.logpdf(y, f.mean, np.sqrt(f.variance + noise[None, :])).sum()
        + st.norm.logpdf(layer.V).sum()
        - 0.5 * np.sum(layer.Z**2)
        + st.norm.logpdf(np.log(layer.kernel.lengthscales)).sum()
        + st.norm.logpdf(np.log(layer.kernel.variance), np.log(0.05))
        + st.norm.logpdf(np.log(noise), np.log(0.01), 3.0).sum()
    )
    assert_allclose(target.log_joint(target.unconstrain(model), batch_of(X, y), getkey()), expected, rtol=1e-10)


def test_constrain_inverts_unconstrain_and_its_jacobian_is_autodiffs():
    target, _, _ = tiny_target()
    target = Target(
        target.model, 30, priors=eqx.tree_at(lambda p: p.layers[0].kernel.variance, target.priors, Gamma(2.0, 3.0))
    )
    position = target.unconstrain(target.model)
    model, log_det = target.constrain(position)
    for got, want in zip(jax.tree.leaves(model), jax.tree.leaves(target.model), strict=True):
        assert_allclose(got, want, rtol=1e-12)
    flat, unravel = jax.flatten_util.ravel_pytree(position)
    jacobian = jax.jacobian(lambda x: jax.flatten_util.ravel_pytree(target.constrain(unravel(x))[0])[0])(flat)
    assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9)


def test_only_free_blocks_are_in_the_position():
    treatment = {"u": "sample", "Z": "fix", "theta": "optimise", "noise": "fix"}
    target, _, _ = tiny_target(treatment=treatment)
    position = target.unconstrain(target.model)
    assert position.layers[0].Z is None
    assert position.likelihood.noise_variance is None
    assert position.layers[0].V is not None
    assert position.layers[0].kernel.variance is not None
    assert len(jax.tree.leaves(target.select(position, "sample"))) == 1
    assert len(jax.tree.leaves(target.select(position, "optimise"))) == 2


def test_sampled_blocks_bring_a_jacobian_and_optimised_ones_do_not(getkey):
    sampled, X, y = tiny_target()
    optimised, _, _ = tiny_target(treatment={"theta": "optimise"})
    key = getkey()
    with_jacobian = sampled.log_joint(sampled.unconstrain(sampled.model), batch_of(X, y), key)
    without = optimised.log_joint(optimised.unconstrain(optimised.model), batch_of(X, y), key)
    kernel = sampled.model.layers[0].kernel
    log_det = np.log(kernel.variance) + np.sum(np.log(kernel.lengthscales))
    assert_allclose(with_jacobian - without, log_det, rtol=1e-9)


def test_fixed_blocks_have_no_prior_and_flat_ones_none_either(getkey):
    target, X, y = tiny_target()
    key, fixed = getkey(), {"u": "fix", "Z": "fix", "theta": "fix", "noise": "sample"}
    flat = eqx.tree_at(lambda p: p.likelihood.noise_variance, target.priors, Flat(Exp()))
    alone = Target(target.model, 30, priors=flat, treatment={**fixed, "noise": "optimise"})
    likelihood = alone.log_likelihood(target.model, batch_of(X, y), key).sum()
    assert_allclose(alone.log_joint(alone.unconstrain(target.model), batch_of(X, y), key), likelihood)


def test_priors_by_name_are_put_on_every_layer():
    target, _, _ = tiny_target(depth=2)
    priors = default_priors(target.model, lengthscales=Gamma(2.0, 1.0))
    assert [type(layer.kernel.lengthscales) for layer in priors.layers] == [Gamma, Gamma]
    assert not isinstance(priors.layers[0].kernel.variance, Gamma)
    for name in ("lengthscale", "Z"):  # one that is not there, and one that has an argument of its own
        with pytest.raises(ValueError, match=f"got '{name}'"):
            default_priors(target.model, **{name: Gamma(2.0, 1.0)})


def test_inducing_priors_are_put_on_every_layer(getkey):
    target, _, _ = tiny_target(depth=2)
    uniform = Target(target.model, 30, priors=default_priors(target.model, InducingUniform()))
    determinantal = Target(target.model, 30, priors=default_priors(target.model, Determinantal()))
    model = target.model
    expected = sum(Determinantal().log_prob(m.Z, m.kernel, m.jitter) for m in model.layers)
    assert_allclose(determinantal.log_prior(model) - uniform.log_prior(model), expected, rtol=1e-9)


def test_outputs_are_summed(rng, getkey):
    target, X, y = tiny_target()
    layer = target.model.layers[0]
    twice = eqx.tree_at(
        lambda m: (m.layers[0].V, m.likelihood.noise_variance),
        target.model,
        (jnp.tile(layer.V, (1, 2)), jnp.tile(target.model.likelihood.noise_variance, 2)),
    )
    both = target.log_likelihood(twice, Batch(jnp.asarray(X), jnp.asarray(np.tile(y, 2))), getkey())
    assert_allclose(both, 2 * target.log_likelihood(target.model, batch_of(X, y), getkey()), rtol=1e-10)


@pytest.mark.parametrize("objective", ["fitc", "vfe"])
@pytest.mark.parametrize("num_anchor", [None, 10, 30], ids=["plain", "anchored", "u integrated out"])
def test_a_power_is_that_many_copies_of_the_data(num_anchor, objective, getkey):
    target, X, y = tiny_target()

    def with_rows(X, y, power):
        anchor = None
        if num_anchor is not None:
            picked = slice(num_anchor * len(X) // 30)
            anchor = Anchor(jnp.asarray(X[picked]), jnp.asarray(y[picked]))
        return Target(target.model, len(X), objective=objective, power=power, anchor=anchor)

    thrice = with_rows(np.repeat(X, 3, axis=0), np.repeat(y, 3, axis=0), 1.0)
    powered = with_rows(X, y, 3.0)
    position, key = powered.unconstrain(target.model), getkey()
    expected = thrice.log_joint(position, batch_of(np.repeat(X, 3, axis=0), np.repeat(y, 3, axis=0)), key)
    assert_allclose(powered.log_joint(position, batch_of(X, y), jax.random.clone(key)), expected, rtol=1e-10)
    # a minibatch counts for all rows, to the same power
    parts = [powered.log_joint(position, batch_of(X[i::3], y[i::3]), jax.random.clone(key)) for i in range(3)]
    assert_allclose(np.mean(parts), expected, rtol=1e-10)
    assert powered.num_counted == 90


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "elbo"},
        {"treatment": {"w": "sample"}},
        {"treatment": {"u": "guess"}},
        {"power": 0.0},
        {"power": float("inf")},
    ],
)
def test_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        tiny_target(**options)
