"""Models from disk."""

import os

from bsgp.estimators.classifier import BSGPClassifier
from bsgp.estimators.regressor import BSGPRegressor
from bsgp.model import AbstractModel
from bsgp.storage import load_stacked

ESTIMATORS: dict[str, type[BSGPRegressor] | type[BSGPClassifier]] = {
    "BSGPRegressor": BSGPRegressor,
    "BSGPClassifier": BSGPClassifier,
}


def load(folder: str | os.PathLike) -> BSGPRegressor | BSGPClassifier:
    """A model that `save` or `bsgp fit` wrote, or a `ValueError` that says what is wrong with the folder."""
    stored = load_stacked(folder)
    meta, model = stored.meta, stored.module
    if meta.get("estimator") not in ESTIMATORS or not isinstance(model, AbstractModel):
        raise ValueError(
            f"`{folder}` must hold a fitted estimator, got another kind of posterior. "
            "Read it with `bsgp.Posterior.load`, or pass a folder that `bsgp fit` wrote."
        )
    try:
        estimator = ESTIMATORS[meta["estimator"]](**meta["params"])
        estimator.restore(model, meta, stored.extras)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{folder}` must hold a complete model, got {error!r}: it is damaged. Save it again."
        ) from error
    return estimator
