"""The command line. It parses, calls and prints; what it prints is computed elsewhere.

Nothing here imports JAX before a command needs it: `bsgp --help` answers at once.
"""

import os
import sys

from cyclopts import App, CycloptsError

from bsgp import __version__
from bsgp.cli.bench import bench_app
from bsgp.cli.data import data_app
from bsgp.cli.demo import demo
from bsgp.cli.fit import fit
from bsgp.cli.methods import methods
from bsgp.cli.model import evaluate, predict, report
from bsgp.cli.supervise import LOST, is_supervised, supervise
from bsgp.processes import end_with_the_parent

app = App(
    name="bsgp",
    version=__version__,
    help="Calibrated prediction from tables with fully Bayesian sparse and deep Gaussian processes.",
    help_epilogue="""Example:

    bsgp fit train.csv --target price --out model

    bsgp predict model new.csv --out predictions.csv

    bsgp report model --test test.csv""",
)
for command in (fit, predict, evaluate, report, demo, methods):
    app.command(command)
app.command(data_app)
app.command(bench_app)


def main(arguments: list[str] | None = None) -> None:
    """Bad input ends in one line and exit code 2, never in a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(one.split("=")[0] == "--num-processes" for one in given):
        if not is_supervised():
            sys.exit(supervise(given))
        end_with_the_parent(LOST)
    try:
        app(given, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, ValueError, OSError) as error:
        _end(str(error), 2)
    except RuntimeError as error:  # a chain that diverged says so itself; anything else is a defect, and may be loud
        if type(error).__name__ == "LostPeerError":
            _end(str(error), LOST)
        if type(error).__name__ != "DivergenceError":
            raise
        _end(str(error), 1)
    except MemoryError:
        _end("out of memory. Fit fewer rows, or lower --num-inducing.", 1)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(message: str, code: int) -> None:
    _say(message)
    if is_supervised():
        os._exit(code)  # an orderly end would wait for the other processes, and they for this one
    sys.exit(code)


def _say(message: str) -> None:
    print(f"bsgp: {' '.join(message.split())}", file=sys.stderr, flush=True)
