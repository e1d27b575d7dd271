"""The command line. Commands parse arguments, call the library and print; they compute nothing themselves.

No module here imports JAX before a command needs it, so `bsgp --help` answers at once.
"""

import os
import sys

from cyclopts import App, CycloptsError

from bsgp import __version__
from bsgp.cli.bench import bench_app
from bsgp.cli.data import data_app
from bsgp.cli.demo import demo
from bsgp.cli.evaluate import evaluate
from bsgp.cli.fit import fit
from bsgp.cli.methods import methods
from bsgp.cli.predict import predict
from bsgp.cli.report import report
from bsgp.cli.supervise import EXIT_LOST, is_supervised, supervise
from bsgp.runtime.errors import DivergenceError, LostPeerError
from bsgp.runtime.processes import exit_with_parent

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
    app.command(command, help_epilogue="")  # each has an example of its own
for group in (data_app, bench_app):
    group.help_epilogue = ""
    app.command(group)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Bad input ends with one line on standard error and exit code 2, never with a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(one.split("=")[0] == "--num-processes" for one in given):
        if not is_supervised():
            sys.exit(supervise(given))
        exit_with_parent(EXIT_LOST)
    try:
        app(given, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, ValueError, OSError) as error:
        _end(str(error), 2)
    except DivergenceError as error:
        _end(str(error), 1)
    except LostPeerError:
        os._exit(EXIT_LOST)  # the supervising parent prints what happened
    except MemoryError:
        _end("out of memory. Fit fewer rows, or lower --num-inducing.", 1)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(message: str, code: int) -> None:
    print(f"bsgp: {' '.join(message.split())}", file=sys.stderr, flush=True)
    if is_supervised():
        os._exit(code)  # a normal exit would wait for the other processes, and they for this one
    sys.exit(code)
