"""Records as strict JSON: what JSON cannot hold, NaN and infinities, becomes null."""

import json
import math
from typing import Any

SCORES = ("test_", "train_", "coverage")
"""First letters of the names of scores. A score of null is read as NaN, so that means over folds show it."""


def to_line(record: dict) -> str:
    """One line of strict JSON."""
    return json.dumps(_without_nan(record), allow_nan=False)


def from_line(line: str) -> dict:
    """Read a line that `to_line` wrote, or an older one with bare NaN. Raises a `ValueError` if it is incomplete."""
    return json.loads(line, object_hook=_with_nan_scores)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_nan_scores(part: dict) -> dict:
    return {key: math.nan if value is None and key.startswith(SCORES) else value for key, value in part.items()}
