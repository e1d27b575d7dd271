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


METHODS: dict[str, Method] = {
    "bsgp": Method(
        objective="fitc or vfe",
        u="sample",
        Z="sample",
        theta="sample",
        noise="sample",
        about="Fully Bayesian sparse or deep Gaussian process by stochastic-gradient HMC.",
    ),
}
