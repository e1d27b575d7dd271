"""Phrases that earlier versions had and a native engineer would not write stay out of sources and pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "src" / "bsgp").rglob("*.py"))
PHRASES = (r"in the place of", r"to be had\b", r"gone? on with|goes on with", r"METHOD section")
IN_SOURCES = (r'"""Of ', r'"""The same ', r"shared/data")


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_page_or_source_has_the_phrase(phrase):
    assert not _found(phrase, [*PAGES, *SOURCES])


@pytest.mark.parametrize("phrase", IN_SOURCES)
def test_no_source_has_the_phrase(phrase):
    assert not _found(phrase, SOURCES)


def _found(phrase: str, files: list[Path]) -> list[str]:
    return [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(phrase, line)
    ]
