"""How long deep models of large sets are run: what the experiments with depth share."""

from dataclasses import replace

from bsgp.experiments.grid import LARGE
from bsgp.experiments.uci import UCIRun


def doubled_where_deep(run: UCIRun) -> UCIRun:
    """Twice the default recipe's updates, about 40,000, where bsgp has hidden layers and thousands of rows."""
    is_long = run.method == "bsgp" and run.depth > 1 and run.dataset in LARGE
    return replace(run, scale=2.0) if is_long else run
