"""Strict reading of files: bounded bytes, and JSON in which every value is checked when asked for.

Errors name the file and the place. What a policy is, `deepaa.policy.format` knows.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepaa.files import listed, read_regular

MAX_INT = 2**53
"""Integers up to here are the same number in every language that reads JSON."""
MAX_BYTES = 16 << 20
"""Larger files are refused before they are read."""
MAX_PARTS = 500_000
"""Numbers, lists and objects in a file: a few bytes each, but hundreds once they are read."""
MAX_ROWS = 10_000
"""Of a table; each has constants for every size of images."""
MAX_OPERATIONS = 1_000
MAX_CROPS = 64
"""Resized crops with other options; each has tables of its own and is drawn for every image."""
MAX_PHASES = 1_000
MAX_CHAINS = 100_000
"""Over all phases."""
MAX_REASON = 500
"""Characters of a message, which may quote what the file says."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON can spell and UTF-8 cannot hold."""


class PolicyFileError(ValueError):
    """A policy file that cannot be read; the message names the file, the place and the reason."""


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file that is not too large; a run's folder means its policy."""
    try:
        if path.is_dir():
            return _read_run(path)
        return read_regular(path, MAX_BYTES, links=True)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        reason = str(error.strerror).replace("a regular file", "a policy file")
        ours = error.errno in (errno.EINVAL, errno.EFBIG)
        raise PolicyFileError(
            f"{error.filename}: {reason}" if ours else f"{path}: cannot be read: {reason}"
        ) from error


def _read_run(folder: Path) -> bytes:
    """The policy of a run; a search writes it when its contest has ended."""
    inside = folder / "policy.json"
    if inside.exists() or inside.is_symlink():
        return read_regular(inside, MAX_BYTES)
    raise PolicyFileError(f"{folder}: a folder without policy.json, {_instead(folder)}")


def _instead(folder: Path) -> str:
    """What a folder without a policy holds in its place."""
    within = sorted(str(each.parent) for each in folder.glob("*/policy.json"))
    if within:
        return f"but there are policies in {listed(within)}"
    if (folder / "found.json").is_file():
        return "expected a policy file; what its search found is there: found.json"
    if (folder / "history.jsonl").is_file():
        return "which a run writes at its end; this one has not ended"
    return "expected a policy file"


class _Repeated(dict[str, Any]):
    """A JSON object that gives keys twice; the others are plain dicts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = next(k for k, n in Counter(key for key, _ in pairs).items() if n > 1)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(pairs)


def _integer(digits: str) -> int:
    # one too many is as good as a million: Python takes quadratic time for long integers
    return int(digits) if len(digits) <= 20 else 10**20


def count_parts(text: str) -> int:
    """At least the numbers, lists and objects in JSON: each takes a comma or a bracket."""
    return sum(map(text.count, ",[{"))


def parse(text: str, source: str) -> Value:
    """The document in `text`; NaN, infinity and repeated keys are left for the checks to find."""
    if not text or text.isspace():
        raise PolicyFileError(f"{source}: the file is empty")
    if (parts := count_parts(text)) > MAX_PARTS:
        raise PolicyFileError(
            f"{source}: {parts:,} numbers, lists and objects; at most {MAX_PARTS:,} are read"
        )
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
        reason = "the file is cut short" if cut else "not JSON"
        raise PolicyFileError(f"{source}: {at}: {reason} ({error.msg})") from None
    except RecursionError:
        raise PolicyFileError(f"{source}: brackets are nested too deeply") from None
    return Value(document, source)


@dataclass(frozen=True, slots=True)
class Value:
    """A piece of a JSON document and where it stands."""

    value: Any
    source: str
    path: tuple[str, ...] = ()

    def error(self, reason: str) -> PolicyFileError:
        """The error to raise about this piece."""
        place = f"{', '.join(self.path)}: " if self.path else ""
        cut = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}..."
        return PolicyFileError(f"{self.source}: {place}{cut}")

    @contextmanager
    def checks(self) -> Iterator[None]:
        """What a constructor refuses inside becomes an error about this piece."""
        try:
            yield
        except ValueError as error:
            raise self.error(str(error)) from error

    def wrong(self, expected: str) -> PolicyFileError:
        """The error for a value of the wrong kind."""
        return self.error(f"expected {expected}, got {shown(self.value)}")

    def at(self, label: str, value: Any) -> Value:
        """A part of this piece."""
        return Value(value, self.source, (*self.path, label))

    def fields(self, *names: str) -> list[Value]:
        """The values of an object that has exactly these keys."""
        found = self._checked_object()
        for name in found:
            if name not in names:
                raise self.error(f"unknown key {shown(name)}; the keys are {', '.join(names)}")
        for name in names:
            if name not in found:
                raise self.error(f"key {shown(name)} is missing")
        return [self.at(f"key {shown(name)}", found[name]) for name in names]

    def entries(self) -> Iterator[tuple[str, Value]]:
        """The keys and values of an object whose keys are free text."""
        for name, value in self._checked_object().items():
            yield self.at("a key", name).text(), self.at(f"key {shown(name)}", value)

    def _checked_object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object {...}")
        if isinstance(self.value, _Repeated):
            raise self.error(f"key {shown(self.value.twice)} appears twice")
        return self.value

    def items(self, label: str, first: int = 0, most: int = MAX_PARTS) -> list[Value]:
        """The values of a list; errors call item i `label` i, in place of the list's key.

        More than `most` are refused before there is an object for each.
        """
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        if len(self.value) > most:
            raise self.error(f"{len(self.value):,} entries; at most {most:,} are read")
        path = self.path[:-1] if self.path and self.path[-1].startswith("key ") else self.path
        return [
            Value(value, self.source, (*path, f"{label} {i}"))
            for i, value in enumerate(self.value, start=first)
        ]

    def parts(self, *labels: str) -> list[Value]:
        """The values of a list that has exactly one for each label."""
        if not isinstance(self.value, list) or len(self.value) != len(labels):
            raise self.wrong(f"[{', '.join(labels)}]")
        return [self.at(label, value) for label, value in zip(labels, self.value, strict=True)]

    def number(self, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number from `low` to `high`."""
        if type(self.value) not in (int, float):  # True is an int for Python, not for us
            raise self.wrong("a number")
        number = float(self.value)
        if type(self.value) is int and abs(self.value) > MAX_INT:
            raise self.error("an integer beyond 2^53")
        if not math.isfinite(number):
            raise self.error(f"{number} is not a finite number")
        if not low <= number <= high:
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise self.error(f"{number:g} should be {limits}")
        return number

    def number_or_null(self) -> float | None:
        """A finite number, or None for null."""
        return None if self.value is None else self.number()

    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`; 1.0 is none."""
        if type(self.value) is not int:
            raise self.wrong("an integer")
        if not low <= self.value <= high:
            raise self.error(f"{self.value} should be from {low} to {high}")
        return int(self.value)

    def text(self) -> str:
        """A string that UTF-8 can hold."""
        if not isinstance(self.value, str):
            raise self.wrong("text")
        if SURROGATE.search(self.value):
            raise self.error(f"{shown(self.value)} is not valid Unicode")
        return self.value


def shown(value: Any) -> str:
    """`value` as JSON spells it, cut to a readable length and free of control characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    # a text is cut first: a long one would be spelled out whole
    shown = json.dumps(value[:61] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else f"{shown[:56]}..."
