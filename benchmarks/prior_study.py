"""Priors of lengthscales and kernel variance by number of inputs, for classes: which predict rows held out best?

    .venv/bin/python benchmarks/prior_study.py [--core 0]            # validation rows: to choose
    .venv/bin/python benchmarks/prior_study.py --test [--core 0]     # test rows, of the choice that was made
    .venv/bin/python benchmarks/prior_study.py --docs                # the tables of docs/recipe.md from the records

The first holds out the test rows of a split (`prior_tables.py`), fits two thirds of its training rows, at most 200,
with short chains, and scores the others. Logistic regression is scored beside them. The second fits `BSGPClassifier` as
it is, on all training rows, and scores test rows. Both append to results/prior_study.jsonl, and an interrupted study
goes on where it was. Simulated tables and those of scikit-learn; nothing is downloaded.
"""

import argparse
import json
import math
import os
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results" / "prior_study.jsonl", ROOT / "docs" / "recipe.md"
MOST_FITTED, NUM_INDUCING, NUM_CHAINS = 200, 50, 2
PLAN = {"adam_steps": 600, "burn_in": 960, "num_draws": 80, "thinning": 16, "learns_spread": False}

# name -> (location of log lengthscales, sd, location of the log variance, sd), given the number of inputs
PRIORS = {
    "median 1, sd 1": lambda d: (0.0, 1.0, 0.0, 2.0),
    "sqrt(D), 1": lambda d: (0.5 * math.log(d), 1.0, 0.0, 2.0),
    "sqrt(D), 1.73": lambda d: (0.5 * math.log(d), 3**0.5, 0.0, 2.0),
    "4.1 sqrt(D), 1.73": lambda d: (2**0.5 + 0.5 * math.log(d), 3**0.5, 0.0, 2.0),
    "D^0.9, 1.73": lambda d: (0.9 * math.log(d), 3**0.5, 0.0, 2.0),
    "4.1 sqrt(D), 1.73; variance 3, 3": lambda d: (2**0.5 + 0.5 * math.log(d), 3**0.5, math.log(3.0), 3.0),
}


def fit_short(table, held, prior, seed: int) -> dict:
    """Log loss of held-out rows after short chains under a prior."""
    import jax.numpy as jnp
    import jax.random as jr
    import numpy as np

    from bsgp import Plan, Posterior, Target, default_priors, init_deep_gp, sample
    from bsgp.models import Bernoulli

    (X, y), (X_held, y_held) = table, held
    mean, std = X.mean(axis=0), X.std(axis=0)
    X, X_held, y, y_held = (X - mean) / std, (X_held - mean) / std, y[:, None], y_held[:, None]
    model_key, sample_key, score_key = jr.split(jr.key(seed), 3)
    model = init_deep_gp(X, Bernoulli(), model_key, num_inducing=min(NUM_INDUCING, len(X)))
    length, length_sd, size, size_sd = (jnp.asarray(number) for number in prior)
    priors = default_priors(
        model, lengthscales=traced_log_normal()(length, length_sd), variance=traced_log_normal()(size, size_sd)
    )
    plan = Plan(**PLAN)
    run = sample(Target(model, len(X), priors=priors), X, y, sample_key, plan=plan, num_chains=NUM_CHAINS)
    log_density = Posterior.from_run(run).log_density(X_held, y_held, score_key)
    drawn = np.asarray(run.model.layers[0].kernel.lengthscales)
    return {"log_loss": -float(log_density.mean()), "median_lengthscale": float(np.median(drawn))}


def traced_log_normal() -> type:
    """A log-normal prior whose numbers are arrays: one compiled program serves all priors of a table."""
    import jax.numpy as jnp
    from jaxtyping import Array

    from bsgp.models.linalg.numerics import LOG_2PI
    from bsgp.models.priors import AbstractPrior, Exp

    class Traced(AbstractPrior):
        loc: Array
        scale: Array

        @property
        def bijector(self):
            return Exp()

        def log_prob(self, x):
            return -0.5 * (((jnp.log(x) - self.loc) / self.scale) ** 2 + LOG_2PI) - jnp.log(self.scale) - jnp.log(x)

        def sample(self, key, shape, dtype):
            return jnp.exp(self.loc + self.scale * jr.normal(key, shape, dtype))

    return _only(Traced)


_MADE: list[type] = []


def _only(made: type) -> type:
    """Always the same class, as another one would compile again."""
    _MADE[:] = _MADE or [made]
    return _MADE[0]


