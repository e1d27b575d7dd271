"""The log joint, and how it is sampled and optimised."""

from bsgp.inference.anchor import Anchor
from bsgp.inference.checkpoints import Checkpoints
from bsgp.inference.history import History
from bsgp.inference.nuts import NutsPlan, sample_nuts
from bsgp.inference.objectives import FITC, VFE, AbstractObjective, TighterVFE
from bsgp.inference.sampling import Run, sample
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.target import Target

__all__ = [
    "FITC",
    "VFE",
    "AbstractObjective",
    "Anchor",
    "Checkpoints",
    "History",
    "NutsPlan",
    "Plan",
    "Run",
    "Target",
    "TighterVFE",
    "sample",
    "sample_nuts",
]
