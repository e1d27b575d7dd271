"""`make demo`: fit a regression that ships with scikit-learn, and lay it beside a linear baseline."""

import time

import jax
import jax.random as jr
import numpy as np


def main() -> None:
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    X, y = (np.asarray(part) for part in load_diabetes(return_X_y=True, scaled=False))
    X_train, X_test, y_train, y_test = train_test_split(X, y[:, None], test_size=0.2, random_state=0)
    print(
        f"Diabetes progression: {len(X_train)} patients to learn from, {len(X_test)} to predict, {X.shape[1]} inputs.\n"
    )
    with jax.enable_x64(True):
        rows = {"linear": _linear(X_train, y_train, X_test, y_test)}
        for depth in (1, 2):
            rows[f"bsgp, {depth} layer{'s' * (depth > 1)}"] = _bsgp(X_train, y_train, X_test, y_test, depth)
    _print_table(rows)


def _linear(X_train, y_train, X_test, y_test) -> dict[str, float]:
    """Least squares with one Gaussian error for all rows."""
    from scipy.stats import norm
    from sklearn.linear_model import LinearRegression

    from bsgp.evaluate import coverage, mnll, rmse

    began = time.monotonic()
    fitted = LinearRegression().fit(X_train, y_train)
    mean = fitted.predict(X_test)
    residual = y_train - fitted.predict(X_train)
    sd = np.sqrt(np.sum(residual**2) / (len(X_train) - X_train.shape[1] - 1))
    half_width = norm.ppf(0.95) * sd
    return {
        "MNLL": mnll(norm.logpdf(y_test, mean, sd)),
        "nRMSE": rmse(y_test, mean) / y_train.std(),
        "90% coverage": coverage(y_test, mean - half_width, mean + half_width),
        "seconds": time.monotonic() - began,
    }


def _bsgp(X_train, y_train, X_test, y_test, depth: int) -> dict[str, float]:
    from bsgp import fit, progress_bar
    from bsgp.data.standardise import Standardiser
    from bsgp.evaluate import coverage, mnll, rmse
    from bsgp.likelihoods import gaussian
    from bsgp.recipes import named_recipe, scaled

    began = time.monotonic()
    x_units, y_units = Standardiser.fit(X_train), Standardiser.fit(y_train)
    X, y = x_units.transform(X_train), y_units.transform(y_train)
    fit_key, predict_key = jr.split(jr.key(0))
    with progress_bar() as report:
        recipe = scaled(named_recipe("default", X, y, depth), num_inducing=50)  # half of the default: a demo is quick
        posterior, run = fit(X, y, gaussian(1, X.dtype), fit_key, recipe=recipe, depth=depth, report=report)
    for warning in run.warnings:
        print("  note:", warning)
    X, y = x_units.transform(X_test), y_units.transform(y_test)
    low, high = np.moveaxis(posterior.quantiles(X, [0.05, 0.95], predict_key), -1, 0)
    return {
        "MNLL": mnll(posterior.log_density(X, y, predict_key), y_units.scale),
        "nRMSE": rmse(y, np.asarray(posterior.predict(X, predict_key).mean)),
        "90% coverage": coverage(y, low, high),
        "seconds": time.monotonic() - began,
    }


def _print_table(rows: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = list(next(iter(rows.values())))
    table = Table("model", *columns, caption="MNLL and nRMSE: lower is better. Coverage: 0.90 is right.")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[c]:.1f}" if c == "seconds" else f"{row[c]:.3f}" for c in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