def logistic(table, held, searched: bool) -> dict:
    """Log loss of logistic regression on standardised inputs, with C = 1 or chosen by cross-validation."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.metrics import log_loss
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    line = LogisticRegression(max_iter=10_000)
    if searched:
        line = LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", max_iter=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about defaults that will change
        fitted = make_pipeline(StandardScaler(), line).fit(*table)
    return {"log_loss": float(log_loss(held[1], fitted.predict_proba(held[0])))}


OLD_DEFAULT = "default with 4.1 sqrt(D), 1.73"
"""The default recipe when test rows were first scored: records of commits before the prior changed with few inputs."""
LINES = {"logistic regression, C = 1": False, "logistic regression, C searched": True}


def fit_default(table, held, seed: int) -> dict:
    """Log loss of the classifier that users have."""
    from bsgp import BSGPClassifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BSGPClassifier(random_state=seed).fit(*table)
    score = -float(model.log_density(*held).mean())
    found = model.diagnostics_
    return {"log_loss": score, "rhat": found.rhat, "ess": found.ess, "evaluations": found.evaluations}


def score(rows: str, name: str, split: int, variant: str) -> dict:
    """One record."""
    import jax

    from prior_tables import fitting_and_validation, training_and_test

    began = time.process_time()
    table, held = training_and_test(name, split) if rows == "test" else fitting_and_validation(name, split, MOST_FITTED)
    with jax.enable_x64(True):
        if variant in LINES:
            found = logistic(table, held, LINES[variant])
        elif rows == "test":
            found = fit_default(table, held, split)
        else:
            found = fit_short(table, held, PRIORS[variant](table[0].shape[1]), split)
    sizes = {"num_fitted": len(table[0]), "num_held": len(held[0]), "num_inputs": table[0].shape[1]}
    return found | sizes | {"cpu_seconds": round(time.process_time() - began, 1)}


def records(rows: str) -> list[dict]:
    """Records of validation or of test rows."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [one for one in map(json.loads, lines) if one["rows"] == rows]


def markdown(rows: str) -> str:
    """Mean log loss by table and variant, over the splits that the variant of a line has, as a table in Markdown."""
    wanted = [*LINES, *PRIORS] if rows == "validation" else [*LINES, OLD_DEFAULT, "default"]
    found: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for one in records(rows):
        of_table = found.setdefault((one["table"], one["num_inputs"]), {})
        of_table.setdefault(one["variant"], {})[one["split"]] = one["log_loss"]
    lines = ["| table | inputs | splits | " + " | ".join(wanted) + " |", "|---|---:|---:|" + "---:|" * len(wanted)]
    for (name, num_inputs), scores in found.items():
        # scored last, so that the others have its splits, too
        measured = scores.get(wanted[-1]) or scores.get(wanted[-2], {})
        if measured:
            cells = [_mean_score(scores.get(variant, {}), list(measured)) for variant in wanted]
            lines.append(f"| {name} | {num_inputs} | {len(measured)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_score(scores: dict[int, float], splits: list[int]) -> str:
    """Mean over splits; empty if one of them is missing."""
    return f"{sum(scores[s] for s in splits) / len(splits):.3f}" if set(splits) <= set(scores) else ""


def write_docs() -> None:
    """Put both tables into docs/recipe.md, at their marks."""
    text = PAGE.read_text()
    for rows in ("validation", "test"):
        first, last = f"<!-- priors: {rows} -->\n", f"<!-- /priors: {rows} -->"
        before, _, rest = text.partition(first)
        text = before + first + markdown(rows) + "\n" + last + rest.partition(last)[2]
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--splits", type=int, nargs="*", default=None)
    arguments = parser.parse_args()
    if arguments.docs:
        write_docs()
        return
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})  # before JAX counts cores
    from bsgp.experiments.engine.provenance import package_versions
    from bsgp.experiments.engine.worker import source_commit
    from bsgp.runtime.compilation import enable_compilation_cache
    from prior_tables import NUM_SPLITS, TABLES

    enable_compilation_cache()
    rows = "test" if arguments.test else "validation"
    variants = [*LINES, "default"] if arguments.test else [*LINES, *PRIORS]
    splits = arguments.splits or (range(NUM_SPLITS) if arguments.test else [0])
    settings = {} if arguments.test else {"num_inducing": NUM_INDUCING, "num_chains": NUM_CHAINS, **PLAN}
    done = {(rows, one["table"], one["split"], one["variant"]) for one in records(rows)}
    for split in splits:
        for name in arguments.tables or TABLES:
            for variant in variants:
                if (rows, name, split, variant) in done:
                    continue
                record = {"rows": rows, "table": name, "split": split, "seed": split, "variant": variant}
                record |= score(rows, name, split, variant) | {"settings": settings if variant in PRIORS else {}}
                record |= {"commit": source_commit(), "packages": package_versions()}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{rows}, {name}, {split}, {variant}: {record['log_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
