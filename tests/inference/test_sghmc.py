import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bsgp.inference.sghmc import Info, sghmc, with_step_size
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.step_size import ABSORBED_LIMIT, suggested_factor
from bsgp.inference.thermostats import friction_of_step


def log_density(position, batch, key):
    """Not Gaussian, with a random part, over a tree of two leaves."""
    a, b = position
    return -jnp.sum(jnp.cosh(a)) - 0.5 * jnp.sum((b - batch) ** 2) + jax.random.normal(key) * jnp.sum(a)


def test_the_authors_update_step_by_step(rng, getkey):
    """The release's update in NumPy, all new values from the old state."""
    num_data, eps, decay = 20, 0.05, 0.1
    sampler = sghmc(log_density, num_data, step_size=eps, friction=decay, integrator="euler", adaptation="paper")
    a, b = rng.standard_normal(3), rng.standard_normal((2, 2))
    batch = jnp.asarray(rng.standard_normal((2, 2)))
    state = sampler.init((jnp.asarray(a), jnp.asarray(b)))
    psi = np.concatenate([a, b.ravel()])
    p, g, g2, xi = np.zeros(7), np.ones(7), np.ones(7), np.ones(7)
    for step in range(6):
        key = getkey()
        density_key, noise_key = jax.random.split(jax.random.clone(key))
        slope = jax.grad(log_density)((jnp.asarray(psi[:3]), jnp.asarray(psi[3:].reshape(2, 2))), batch, density_key)
        grad = -np.concatenate([slope[0], slope[1].ravel()]) / num_data
        z = np.asarray(jax.random.normal(noise_key, (7,)))
        minv = 1 / (np.sqrt(g2 + 1e-16) + 1e-16)
        p = p - eps**2 * minv * grad - decay * p + np.sqrt(2 * (eps**2 / num_data) * decay * minv) * z
        psi = psi + p
        burning = step % 2 == 0
        if burning:
            r = 1 / (xi + 1)
            g, g2, xi = (1 - r) * g + r * grad, (1 - r) * g2 + r * grad**2, 1 + xi * (1 - g**2 / (g2 + 1e-16))
        state, _ = (sampler.burn_in if burning else sampler.step)(key, state, batch)
        got = np.concatenate([state.position[0], state.position[1].ravel()])
        assert_allclose(got, psi, rtol=1e-12)
        for ours, theirs in (
            (state.momentum, p),
            (state.gradient_mean, g),
            (state.gradient_square, g2),
            (state.window, xi),
        ):
            assert_allclose(ours, theirs, rtol=1e-10)


STIFFNESS = np.array([0.02, 0.3, 1.0, 2.0])


def long_run(integrator, key, num_steps=200_000, friction=0.2):
    """A Gaussian whose coordinates have the given stiffness at eps = 1, N = 1 and unit mass."""
    sampler = sghmc(
        lambda x, batch, key: -0.5 * jnp.sum(STIFFNESS * x**2),
        1,
        step_size=1.0,
        friction=friction,
        integrator=integrator,
    )

    def body(state, key):
        state, info = sampler.step(key, state, None)
        return state, (state.position, info)

    _, (positions, info) = jax.jit(lambda keys: jax.lax.scan(body, sampler.init(jnp.zeros(4)), keys))(
        jax.random.split(key, num_steps)
    )
    return np.asarray(positions).var(axis=0) * STIFFNESS, info


def test_baoab_positions_are_exact_on_a_gaussian(getkey):
    inflation, info = long_run("baoab", getkey())
    assert_allclose(inflation, 1.0, atol=0.08)
    assert_allclose(np.mean(info.temperature), 1.0, atol=0.03)
    assert_allclose(np.mean(info.stiffness), STIFFNESS.mean(), rtol=0.05)


def test_the_authors_positions_are_too_wide_by_what_theory_says_and_temperature_shows_it(getkey):
    inflation, info = long_run("euler", getkey())
    theory = 0.9 / (0.9 - STIFFNESS / 4)
    assert_allclose(inflation, theory, rtol=0.1)
    assert_allclose(np.mean(info.temperature), theory.mean(), rtol=0.05)


