"""Writes a report to disk."""

import os
from pathlib import Path

import numpy as np

from bsgp.data.tables.columns import Table
from bsgp.estimators.base import BSGPEstimator
from bsgp.runtime.files import replacing


def write_report(
    model: BSGPEstimator,
    path: str | os.PathLike,
    held_out: tuple[Table, np.ndarray] | None = None,
    *,
    sample_of: str | None = None,
) -> Path:
    """Write one self-contained HTML page about a fitted model: accuracy, calibration, important inputs, convergence.

    `held_out` holds a table of inputs that the model was not trained on, and their targets. If it is a random sample,
    pass a description of the whole as `sample_of`, such as "the 1,000,000 rows in test.csv": the page quotes it. A file
    at `path` is replaced in one step, so a reader sees the old page or the new one.
    """
    from sklearn.utils.validation import check_is_fitted

    from bsgp.report.content import gather
    from bsgp.report.page import render

    check_is_fitted(model, "posterior_")
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"`path` must be a file, got the folder `{path}`. Add a name such as report.html.")
    page = render(gather(model, held_out, sample_of)).encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(page)
    return path
