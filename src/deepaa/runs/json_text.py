"""JSON as the files of a run hold it: strict, bounded, and written only from plain values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepaa.files import read_regular

MAX_JSON_BYTES = 256 << 20
"""Of a file of a run; larger ones are refused before they are read."""
MAX_NESTING = 32
"""Lists and objects inside of each other, which the settings of a run never come near."""
MAX_INTEGER = 2**63


class RunError(ValueError):
    """A run folder that cannot be used; the message names the folder and the reason."""


def to_json(value: object, place: str, *, indent: int | None = None) -> str:
    """`value` as strict JSON; `place` says in errors what it is.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: A value has no form in JSON, or a key is no text.
    """
    _check(value, place)
    return json.dumps(value, allow_nan=False, indent=indent)


def _check(value: object, place: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place}: {value} has no form in JSON; write None for no value")
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{place}: the key {key!r} is no text")
            _check(part, f"{place}, {key}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _check(part, f"{place}, {i}")
    elif not isinstance(value, str | int | float | None):
        kind = type(value).__name__
        raise TypeError(f"{place}: {kind} has no form in JSON; give text, numbers, lists or dicts")


def checksum(plain: object) -> str:
    """The SHA-256 of a value that JSON gave back, whatever the order of its names."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        value = parsed(read_regular(path, MAX_JSON_BYTES))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8
        raise RunError(f"{path}: damaged, not JSON ({error})") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: damaged, expected an object")
    return value


def parsed(text: bytes) -> Any:
    """What strict JSON says; numbers are finite, and integers have at most 64 bits.

    Raises:
        ValueError: The text is no such JSON.
        RecursionError: It is nested very deeply.
    """
    found = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_integer)
    _check_nesting(found)
    return found


def _number(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:20]} is no number")
    return number


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else MAX_INTEGER
    if not -MAX_INTEGER <= number < MAX_INTEGER:
        raise ValueError(f"the integer {digits[:20]}... has more than 64 bits")
    return number


def _check_nesting(value: object, left: int = MAX_NESTING) -> None:
    if not left:
        raise ValueError(f"nested more than {MAX_NESTING} deep")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        if isinstance(part, dict | list):
            _check_nesting(part, left - 1)
