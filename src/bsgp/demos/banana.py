"""The paper's Figure 2: four priors on the inducing inputs, on two interlocking bananas."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bsgp.data.named import load_named
from bsgp.estimators import BSGPClassifier
from bsgp.model import DeepGP

NUM_INDUCING = 16
NUM_GENERATED = 400
GRID = 80
COLOURS = ("#0072B2", "#D55E00")  # apart for every kind of colour vision
TITLES = {"normal": "Normal", "determinantal": "Determinantal", "strauss": "Strauss", "uniform": "Uniform"}


@dataclass(frozen=True)
class Banana:
    """Points `[N 2]`, labels 0 and 1, and where they come from."""

    X: np.ndarray
    y: np.ndarray
    source: str


def load_banana(folder: str | os.PathLike | None = None) -> Banana:
    """The 400 points that papers train on, from the data folder; where it lacks them, points of a like shape."""
    try:
        data = load_named("banana", folder)
    except ValueError as error:
        if folder is not None:  # a folder that was named should be right
            raise
        return generated_banana(f"The banana data were not found ({_first_sentence(error)}), so these are generated")
    classic = data.other["gp400"] == 1
    return Banana(data.X[classic], data.y[classic, 0].astype(int), "The banana data, the classic training points")


def generated_banana(source: str = "Generated bananas", seed: int = 0) -> Banana:
    """Two crescents that reach into each other, with noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(NUM_GENERATED) % 2
    angle = rng.uniform(0.0, np.pi, NUM_GENERATED)
    side = np.where(y == 0, 1.0, -1.0)
    X = np.stack([np.cos(angle) * side + 0.5 * y, np.sin(angle) * side + 0.4 * y], axis=1) * 1.6
    return Banana(X - X.mean(axis=0) + 0.35 * rng.standard_normal(X.shape), y, source)


def fit_priors(data: Banana, *, effort: float = 1.0, verbose: bool = False) -> dict[str, BSGPClassifier]:
    """A classifier for each prior on Z."""
    return {
        prior: BSGPClassifier(
            inducing_prior=prior, num_inducing=NUM_INDUCING, effort=effort, verbose=verbose, random_state=0
        ).fit(data.X, data.y)
        for prior in TITLES
    }


def draw_figure(data: Banana, fits: dict[str, BSGPClassifier], path: Path) -> Path:
    """Above the average classifier, below where the inducing inputs were; written as PNG and PDF."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(fits), 5.6), layout="constrained")
    axes = figure.subplots(2, len(fits), sharex=True, sharey=True)
    reach = np.abs(data.X).max(axis=0) * 1.1
    for column, (prior, model) in enumerate(fits.items()):
        _draw_boundary(axes[0, column], data, model, reach)
        image = _draw_inducing(axes[1, column], data, model, reach)
        axes[0, column].set_title(TITLES[prior])
    axes[0, 0].set_ylabel("decision boundary\nof the average classifier")
    axes[1, 0].set_ylabel("posterior of the\ninducing inputs")
    figure.colorbar(image, ax=axes[1, :], shrink=0.8, label="density")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    figure.savefig(path.with_suffix(".pdf"))
    return path


def _grid(reach: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    across, up = (np.linspace(-limit, limit, GRID) for limit in reach)
    return across, up, np.stack([part.ravel() for part in np.meshgrid(across, up)], axis=1)


def _draw_boundary(ax, data: Banana, model: BSGPClassifier, reach: np.ndarray) -> None:
    across, up, points = _grid(reach)
    probability = model.predict_proba(points)[:, 1].reshape(GRID, GRID)
    ax.contourf(across, up, probability, levels=np.linspace(0, 1, 21), cmap="RdBu_r", vmin=-0.4, vmax=1.4, alpha=0.8)
    ax.contour(across, up, probability, levels=[0.25, 0.5, 0.75], colors="black", linewidths=[0.6, 1.6, 0.6])
    for label, colour in enumerate(COLOURS):
        ax.scatter(*data.X[data.y == label].T, s=5, color=colour, linewidths=0)


def _draw_inducing(ax, data: Banana, model: BSGPClassifier, reach: np.ndarray):
    """A histogram over all draws of all inducing inputs, in the units of the data."""
    features = model.schema_.features
    mean, scale = (np.asarray([getattr(feature, name) for feature in features]) for name in ("mean", "scale"))
    assert isinstance(model.posterior_.model, DeepGP)  # for the type checker
    Z = np.asarray(model.posterior_.model.layers[0].Z).reshape(-1, 2) * scale + mean
    density, across, up = np.histogram2d(*Z.T, bins=60, range=[(-limit, limit) for limit in reach], density=True)
    image = ax.pcolormesh(across, up, density.T, cmap="viridis", rasterized=True)
    across, up, points = _grid(reach)
    probability = model.predict_proba(points)[:, 1].reshape(GRID, GRID)
    ax.contour(across, up, probability, levels=[0.5], colors="white", linewidths=1.2)
    return image


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0]
