"""A report on disk, whole or not at all."""

import os
from pathlib import Path

import numpy as np

from bsgp.data.tables import Table
from bsgp.disk import replacing
from bsgp.estimators import BSGPClassifier, BSGPRegressor


def write_report(
    model: BSGPRegressor | BSGPClassifier,
    path: str | os.PathLike,
    held_out: tuple[Table, np.ndarray] | None = None,
    *,
    sample_of: str | None = None,
) -> Path:
    """Write one self-contained HTML page about a fitted model: how good, how calibrated, what matters, is it converged.

    `held_out` is a table of inputs that were not trained on, with its targets; where it is a random sample, `sample_of`
    says of what ("the 1,000,000 rows in test.csv"), and the page passes it on. An older file at `path` is replaced.
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
    write_whole(path, page)
    return path


def write_whole(path: Path, content: bytes) -> None:
    """A reader sees the old page or the new one."""
    with replacing(path) as file:
        file.write(content)
