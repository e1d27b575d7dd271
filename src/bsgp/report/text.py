"""Formats names, numbers and times. Names come from users' tables and may hold any characters."""

import math
import unicodedata

NAME_LIMIT = 80
UNKNOWN = "\N{EN DASH}"
_INVISIBLE = {
    "Cc",
    "Cf",
    "Cs",
    "Cn",
}  # control characters, bidirectional overrides, lone surrogates, and others that XML forbids


def clean(text: object, limit: int = NAME_LIMIT) -> str:
    """One line of at most `limit` characters, with invisible characters replaced. It is not escaped for HTML."""
    spaced = " ".join(str(text).split())
    visible = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _INVISIBLE else c for c in spaced)
    return visible if len(visible) <= limit else f"{visible[: limit - 1].rstrip()}…"


def listed(names, most: int = 8, limit: int = NAME_LIMIT) -> str:
    """At most `most` names, such as `a, b, c and 5 more`."""
    names = list(names)
    shown = ", ".join(clean(name, limit) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def number(value: float) -> str:
    """Four significant digits, such as 0.1235, 1964 or 123,457."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1e4 else f"{value:.4g}"


def digits(value: float) -> str:
    """Four significant digits with trailing zeros, for columns of numbers."""
    if not math.isfinite(value) or not 1e-4 <= abs(value) < 1e7:
        return number(value)
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:#.4g}".rstrip(".")


def percent(share: float) -> str:
    return f"{100.0 * share:.1f}%" if math.isfinite(share) else UNKNOWN


def counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{seconds:.1f} s" if seconds < 10.0 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
