"""Tables 2 and 3, and the traces of the supplement: late flights, and collisions with a Higgs boson."""

from bsgp.experiments.experiment import Experiment
from bsgp.experiments.paper.classification import Published, TwoClasses

FLIGHTS = TwoClasses(
    "airline",
    noun="flight",
    task=(
        "Is a flight late, from eight features: our test scores beside those that the paper prints (one layer, 100 "
        "inducing points, probit; the paper's from 10,000 iterations of burn-in and 200 draws 1,000 steps apart)."
    ),
    staged=(
        "Ours are on other rows than the paper's, so the two cannot be compared: the staged file holds 1,272,746 "
        "flights of six other BTS extracts, not the 5.9 million of the 2008 file."
    ),
    original="Runs on the original file use the flights of 2008, as the paper does, with a test sample of our own.",
    published={
        "bsgp": Published("30.46%", "0.580", "0.749", "1.02 (0.045)"),
        "svgp": Published("31.26%", "0.595", "0.730"),
        "sghmc-dgp": Published("35.85%", "0.646", "0.671"),
    },
    thinning={"bsgp": 640, "sghmc-dgp": 640},
    # four chains do not agree on the posterior of this many rows (docs/recipe.md has other powers)
    likelihood_power=0.03125,
)

COLLISIONS = TwoClasses(
    "higgs",
    noun="event",
    task=(
        "Signal or background, from 28 features of a simulated collision: our test scores, on a tenth of the rows, "
        "beside those that the paper prints (one layer, 100 inducing points, probit)."
    ),
    staged=(
        "Ours are on other rows than the paper's, and 200 times fewer, so the two cannot be compared: the staged file "
        "holds 54,422 of the 11 million events."
    ),
    original="Runs on the original file use all 11 million events, as the paper does, with a test sample of our own.",
    published={
        "bsgp": Published("26.97%", "0.530", "0.808"),
        "svgp": Published("27.79%", "0.544", "0.796"),
        "sghmc-dgp": Published("35.39%", "0.628", "0.698"),
    },
    # chains agree here, so bsgp runs as long as the paper's: 410,000 updates with all phases
    thinning={"bsgp": 1_280, "sghmc-dgp": 640},
)

AIRLINE = Experiment(
    "airline",
    "Delays of flights in two classes: bsgp of four chains, svgp and sghmc-dgp, with one layer, and bsgp once more "
    "with a power of the likelihood (Table 2, traces).",
    FLIGHTS.plan,
    FLIGHTS.show,
)
HIGGS = Experiment(
    "higgs",
    "Particle collisions in two classes: bsgp of four chains, svgp and sghmc-dgp, with one layer (Table 3).",
    COLLISIONS.plan,
    COLLISIONS.show,
)
