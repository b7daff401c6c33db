"""Mutants of files, made from their structure, and what a reader may answer to them.

A mutant is a function of a seed. Most have the structure of a real file with other values; the
others have one to three damages: a value of another type, a key too many or too few, a list that is
longer, shuffled or cut, a number at the edge of its range, or broken text.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from deepaa.cli.app import _explained

MOST_SECONDS = 5.0
"""CPU time for one mutant; real files take a hundredth."""
MOST_MEGABYTES = 500.0
"""That a whole round may add to the memory of the process."""
EVIL = "\x1b]0;x\x07\u202e"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 255, 1000, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63)),
    *(10**25, 0.0, -0.0, 0.5, 1.0, 1.5, -1e-9, 1e-300, 1e300, 1e308, 3.999999),
    *("", "x", "identity", "rotate", "small", "a:b", "os:system", "../x", "/dev/zero", "nan"),
    *(EVIL, "é" * 50, "x" * 5000, "{0.__class__}", "%s%n", "torchvision:resnet18", "\ud800"),
    *([], [0], [None], [[]], [[0]], {}, {"a": 1}, [1, 2, 3], ["a", "b"], {"kind": "step"}),
)
"""What a damaged place may hold."""


class Outcome(NamedTuple):
    """What readers answered to a round of mutants."""

    counts: Counter[str]
    failures: list[str]
    """Mutants that ended in neither a result nor one line of a known error."""


def is_found(seeds: range, read: Callable[[int], str], most_seconds: float = MOST_SECONDS) -> bool:
    """Whether any of the mutants shows a bug."""
    return any(run_round(range(s, s + 1), read, most_seconds).failures for s in seeds)


def run_round(
    seeds: range, read: Callable[[int], str], most_seconds: float = MOST_SECONDS
) -> Outcome:
    """Let `read` meet the mutants of all seeds; it returns a word for what they became."""
    counts: Counter[str] = Counter()
    failures = []
    before = _peak()
    for seed in seeds:
        began = time.process_time()
        try:
            counts[read(seed)] += 1
        except Exception as error:
            problem = wrong_answer(error)
            counts["refused" if problem is None else "failed"] += 1
            if problem is not None:
                failures.append(f"seed {seed}: {problem}")
        if (took := time.process_time() - began) > most_seconds:
            failures.append(f"seed {seed}: took {took:.1f} s")
        if _peak() - before > MOST_MEGABYTES:
            failures.append(f"seed {seed}: {_peak() - before:.0f} MB more")
            break
    return Outcome(counts, failures)


def wrong_answer(error: Exception) -> str | None:
    """Why an error is no good answer; None for one line of a known kind."""
    message, code = _explained(error)
    kind = type(error).__name__
    if isinstance(error, AssertionError):
        return f"assertion: {error}"
    if code != 2:
        return f"{kind}: {message[:300]}"
    if len(message) > 4000:
        return f"{kind}: a message of {len(message):,} characters: {message[:100]}"
    for line in message.split(";\n"):  # differences of settings come in lines
        if not line.replace("\n", "").isprintable():
            return f"{kind}: {message[:300]!r} is not printable"
    if any(words in message for words in PYTHONS_WORDS):
        return f"{kind}: Python's own words: {message[:300]}"
    return None


PYTHONS_WORDS = (
    *("object is not", "has no attribute", "unhashable type", "not supported between"),
    *("argument after **", "positional argument", "keyword argument", "list index out of range"),
    *("object does not support", "must be a", "NoneType", "cannot unpack", "too many values"),
    *("not enough values", "can only concatenate", "invalid literal", "[Errno"),
)
"""Parts of messages that nobody wrote for a person."""


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# Damages to plain values


def damaged(random_: random.Random, document: Any, count: int | None = None) -> Any:
    """A copy of a JSON value with one to three damages."""
    document = copy.deepcopy(document)
    for _ in range(count or random_.choice((1, 1, 1, 2, 3))):
        document = _damage(random_, document)
    return document


def _damage(random_: random.Random, document: Any) -> Any:
    places = list(_places(document))
    # the deep ones are many; each level gets its turn
    depth = random_.choice(sorted({len(place) for place in places}))
    place = random_.choice([place for place in places if len(place) == depth])
    return _changed(document, place, random_)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        # of a long list a few
        for i in range(len(value)) if len(value) <= 8 else (0, 1, len(value) // 2, len(value) - 1):
            yield from _places(value[i], (*path, i))


def _changed(document: Any, place: tuple[Any, ...], random_: random.Random) -> Any:
    if not place:
        return _other(document, random_)
    *way, last = place
    outer = document
    for step in way:
        outer = outer[step]
    kind = random_.randrange(6)
    if kind == 0 and isinstance(outer, dict):
        del outer[last]
    elif kind == 1 and isinstance(outer, dict):
        outer[random_.choice(("", "x", "kind", EVIL, "__class__", str(last).upper()))] = outer[last]
    elif kind == 0 and isinstance(outer, list):
        del outer[last]
    elif kind == 1 and isinstance(outer, list):
        outer.insert(last, copy.deepcopy(outer[last]))
    else:
        outer[last] = _other(outer[last], random_)
    return document


def _other(value: Any, random_: random.Random) -> Any:
    """Another value: near the old one, of its type, or of any other."""
    if isinstance(value, list) and value and random_.random() < 0.5:
        kind = random_.randrange(4)
        if kind == 0:
            return value[: random_.randrange(len(value))]
        if kind == 1:
            return (value * random_.choice((2, 3, 50)))[:3000]
        if kind == 2:
            return random_.sample(value, len(value))
        return [value]
    if type(value) in (int, float) and random_.random() < 0.5:
        return random_.choice(
            (-value, value + 1, value - 1, value * 2, value / 3, str(value), [value])
        )
    if isinstance(value, str) and random_.random() < 0.5:
        return random_.choice((value[:-1], value.upper(), value + EVIL, value * 40, [value]))
    return copy.deepcopy(random_.choice(VALUES))


# Damages to text


def spoiled(random_: random.Random, text: str) -> str:
    """The text of a JSON document with a damage that the parser meets."""
    place = random_.randrange(len(text) + 1)
    return random_.choice(
        (
            lambda: text[:place],
            lambda: text[:place] + random_.choice('{}[],:"0\\\0\x1b') + text[place:],
            lambda: text.replace("0", random_.choice(("NaN", "Infinity", "1e999", "9" * 400)), 1),
            lambda: text.replace('"', '"\\ud800', 1),
            lambda: text.replace("{", '{"name": 1, "name": 2, "epoch": 0, ', 1),
            lambda: "\ufeff" + text,
            lambda: text + text,
            lambda: "[" * random_.choice((50, 5000)) + text,
        )
    )()


def flipped(random_: random.Random, data: bytes, count: int = 3) -> bytes:
    """The bytes with a few of them changed, or cut."""
    changed = bytearray(data)
    for _ in range(random_.randrange(1, count + 1)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed[: random_.randrange(len(changed))] if random_.random() < 0.1 else changed)


def as_text(value: Any) -> str:
    """JSON with whatever Python lets through: NaN, and half characters."""
    return json.dumps(value)
