"""The command line. It parses, calls and prints; what it prints is computed elsewhere.

Nothing here imports JAX before a command needs it: `bsgp --help` answers at once.
"""

import sys

from cyclopts import App, CycloptsError

from bsgp import __version__
from bsgp.cli.bench import bench_app
from bsgp.cli.data import data_app
from bsgp.cli.demo import demo
from bsgp.cli.fit import fit
from bsgp.cli.methods import methods
from bsgp.cli.model import evaluate, predict, report

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
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, ValueError, OSError) as error:
        _end(str(error), 2)
    except RuntimeError as error:  # a chain that diverged says so itself; anything else is a defect, and may be loud
        if type(error).__name__ != "DivergenceError":
            raise
        _end(str(error), 1)
    except MemoryError:
        _end("out of memory. Fit fewer rows, or lower --num-inducing.", 1)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(message: str, code: int) -> None:
    print(f"bsgp: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
