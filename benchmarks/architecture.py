"""`python benchmarks/architecture.py`: write the generated parts of docs/architecture.md, and its picture.

Rooms, their sentences and their files come from the packages; who imports whom from the import graph; the files on the
way of a fit and of a prediction from a profile hook.
"""

import ast
import re
import sys
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bsgp"
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "figures" / "rooms.svg"
BOX_WIDTH, BOX_HEIGHT, GAP = 300, 46, 26


def layers() -> list[list[str]]:
    """The rooms of the contract in pyproject.toml, top to bottom."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"] if layer != "__main__"]


def sentence(room: str) -> str:
    """The first line of a room's docstring."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    return (ast.get_docstring(tree) or "").splitlines()[0]


def files(room: str) -> list[Path]:
    return sorted(path for path in (PACKAGE / room).rglob("*.py") if path.name != "__init__.py")


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for room in (room for layer in layers() for room in layer):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                found[room] |= {name.split(".")[1] for name in names if name.startswith("bsgp.")} - {room}
    return found


def direct(used: dict[str, set[str]]) -> dict[str, set[str]]:
    """Imports without those that follow from others: the arrows of the picture."""
    order = [room for layer in reversed(layers()) for room in layer]
    below: dict[str, set[str]] = {}
    for room in order:
        below[room] = set(used[room]).union(*(below[one] for one in used[room] if one in below))
    return {
        room: {one for one in used[room] if not any(one in below[other] for other in used[room] if other in below)}
        for room in order
    }


def room_table() -> str:
    used = imports()
    lines = ["| room | files | what it holds | uses |", "|---|---:|---|---|"]
    for room in (room for layer in layers() for room in layer):
        uses = ", ".join(f"`{one}`" for layer in layers() for one in layer if one in used[room])
        lines.append(f"| `{room}/` | {len(files(room))} | {sentence(room)} | {uses or 'nothing'} |")
    return "\n".join(lines)


def picture() -> str:
    """The rooms from top to bottom, an arrow to each room that one imports directly."""
    places = {}
    for row, layer in enumerate(layers()):
        for column, room in enumerate(layer):
            x = 20 + column * (BOX_WIDTH + 40) if len(layer) > 1 else 20 + (BOX_WIDTH + 40) // 2
            places[room] = (x, 20 + row * (BOX_HEIGHT + GAP))
    height = 20 + len(layers()) * (BOX_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * BOX_WIDTH + 80} {height}" '
        f'width="{2 * BOX_WIDTH + 80}" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7b8794"/></marker></defs>',
    ]
    for room, others in direct(imports()).items():
        x, y = places[room]
        for other in sorted(others):
            to_x, to_y = places[other]
            parts.append(
                f'<line x1="{x + BOX_WIDTH // 2}" y1="{y + BOX_HEIGHT}" x2="{to_x + BOX_WIDTH // 2}" y2="{to_y}" '
                'stroke="#7b8794" stroke-width="1.4" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in places.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef4fb" stroke="#0072B2"/>'
            f'<text x="{x + 12}" y="{y + 20}" font-size="15" font-weight="bold" fill="#1f2933">{escape(room)}</text>'
            f'<text x="{x + 12}" y="{y + 38}" font-size="11" fill="#52606d">{escape(_short(sentence(room)))}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _short(text: str, limit: int = 52) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rsplit(' ', 1)[0]} ..."


def files_passed(call: Callable[[], object]) -> set[str]:
    """The files of the package with a function that `call` calls."""
    found = set()

    def hook(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)))

    sys.setprofile(hook)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found - {"runtime/moved_modules.py"}  # Python asks it about every import that nobody else finds


def fit_and_predict() -> dict[str, set[str]]:
    """The files on the way of a small fit and of a prediction, once all modules are imported."""
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning

    import bsgp

    for module in walk_packages(bsgp.__path__, "bsgp."):
        if not module.name.endswith(("__main__", "worker")):
            import_module(module.name)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    model = bsgp.BSGPRegressor(num_inducing=5, effort=0.01, random_state=0)
    warnings.simplefilter("ignore", ConvergenceWarning)
    return {
        "fit": files_passed(lambda: model.fit(X, np.sin(X[:, 0]))),
        "predict": files_passed(lambda: model.predict(X)),
    }


def count_table(passed: dict[str, set[str]]) -> str:
    rooms = [room for layer in layers() for room in layer]
    lines = ["| | files | rooms | files by room |", "|---|---:|---:|---|"]
    for name, found in passed.items():
        by_room = {room: sum(one.startswith(f"{room}/") for one in found) for room in rooms}
        shown = ", ".join(f"{room} {count}" for room, count in by_room.items() if count)
        lines.append(f"| `{name}` | {len(found)} | {sum(map(bool, by_room.values()))} | {shown} |")
    return "\n".join(lines)


def written_anew(page: str, parts: dict[str, str]) -> str:
    """The page with what stands between the markers of each part replaced."""
    for name, text in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL)
    return page


def main() -> None:
    PICTURE.write_text(picture())
    parts = {"rooms": room_table(), "counts": count_table(fit_and_predict())}
    PAGE.write_text(written_anew(PAGE.read_text(), parts))


if __name__ == "__main__":
    main()
