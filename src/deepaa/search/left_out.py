"""What class protection leaves out of spaces and policies, and the words for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from deepaa.files import plural
from deepaa.ops import Operation, Row, Space
from deepaa.runs import RunError, record_of

TURNED = 0.5
"""An operation that turns this share of a class into one other class is left out."""

Place = tuple[str, int]
"""The name of an operation, and on which side of its neutral magnitude."""


def turned_text(source: str, target: str, share: float) -> str:
    """What happens to a class, of whose mirror images less than half may have the other name."""
    if share >= TURNED:
        return f"{source} becomes {target}"
    return f"{source} is taken for others, most often for {target}"


class Changed(NamedTuple):
    """An operation that turns one class into another."""

    operation: str
    magnitude: float | None
    """The weakest at which it happens; None for an operation without magnitudes."""
    from_class: str
    to_class: str
    share: float
    """Of the transformed images of the one class that the network calls the other."""
    before: float
    """The same of these images as they are."""
    images: int
    neutral: float | None = None
    """The magnitude of the operation that changes nothing."""

    @property
    def text(self) -> str:
        """A plain sentence, without its full stop."""
        at = "" if self.magnitude is None else f" from {self.magnitude:.4g} on"
        return (
            f"{self.operation}{at}: {self.what} "
            f"({self.share:.0%} of {plural(self.images, 'image')}, {self.before:.0%} without it)"
        )

    @property
    def what(self) -> str:
        """What happens to the class."""
        return turned_text(f"'{self.from_class}'", f"'{self.to_class}'", self.share)


_JSON = {"from": "from_class", "to": "to_class"}
"""Names of fields in JSON, where they are others."""


class Protection(NamedTuple):
    """What has to be left out so that no class becomes another."""

    changed: tuple[Changed, ...] = ()
    untestable: tuple[str, ...] = ()
    """Classes with too few held-out images, or that the network knows too little of."""

    def excludes(self, row: Row) -> bool:
        """Whether a row is an unsafe operation, at or beyond the weakest unsafe magnitude."""
        return any(_is_beyond(row, each) for each in self.changed)

    def space(self, space: Space) -> Space:
        """The space without what is unsafe.

        A range ends before its weakest unsafe magnitude, so that weak forms of an operation stay; a
        signed range stays symmetric. Where none is left, the operation goes.
        """
        kept = (self._narrowed(op, space.levels) for op in space.operations)
        return Space(tuple(op for op in kept if op is not None), space.levels)

    def _narrowed(self, operation: Operation, levels: int) -> Operation | None:
        rows = [Row(operation, magnitude) for magnitude in operation.magnitudes(levels)]
        unsafe = [self.excludes(row) for row in rows]
        if not any(unsafe):
            return operation
        neutral = operation.neutral
        if neutral is None:  # without magnitudes, or with some that have no order
            return None
        if operation.is_signed:
            unsafe = [a or b for a, b in zip(unsafe, reversed(unsafe), strict=True)]
        safe = [row.magnitude or 0.0 for row, bad in zip(rows, unsafe, strict=True) if not bad]
        if not safe:
            return None
        return dataclasses.replace(operation, low=min(*safe, neutral), high=max(*safe, neutral))

    def texts(self, rows: Iterable[Row] | None = None) -> list[str]:
        """A sentence for each side of an operation, without its full stop.

        It is about the weakest magnitude that is left out, and names the classes of which most is
        lost there.

        Args:
            rows: Where they are given, only what is left out of them has a sentence.
        """
        found: dict[Place, list[Changed]] = {}
        for each in self.changed:
            side = side_of(each.magnitude, each.neutral)
            found.setdefault((each.operation, side), []).append(each)
        some = None if rows is None else list(rows)
        texts = []
        for same in found.values():
            if some is not None and not any(_is_beyond(row, c) for row in some for c in same):
                continue
            worst = min(same, key=lambda each: (_distance(each), -each.share))
            more = len({(each.from_class, each.to_class) for each in same}) - 1
            texts.append(
                worst.text + (f"; and {plural(more, 'other pair')} of classes" * (more > 0))
            )
        return texts

    def to_json(self) -> list[dict[str, Any]]:
        """What is left out, as `contest.json` has it."""
        names = {field: name for name, field in _JSON.items()}
        return [{names.get(k, k): v for k, v in each._asdict().items()} for each in self.changed]

    @classmethod
    def from_json(
        cls,
        changed: Iterable[Mapping[str, Any]],
        untestable: Iterable[str] = (),
        place: object = "protection",
    ) -> Protection:
        """The protection that `to_json` gave; `place` says in a RunError where it is from."""
        renamed = ({_JSON.get(k, k): v for k, v in each.items()} for each in changed)
        found = tuple(record_of(Changed, each, place) for each in renamed)
        if any(each.operation == "identity" for each in found):
            raise RunError(f"{place}: damaged: identity, which changes nothing, is left out")
        return cls(found, tuple(untestable))


def _distance(changed: Changed) -> float:
    """How strong the weakest magnitude is."""
    return 0.0 if changed.magnitude is None else abs(changed.magnitude - (changed.neutral or 0.0))


def _is_beyond(row: Row, changed: Changed) -> bool:
    if row.operation.name != changed.operation:
        return False
    neutral, weakest = changed.neutral, changed.magnitude
    if row.magnitude is None or weakest is None or neutral is None:
        return True  # magnitudes without order: all of them
    if side_of(row.magnitude, neutral) != side_of(weakest, neutral):
        return False
    return abs(row.magnitude - neutral) >= abs(weakest - neutral) * (1 - 1e-9)


def side_of(magnitude: float | None, neutral: float | None) -> int:
    """1 above the neutral magnitude, -1 below it, 0 without such."""
    if magnitude is None or neutral is None:
        return 0
    return (magnitude > neutral) - (magnitude < neutral)
