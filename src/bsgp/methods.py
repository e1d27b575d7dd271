"""The paper's Table 1 in Python: a method is an objective and a treatment of u, Z, theta and the noise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """One line of the table; `u`, `Z`, `theta` and `noise` say how each block is treated."""

    objective: str
    u: str
    Z: str
    theta: str
    noise: str
    about: str
    is_deep: bool = False
    """Whether it takes more than one layer."""
    needs_gaussian: bool = False
    """Whether it is for regression only."""
    has_chains: bool = False
    """Whether it draws Markov chains, rather than optimise."""
    can_resume: bool = False
    """Whether more draws can be added to a fit, and a fit be gone on with from a checkpoint."""
    can_stream: bool = False
    """Whether it looks at minibatches only, so that rows may stay on disk."""


METHODS: dict[str, Method] = {
    "bsgp": Method(
        objective="fitc or vfe",
        u="sample",
        Z="sample",
        theta="sample",
        noise="sample",
        about="Fully Bayesian sparse or deep Gaussian process by stochastic-gradient HMC.",
        is_deep=True,
        has_chains=True,
        can_resume=True,
        can_stream=True,
    ),
    "bsgp-z-optimised": Method(
        objective="fitc or vfe",
        u="sample",
        Z="optimise",
        theta="sample",
        noise="sample",
        about="bsgp with its inducing inputs optimised: the ablation {u, theta}.",
        is_deep=True,
        has_chains=True,
        can_resume=True,
        can_stream=True,
    ),
    "bsgp-u": Method(
        objective="fitc or vfe",
        u="sample",
        Z="optimise",
        theta="optimise",
        noise="optimise",
        about="bsgp with only its inducing variables sampled: the ablation {u}.",
        is_deep=True,
        has_chains=True,
        can_resume=True,
        can_stream=True,
    ),
    "sghmc-dgp": Method(
        objective="log of the expectation",
        u="sample",
        Z="optimise",
        theta="optimise",
        noise="optimise",
        about="Stochastic-gradient HMC over u; everything else by Monte-Carlo EM over a moving window of draws.",
        is_deep=True,
        has_chains=True,
        can_resume=True,
        can_stream=True,
    ),
    "ipvi-dgp": Method(
        objective="log of the expectation",
        u="implicit q",
        Z="optimise",
        theta="optimise",
        noise="optimise",
        about="An implicit posterior over u, learned by a generator and a discriminator.",
        is_deep=True,
        can_stream=True,
    ),
    "svgp": Method(
        objective="vfe",
        u="Gaussian q",
        Z="optimise",
        theta="optimise",
        noise="optimise",
        about="A Gaussian posterior over u with full covariance, by the evidence lower bound.",
        is_deep=True,
        can_stream=True,
    ),
    "fitc-svgp": Method(
        objective="fitc",
        u="Gaussian q",
        Z="optimise",
        theta="optimise",
        noise="optimise",
        about="svgp with the FITC objective: a noise that differs from row to row.",
        is_deep=True,
        can_stream=True,
    ),
    "mcmc-svgp": Method(
        objective="vfe",
        u="sample",
        Z="optimise",
        theta="sample",
        noise="sample",
        about="NUTS over u, kernel and noise on all rows, after Z was optimised as in svgp.",
        has_chains=True,
    ),
    "mcmc-gp": Method(
        objective="exact",
        u="-",
        Z="-",
        theta="sample",
        noise="sample",
        about="NUTS over kernel and noise of the exact Gaussian process, for small tables.",
        needs_gaussian=True,
        has_chains=True,
    ),
    "exact-gp": Method(
        objective="exact",
        u="-",
        Z="-",
        theta="optimise",
        noise="optimise",
        about="The exact Gaussian process with its kernel and noise optimised, for small tables.",
        needs_gaussian=True,
    ),
    "kiss-gp": Method(
        objective="interpolated",
        u="-",
        Z="grid",
        theta="optimise",
        noise="optimise",
        about="Cubic interpolation on a grid, for at most four inputs.",
        needs_gaussian=True,
    ),
    "dkl": Method(
        objective="interpolated",
        u="-",
        Z="grid",
        theta="optimise",
        noise="optimise",
        about="Deep kernel learning: a neural network to two features, and kiss-gp on these.",
        needs_gaussian=True,
    ),
}
