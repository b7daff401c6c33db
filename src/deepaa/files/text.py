"""Text of files and file names as a message may show it: nothing in it moves a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LISTED = 10
"""Names that a message shows of many."""
NAME_LENGTH = 200
"""Characters that it shows of one of them."""


def printable(text: str, keep: str = "") -> str:
    """The text with everything that no one can see escaped: control codes, line breaks.

    Args:
        keep: Characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shown(path: Path | str) -> str:
    """The path as it may stand in a message: line breaks and odd bytes are escaped."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def plural(count: int, noun: str) -> str:
    """`1 layer`, `2 layers`, `4,000 classes`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """The first ten names as a message may show them, and how many more there are."""
    short = (name if len(name) <= NAME_LENGTH else f"{name[:NAME_LENGTH]}..." for name in names)
    first = separator.join(shown(name) for name, _ in zip(short, range(LISTED), strict=False))
    end = ";" if separator == "; " else ""
    return f"{first}{end} and {len(names) - LISTED} more" if len(names) > LISTED else first
