"""`python tests/golden/compare.py [COMMIT]`: are the draws of the working tree those of a commit, bit for bit?

By default the commit is the one that the working tree changes, or its parent where nothing is changed. Both sets of
cases run on this machine, each with its own sources and its own `cases.py`, so that no record can be out of date.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
CASES = Path("tests/golden/cases.py")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def start(tree: Path, out: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "BSGP_CACHE": "off"}
    return subprocess.Popen([sys.executable, str(tree / CASES), str(out)], cwd=tree, env=environment)


def differences(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> list[str]:
    """One line for each case that is not the same to the last bit."""
    found: dict[str, str] = {}
    for name in before.keys() & after.keys():
        case, _, which = name.partition("|")
        one, other = before[name], after[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            found[case] = f"{which} was {one.dtype}{list(one.shape)} and is {other.dtype}{list(other.shape)}"
        elif not np.array_equal(one, other, equal_nan=True):
            found.setdefault(case, f"{which} differs by up to {np.nanmax(np.abs(one - other)):.3g}")
    return [f"{case}: {what}" for case, what in sorted(found.items())]


def main(commit: str | None = None) -> int:
    commit = git("rev-parse", "--short", commit or ("HEAD" if git("status", "--porcelain") else "HEAD~1"))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            if not (tree / CASES).exists():
                print(f"{commit} has no golden cases: there is nothing to compare with.")
                return 0
            outs = Path(folder) / "before.npz", Path(folder) / "after.npz"
            runs = [start(one, out) for one, out in zip((tree, ROOT), outs, strict=True)]
            if any([run.wait() for run in runs]):
                return 1
            before, after = (dict(np.load(out)) for out in outs)
        finally:
            git("worktree", "remove", "--force", str(tree))
    cases = [{name.partition("|")[0] for name in one} for one in (before, after)]
    for title, names in (("Only there before", cases[0] - cases[1]), ("New", cases[1] - cases[0])):
        if names:
            print(f"{title}: {', '.join(sorted(names))}.")
    lines = differences(before, after)
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{len(cases[0] & cases[1]) - len(lines)} of {len(cases[0] & cases[1])} cases are as in {commit}.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
