"""Fitted estimators as folders of arrays and JSON, and back."""

import hashlib
import os
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import bsgp
from bsgp.data.encoding.schema import InputSchema
from bsgp.data.store.sources import AbstractSource
from bsgp.estimators.baselines import from_arrays, to_arrays
from bsgp.estimators.class_weights import as_pairs
from bsgp.estimators.diagnostics import Diagnostics
from bsgp.estimators.settings import Settings
from bsgp.estimators.table_kernel import kernel_text, saved_kernel
from bsgp.models.model import AbstractModel
from bsgp.posterior.posterior import Posterior
from bsgp.posterior.storage import load_stacked, save_stacked

if TYPE_CHECKING:
    from bsgp.estimators.base import BSGPEstimator


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it: an object, such as a likelihood, by its class and a hash of its numbers."""
    if _is_plain(value):
        return value
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(value) if hasattr(leaf, "dtype")]
    return f"{type(value).__name__} {hashlib.sha256(b''.join(leaves)).hexdigest()[:16]}"


def identity_of_run(estimator: "BSGPEstimator", source: AbstractSource, fingerprint: str) -> dict[str, Any]:
    """What a resumed run must share with the one it resumes."""
    settings = Settings.of(estimator.get_params(deep=False)).in_checkpoints
    return {
        "bsgp": bsgp.__version__,
        "estimator": type(estimator).__name__,
        **{name: plain(value) for name, value in settings.items()},
        "kernel": kernel_text(estimator.kernel, estimator.schema_),
        "seed": estimator._seed,
        "rows": source.num_rows,
        "inputs": list(estimator.schema_.encoded_names),
        "data": fingerprint,
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | os.PathLike)


def save_estimator(estimator: "BSGPEstimator", folder: str | os.PathLike) -> None:
    """Write a fitted estimator, whole or not at all."""
    of_run = {"checkpoint": None, "resume": False}  # the run is over
    params = {**estimator.get_params(), **of_run, "kernel": saved_kernel(estimator)}
    if isinstance(params.get("class_weight"), dict):
        params["class_weight"] = as_pairs(params["class_weight"])
    # generators and objects cannot be written down; what a likelihood or a prior was for is in the model
    params = {name: value if _is_plain(value) else None for name, value in params.items()}
    names = getattr(estimator, "feature_names_in_", None)
    meta = {
        "estimator": type(estimator).__name__,
        "bsgp": bsgp.__version__,
        "params": params,
        "schema": estimator.schema_.to_json(),
        "target": estimator._target_state(),
        "diagnostics": estimator.diagnostics_.to_json(),
        "notes": list(estimator.notes_),
        "num_rows": estimator.num_rows_,
        "seed": estimator._seed,
        "feature_names": None if names is None else list(names),
        "num_features": estimator.n_features_in_,
        "about": estimator.about_,
    }
    energy = {f"energy/{phase}": values for phase, values in estimator.energy_.items()}
    extras = {"background": estimator.background_, **energy, **to_arrays(estimator.baselines_)}
    save_stacked(estimator.posterior_.model, folder, meta, extras)


def load(folder: str | os.PathLike) -> "BSGPEstimator":
    """Read a model that `save` or `bsgp fit` wrote, by this version or an earlier one."""
    from bsgp.estimators.classifier import BSGPClassifier
    from bsgp.estimators.regressor import BSGPRegressor

    estimators = {"BSGPRegressor": BSGPRegressor, "BSGPClassifier": BSGPClassifier}
    stored = load_stacked(folder)
    meta, model = stored.meta, stored.module
    if meta.get("estimator") not in estimators or not isinstance(model, AbstractModel):
        raise ValueError(
            f"`{folder}` must hold a fitted estimator, got another kind of posterior. "
            "Read it with `bsgp.Posterior.load`, or pass a folder that `bsgp fit` wrote."
        )
    try:
        params = meta["params"]
        if isinstance(params.get("class_weight"), list):
            params = {**params, "class_weight": dict(params["class_weight"])}
        estimator = estimators[meta["estimator"]](**params)
        _restore(estimator, model, meta, stored.extras)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{folder}` must hold a complete model, got {error!r}: it is damaged. Save it again."
        ) from error
    return estimator


def _restore(estimator: "BSGPEstimator", model: AbstractModel, meta: dict, extras: dict[str, np.ndarray]) -> None:
    """Give a new estimator the fitted state that `save_estimator` wrote."""
    estimator.posterior_ = Posterior(model)
    estimator.schema_ = InputSchema.from_json(meta["schema"])
    estimator.diagnostics_ = Diagnostics.from_json(meta["diagnostics"])
    estimator.notes_ = tuple(meta["notes"])
    estimator.num_rows_, estimator._seed = meta["num_rows"], meta["seed"]
    estimator.background_ = extras["background"]
    estimator.energy_ = {
        name.removeprefix("energy/"): values for name, values in extras.items() if name.startswith("energy/")
    }
    estimator.baselines_ = from_arrays(extras)
    if meta["feature_names"] is not None:
        estimator.feature_names_in_ = np.asarray(meta["feature_names"], dtype=object)
    estimator.n_features_in_ = meta["num_features"]
    estimator.about_ = meta["about"]
    estimator._set_target_state(meta["target"])
