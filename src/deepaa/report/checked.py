"""JSON that may come from anywhere: every value is checked when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST, LONGEST = 2000, 400
"""Entries of a list and characters of a text that a page can show."""


class Part(NamedTuple):
    """A piece of a document and where it stands; what is wrong with it is a ValueError."""

    value: Any
    source: str
    """The name of the file."""
    place: str = ""

    def wrong(self, expected: str) -> ValueError:
        """The error for a value of the wrong kind."""
        kinds = {dict: "an object", list: "a list", type(None): "null"}
        got = kinds.get(type(self.value)) or f"{self.value!r:.60}"
        return self.error(f"expected {expected}, got {got}")

    def error(self, reason: str) -> ValueError:
        """The error about this piece, in one line."""
        return ValueError(": ".join(filter(None, (self.source, self.place, reason))))

    def part(self, name: str) -> Part:
        """The value of a key, which must be there."""
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        if name not in self.value:
            raise self.error(f"{name} is missing")
        place = f"{self.place}, {name}" if self.place else name
        return Part(self.value[name], self.source, place)

    def optional(self, name: str) -> Part | None:
        """The value of a key, which must be there; None for null."""
        found = self.part(name)
        return None if found.value is None else found

    def items(self) -> list[Part]:
        """The entries of a list."""
        if not isinstance(self.value, list | tuple):
            raise self.wrong("a list")
        if len(self.value) > MOST:
            raise self.error(f"{len(self.value):,} entries; at most {MOST:,}")
        return [
            Part(each, self.source, f"{self.place} {i}")
            for i, each in enumerate(self.value, start=1)
        ]

    def text(self, longest: int = LONGEST) -> str:
        """A text without what a terminal or a page would obey."""
        if not isinstance(self.value, str) or len(self.value) > longest:
            raise self.wrong(f"text of at most {longest} characters")
        return " ".join("".join(c if c.isprintable() else " " for c in self.value).split())

    def one_of(self, *choices: str) -> str:
        """One of some texts."""
        if not isinstance(self.value, str) or self.text() not in choices:
            few = len(choices) <= 4
            raise self.wrong(f"one of {', '.join(choices)}" if few else "the name of a candidate")
        return self.text()

    def number(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not is_number or not low <= self.value <= high:
            raise self.wrong(f"a number from {low:g} to {high:g}")
        return float(self.value)

    def whole(self) -> int:
        """A whole number from 0."""
        if type(self.value) is not int or not 0 <= self.value <= 10**12:
            raise self.wrong("a whole number from 0")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value
