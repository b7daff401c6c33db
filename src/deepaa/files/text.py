"""Text as a message may show it: nothing in it moves a terminal, and lines fit into one."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

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
    return f"{first}{end} and {len(names) - LISTED:,} more" if len(names) > LISTED else first


def columns_of(stream: TextIO) -> int:
    """The width of the terminal that a stream leads to, unless COLUMNS says another."""
    with suppress(OSError, ValueError):  # no terminal
        if not os.environ.get("COLUMNS"):
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def in_columns(text: str, width: int, indent: str = "") -> str:
    """The text with line breaks between words where `width` columns end; long words stay whole.

    Args:
        indent: Before every line but the first.
    """
    if len(text) <= width:
        return text
    held = text.replace(" %", "\xa0%")  # a number and its unit stay together
    lines = textwrap.wrap(
        held,
        max(width, 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\xa0%", " %")


def fit_for(stream: TextIO, line: str) -> str:
    """A line for a stream, with breaks between words where that is a terminal."""
    return in_columns(line, columns_of(stream), "  ") if stream.isatty() else line
