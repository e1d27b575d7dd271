"""Writes the tables of methods in docs/methods.md from the rows at the end of the methods' files, between their marks.

.venv/bin/python benchmarks/method_tables.py
"""

from bsgp.methods.method import Method
from bsgp.methods.registry import METHODS
from result_tables import ROOT, replace_between

PAGE = ROOT / "docs" / "methods.md"
WORDS = {"fitc": "FITC", "vfe": "VFE", "tighter-vfe": "tighter VFE", "sample": "sampled", "optimise": "optimised"}
"""Words of the page for those of the rows. Other words stay."""
CAPABILITIES = {
    "has_chains": "several chains",
    "can_checkpoint": "checkpoints",
    "can_add_draws": "`warm_start`",
    "can_stream": "rows on disk",
    "can_use_mesh": "`mesh`",
    "can_temper": "`likelihood_power`",
    "can_choose_kernel": "`kernel`",
    "can_weight": "weights",
    "can_know_noise": "`noise_std`",
}
"""Flags of a method, and their columns."""


def treatment_table() -> str:
    """The paper's Table 1: objective and treatment of every method, and what it is."""
    head = ("method", "objective", "u", "Z", "theta", "noise", "layers", "classes", "what it is")
    return _markdown(head, [_treatment(method) for method in METHODS.values()])


def _treatment(method: Method) -> tuple[str, ...]:
    *others, last = (_word(name) for name in method.objectives)
    objective = f"{', '.join(others)} or {last}" if others else last
    blocks = tuple(_word(block) for block in (method.u, method.Z, method.theta, method.noise))
    layers, classes = "any" if method.is_deep else "1", "no" if method.needs_gaussian else "yes"
    return f"`{method.name}`", objective, *blocks, layers, classes, method.about


def _word(name: str) -> str:
    return WORDS.get(name, name)


def capability_table() -> str:
    """Which options each method takes."""
    rows = [
        (f"`{name}`", *("yes" if getattr(method, flag) else "" for flag in CAPABILITIES))
        for name, method in METHODS.items()
    ]
    return _markdown(("method", *CAPABILITIES.values()), rows)


def _markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_new_tables() -> str:
    """Text of the page with its tables made from the rows."""
    text = replace_between(PAGE.read_text(), "methods", treatment_table())
    return replace_between(text, "capabilities", capability_table())


if __name__ == "__main__":
    PAGE.write_text(with_new_tables())
