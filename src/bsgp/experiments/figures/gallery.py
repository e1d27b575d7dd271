"""All figures and tables of a folder of runs, as files with a Markdown page or as one HTML page."""

import base64
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bsgp.experiments.experiment import EXPERIMENTS, Choice, Drawing, Sheet, load_experiment
from bsgp.experiments.figures.authors import Paper
from bsgp.experiments.figures.points import styled

DOTS_PER_INCH = 150


@dataclass(frozen=True)
class GalleryEntry:
    """Figures and tables of one experiment."""

    name: str
    about: str
    done: int
    """Number of finished runs of the full form."""
    planned: int
    """Number of all runs of the full form."""
    command: str
    """Command that does the missing runs."""
    pieces: tuple[Drawing | Sheet, ...]

    @property
    def is_quick(self) -> bool:
        """Whether there are only quick runs, whose scores mean nothing."""
        return self.done == 0


def gather(records: Sequence[dict], paper: Paper, runs: str, names: Sequence[str] = EXPERIMENTS) -> list[GalleryEntry]:
    """Entries of all experiments that have at least one run among the records. `runs` is the folder of the runs."""
    keys = {record["key"] for record in records}
    entries = []
    for name in names:
        experiment = load_experiment(name)
        planned = [run.key for run in experiment.plan(Choice())]
        quick = [run.key for run in experiment.plan(Choice(quick=True))]
        if keys.isdisjoint(planned) and keys.isdisjoint(quick):
            continue
        pieces = tuple(experiment.show(records, paper))
        done = sum(key in keys for key in planned)
        command = f"bsgp bench run {name} --out {runs}"
        entries.append(GalleryEntry(name, experiment.about, done, len(planned), command, pieces))
    return entries


def write_figures(entries: Sequence[GalleryEntry], folder: str | os.PathLike) -> Path:
    """Write every figure as SVG and PNG, and `index.md` with figures, captions and tables. Returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        for piece in entry.pieces:
            if isinstance(piece, Drawing):
                (folder / f"{piece.name}.svg").write_bytes(_svg(piece))
                (folder / f"{piece.name}.png").write_bytes(_saved(piece, "png"))
    index = folder / "index.md"
    index.write_text(to_markdown(entries))
    return index


def to_markdown(entries: Sequence[GalleryEntry]) -> str:
    """Markdown of figures, by their PNG files, captions and tables."""
    parts = []
    for entry in entries:
        parts.append(f"## {entry.name}\n\n{_state(entry)}\n\n```sh\n{entry.command}\n```")
        for piece in entry.pieces:
            if isinstance(piece, Drawing):
                parts.append(f"![{piece.name}]({piece.name}.png)\n\n{piece.caption}")
            else:
                parts.append(f"### {piece.name}\n\n{piece.caption}\n\n{_markdown_table(piece)}")
    return "\n\n".join(parts) + "\n"


def _state(entry: GalleryEntry) -> str:
    if entry.is_quick:
        return "Only the quick form was run: it shows that everything works, and its scores mean nothing."
    if entry.done == entry.planned:
        return f"{entry.about} All {entry.planned} runs are finished. Command:"
    return f"{entry.about} {entry.done} of {entry.planned} runs are finished. Command for the rest:"


def _markdown_table(sheet: Sheet) -> str:
    def row(cells: Sequence[str], number: int | None = None) -> str:
        bold = [f"**{c}**" if (number, i) in sheet.best else c for i, c in enumerate(cells)]
        return "| " + " | ".join(text.replace("|", "\\|") for text in bold) + " |"

    head = [row(sheet.header), "|" + "---|" * len(sheet.header)]
    return "\n".join([*head, *(row(cells, number) for number, cells in enumerate(sheet.rows))])


def write_page(entries: Sequence[GalleryEntry], path: str | os.PathLike) -> Path:
    """Write one self-contained HTML page of all figures and tables. Returns its path."""
    from bsgp import __version__
    from bsgp.runtime.files import replacing

    views = [
        {
            "name": entry.name,
            "state": _state(entry),
            "command": entry.command,
            "pieces": [_view(piece) for piece in entry.pieces],
        }
        for entry in entries
    ]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(_template().render(experiments=views, version=__version__).encode("utf-8"))
    return path


@cache
def _template():
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bsgp.experiments.figures", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("template.html")


def _view(piece: Drawing | Sheet) -> dict:
    """Values that the page's template needs of a figure or a table."""
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


def save_drawing(drawing: Drawing, path: str | os.PathLike) -> Path:
    """Write a figure in the format of the path's ending (`.png` or `.pdf`). Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_saved(drawing, path.suffix.removeprefix(".")))
    return path


def _svg(drawing: Drawing) -> bytes:
    svg = _saved(drawing, "svg")
    return svg[svg.index(b"<svg") :]  # without the reference to a DTD on the web


_SAVE_OPTIONS: dict[str, dict] = {  # without dates and versions: the same figure is the same file
    "svg": {"metadata": dict.fromkeys(("Creator", "Date", "Format", "Type"))},
    "png": {"metadata": {"Software": None}, "dpi": DOTS_PER_INCH},
    "pdf": {"metadata": dict.fromkeys(("Creator", "Producer", "CreationDate"))},
}


def _saved(drawing: Drawing, form: str) -> bytes:
    """Contents of a file of that format."""
    buffer = io.BytesIO()
    with styled():
        drawing.figure.savefig(buffer, format=form, **_SAVE_OPTIONS[form])
    return buffer.getvalue()
