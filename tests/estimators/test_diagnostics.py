from dataclasses import replace

import jax.random as jr
import numpy as np
from numpy.testing import assert_allclose
from problems import tiny_target

from bsgp import Plan, Posterior, sample
from bsgp.estimators.diagnostics import Diagnostics, diagnose, energy_trace

GOOD = Diagnostics(
    evaluations=100, seconds=1.0, interrupted=False, num_chains=1, num_draws=256, rhat=1.01, ess=200.0, wobble=0.03,
    temperature={"V": 1.0},
)  # fmt: skip


def test_the_verdict_says_why():
    assert GOOD.trustworthy
    assert GOOD.verdict.startswith("Trust it")
    for change, words in (({"rhat": 1.5}, "R-hat"), ({"wobble": 0.4}, "40%"), ({"num_draws": 16}, "16 draws")):
        bad = replace(GOOD, **change)
        assert not bad.trustworthy
        assert bad.verdict.startswith("Run longer, because")
        assert words in bad.verdict
    assert not replace(GOOD, rhat=float("nan"), wobble=float("nan")).trustworthy
    assert Diagnostics.from_json(GOOD.to_json()) == GOOD


def test_a_run_is_summarised():
    target, X, y = tiny_target()
    run = sample(target, X, y, jr.key(0), plan=Plan(adam_steps=100, burn_in=200, num_draws=64, thinning=2))
    found = diagnose(Posterior.from_run(run), run.history, X[:10], jr.key(1))
    assert (found.num_chains, found.num_draws) == (1, 64)
    assert 0 < found.wobble < 1
    assert 1 <= found.ess <= 200
    trace = energy_trace(run.history)
    assert list(trace) == ["warm start", "burn-in", "draws"]
    assert_allclose(trace["warm start"].mean(), run.history.energy["warm start"].mean())
    assert np.isfinite(trace["draws"]).all()
