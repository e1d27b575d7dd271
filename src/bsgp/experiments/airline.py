"""Table 2 of the paper, and the traces of its supplement: will a flight be late?"""

from collections.abc import Sequence

from bsgp.experiments.classification import Classification, Published, Words, plan_runs, show_runs
from bsgp.experiments.experiment import Choice, Drawing, Sheet
from bsgp.experiments.paper import Paper

ABOUT = (
    "Delays of flights in two classes: bsgp of four chains, svgp and sghmc-dgp, with one layer, and bsgp once more "
    "with a power of the likelihood (Table 2, traces)."
)
PAPER = {
    "bsgp": Published("30.46%", "0.580", "0.749", "1.02 (0.045)"),
    "svgp": Published("31.26%", "0.595", "0.730"),
    "sghmc-dgp": Published("35.85%", "0.646", "0.671"),
}
"""As printed; they call the last one sghmc-gp."""
WORDS = Words(
    noun="flight",
    task=(
        "Is a flight late, from eight features: our test figures beside those that the paper prints (one layer, 100 "
        "inducing points, probit; the paper's from 10,000 iterations of burn-in and 200 draws 1,000 steps apart)."
    ),
    staged=(
        "Ours are on other rows than the paper's, so its figures are no yardstick for ours: the staged file holds "
        "1,272,746 flights of six other BTS extracts, not the 5.9 million of the 2008 file."
    ),
    original="Runs on the original file have the flights of 2008, as the paper does, with a test sample of our own.",
)


def plan(choice: Choice) -> Sequence[Classification]:
    return plan_runs("airline", choice)


def show(records: Sequence[dict], paper: Paper) -> list[Drawing | Sheet]:
    del paper  # these tables are in no file of theirs
    return show_runs("airline", WORDS, records, PAPER)
