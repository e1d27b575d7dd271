"""All figures and tables of a folder of runs: as files with a Markdown page, or as one HTML page."""

import base64
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bsgp.experiments.experiment import EXPERIMENTS, Choice, Drawing, Sheet, load_experiment
from bsgp.experiments.paper import Paper
from bsgp.experiments.points import styled

DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Shown:
    """An experiment, and what there is to see of it."""

    name: str
    about: str
    done: int
    planned: int
    """Runs of the full form that are there, and in all."""
    command: str
    """Does the rest of them."""
    pieces: tuple[Drawing | Sheet, ...]

    @property
    def is_quick(self) -> bool:
        """Whether only runs of the quick form are there, whose figures mean nothing."""
        return self.done == 0


def gather(records: Sequence[dict], paper: Paper, runs: str, names: Sequence[str] = EXPERIMENTS) -> list[Shown]:
    """Every experiment of which at least one run is among the records."""
    keys = {record["key"] for record in records}
    shown = []
    for name in names:
        experiment = load_experiment(name)
        planned = [run.key for run in experiment.plan(Choice())]
        quick = [run.key for run in experiment.plan(Choice(quick=True))]
        if keys.isdisjoint(planned) and keys.isdisjoint(quick):
            continue
        pieces = tuple(experiment.show(records, paper))
        done = sum(key in keys for key in planned)
        command = f"bsgp bench run {name} --out {runs}"
        shown.append(Shown(name, experiment.ABOUT, done, len(planned), command, pieces))
    return shown


def write_figures(shown: Sequence[Shown], folder: str | os.PathLike) -> Path:
    """Every figure as SVG and PNG, and `index.md` with figures, captions and tables."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for experiment in shown:
        for piece in experiment.pieces:
            if isinstance(piece, Drawing):
                (folder / f"{piece.name}.svg").write_bytes(_svg(piece))
                (folder / f"{piece.name}.png").write_bytes(_png(piece))
    index = folder / "index.md"
    index.write_text(to_markdown(shown))
    return index


def to_markdown(shown: Sequence[Shown], pictures: str = "") -> str:
    """Figures by their PNG files in the folder `pictures`, captions, and tables."""
    parts = []
    for experiment in shown:
        parts.append(f"## {experiment.name}\n\n{_state(experiment)}\n\n```sh\n{experiment.command}\n```")
        for piece in experiment.pieces:
            if isinstance(piece, Drawing):
                parts.append(f"![{piece.name}]({pictures}{piece.name}.png)\n\n{piece.caption}")
            else:
                parts.append(f"### {piece.name}\n\n{piece.caption}\n\n{_markdown_table(piece)}")
    return "\n\n".join(parts) + "\n"


def _state(experiment: Shown) -> str:
    if experiment.is_quick:
        return "Only the quick form was run: it shows that everything works, and its figures mean nothing."
    if experiment.done == experiment.planned:
        return f"{experiment.about} All {experiment.planned} runs are there; this made them:"
    return f"{experiment.about} {experiment.done} of {experiment.planned} runs are there; this goes on with the rest:"


def _markdown_table(sheet: Sheet) -> str:
    def row(cells: Sequence[str], number: int | None = None) -> str:
        bold = [f"**{c}**" if (number, i) in sheet.best else c for i, c in enumerate(cells)]
        return "| " + " | ".join(text.replace("|", "\\|") for text in bold) + " |"

    head = [row(sheet.header), "|" + "---|" * len(sheet.header)]
    return "\n".join([*head, *(row(cells, number) for number, cells in enumerate(sheet.rows))])


def write_page(shown: Sequence[Shown], path: str | os.PathLike) -> Path:
    """One self-contained HTML page of all figures and tables."""
    from bsgp import __version__
    from bsgp.report.write import write_whole

    views = [
        {
            "name": experiment.name,
            "state": _state(experiment),
            "command": experiment.command,
            "pieces": [_view(piece) for piece in experiment.pieces],
        }
        for experiment in shown
    ]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _template().render(experiments=views, version=__version__).encode("utf-8"))
    return path


@cache
def _template():
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bsgp.experiments", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("template.html")


def _view(piece: Drawing | Sheet) -> dict:
    if isinstance(piece, Drawing):
        source = f"data:image/svg+xml;base64,{base64.b64encode(_svg(piece)).decode('ascii')}"
        width = round(96 * piece.figure.get_figwidth())
        return {"name": piece.name, "caption": piece.caption, "source": source, "width": width}
    is_number = [all(_looks_like_a_number(row[i]) for row in piece.rows) for i in range(len(piece.header))]
    return {
        "name": piece.name, "caption": piece.caption, "source": None, "header": piece.header, "rows": piece.rows,
        "best": piece.best, "is_number": is_number,
    }  # fmt: skip


def _looks_like_a_number(text: str) -> bool:
    return not text or text == "not run" or re.match(r"[-+]?\d", text) is not None


def _svg(drawing: Drawing) -> bytes:
    svg = _saved(drawing, "svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return svg[svg.index(b"<svg") :]  # without the reference to a DTD on the web


def _png(drawing: Drawing) -> bytes:
    return _saved(drawing, "png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def _saved(drawing: Drawing, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    with styled():
        drawing.figure.savefig(buffer, format=form, **options)
    return buffer.getvalue()