def test_gradient_noise_heats_and_temperature_shows_it(getkey):
    def noisy(x, batch, key):
        return -0.5 * jnp.sum(x**2) + 3.0 * jnp.sum(x * jax.random.normal(key, x.shape))

    sampler = sghmc(noisy, 1, step_size=0.3, friction=0.05)

    def body(state, key):
        state, info = sampler.step(key, state, None)
        return state, (state.position, info.temperature)

    start = sampler.init(jnp.zeros(10))
    _, (x, heat) = jax.lax.scan(body, start, jax.random.split(getkey(), 60_000))
    keep = 0.95
    theory = 1 + keep**2 / (1 - keep**2) * (0.3**2 * 3.0**2)
    assert_allclose(np.mean(heat), theory, rtol=0.1)
    assert_allclose(np.asarray(x)[5000:].var(), theory, rtol=0.15)


@pytest.mark.parametrize("num_coordinates", [4, 200])
def test_thermostats_take_the_heat_of_gradient_noise_away(num_coordinates, getkey):
    """Without them the positions would be half as wide again (the theory of the test above)."""
    noise = 2.0

    def noisy(x, batch, key):
        return -0.5 * jnp.sum(x**2) + noise * jnp.sum(x * jax.random.normal(key, x.shape))

    sampler = sghmc(noisy, 1, step_size=0.2, persistence=1.0, adaptation="position")

    def body(state, key):
        state, info = sampler.step(key, state, None)
        return state, (jnp.mean(state.position**2), info.temperature, info.absorbed)

    start = sampler.init(jnp.zeros(num_coordinates))
    _, found = jax.jit(lambda keys: jax.lax.scan(body, start, keys))(jax.random.split(getkey(), 60_000))
    square, temperature, absorbed = (np.asarray(one)[5_000:].mean() for one in found)
    assert_allclose(temperature, 1.0, atol=0.03)
    assert_allclose(square, 1.0, atol=0.1)
    keep = np.exp(-0.2)
    theory = keep**2 / (1 - keep**2) * (0.2 * noise) ** 2  # excess temperature without thermostats
    assert_allclose(absorbed, theory, rtol=0.3)  # a thermostat of few coordinates varies, and absorbs more


def test_friction_follows_the_step_but_heat_always_leaves_within_a_hundred_updates():
    assert_allclose(friction_of_step(np.asarray([0.2, 0.4]), 2.0), -np.expm1([-0.1, -0.2]))
    assert friction_of_step(1e-6, 2.0) > 0.009
    assert Plan(adaptation="position", persistence=2.0).friction_at(np.asarray([0.4, 0.2])) == -np.expm1(-0.1)
    assert Plan(friction=0.07).friction_at(np.asarray([0.4])) == 0.07


def test_step_size_follows_heat_and_stiffness():
    def factor(heat, stiffness, absorbed=0.0):
        info = Info(
            jnp.zeros((1, 500)),
            jnp.full((1, 500, 1), 1 + heat),
            jnp.full((1, 500, 1), stiffness),
            absorbed=jnp.full((1, 500), absorbed),
        )
        ((result,),) = suggested_factor(info, [1000], 0.05, 0.05)
        return result

    assert factor(0.0, 0.001) == 1.5
    assert factor(3.0, 0.001) == 0.5
    assert factor(0.0, 5.0) == 0.5
    assert_allclose(factor(0.0, 0.5), 0.5**0.5, rtol=1e-6)
    assert factor(0.08, 0.01) < 1 < factor(0.03, 0.01)
    assert_allclose(factor(0.0, 0.001, absorbed=4 * ABSORBED_LIMIT), 0.5)


def test_rescaling_keeps_the_temperature(getkey):
    sampler = sghmc(lambda x, b, k: -0.5 * jnp.sum(x**2), 10, step_size=0.1)
    state, _ = sampler.step(getkey(), sampler.init(jnp.ones(4)), None)
    half = with_step_size(state, jnp.asarray([0.05]))
    assert_allclose(half.step_size, [0.05])
    assert_allclose(half.momentum, state.momentum / 2)


@pytest.mark.parametrize(
    "options",
    [{"step_size": -1.0}, {"friction": 1.5}, {"integrator": "leapfrog"}, {"persistence": 2.0}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        sghmc(log_density, 10, **options)
