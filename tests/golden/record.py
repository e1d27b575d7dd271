"""`python tests/golden/record.py [CASE ...]`: write down the first draws of the cases that `make test` compares.

Without names all of them; with names, only those change.

Run it in a commit that changes numerics on purpose, and say in its message what changed.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from cases import CASES, IN_MAKE_TEST, beginning_of, compile_quickly


def record_file() -> Path:
    """The file of this series of JAX: XLA compiles other programs in another."""
    series = ".".join(version("jax").split(".")[:2])
    return Path(__file__).with_name(f"jax-{series}.json")


def rounded(value: np.ndarray):
    """Nested lists of numbers with twelve digits: more than are compared."""
    return [rounded(one) for one in value] if value.ndim else float(f"{value:.12g}")


def main() -> None:
    compile_quickly()
    wanted = sys.argv[1:] or IN_MAKE_TEST
    found = json.loads(record_file().read_text()) if sys.argv[1:] else {}
    found |= {case: {name: rounded(v) for name, v in beginning_of(case, CASES[case]()).items()} for case in wanted}
    lines = [f"{json.dumps(case)}: {json.dumps(one)}" for case, one in found.items()]
    record_file().write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
