"""Operations with continuous levels: the space of sub-policies, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from deepaa.ops import Operation, Row, Space, Table
from deepaa.policy import FIFTEEN, IDENTITY, Chains, Policy, continuous_levels


class Slot(NamedTuple):
    """One step of a sub-policy."""

    operation: int
    """Which of the space's operations."""
    gate: float
    """The probability that it is applied."""
    level: float
    """0 to 1: where in the range of the operation."""


class LevelSpace:
    """Operations, each with its range cut into small steps; all of them are rows of one table.

    So policies of one search share a table, and none of them has to be compiled.
    """

    def __init__(self, levels: Sequence[tuple[Operation, Sequence[float | None]]]) -> None:
        """Put the rows of all operations behind identity."""
        if not levels:
            raise ValueError("no operation is left to choose from")
        self.operations = tuple(operation for operation, _ in levels)
        rows, self._first, self._counts = [IDENTITY], list[int](), list[int]()
        for operation, magnitudes in levels:
            self._first.append(len(rows))
            self._counts.append(len(magnitudes))
            rows += [Row(operation, magnitude) for magnitude in magnitudes]
        self.table = Table(rows)

    @classmethod
    def of(
        cls,
        space: Space,
        excludes: Callable[[Row], bool] = lambda row: False,
        operations: Sequence[Operation] = FIFTEEN,
    ) -> LevelSpace:
        """Those of `operations` that the space has too, and the user's own in the space.

        What is excluded is not there: of an operation the other levels are left, if any.
        """
        names = {operation.name for operation in space.operations}
        own = [operation for operation in space.operations if operation.is_custom]
        levels = []
        for operation in (*(each for each in operations if each.name in names), *own):
            _, magnitudes = continuous_levels(operation)
            allowed = [each for each in magnitudes if not excludes(Row(operation, each))]
            if allowed:
                levels.append((operation, allowed))
        return cls(levels)

    def row(self, operation: int, level: float) -> int:
        """The row of an operation at a level from 0 to 1."""
        count = self._counts[operation]
        return self._first[operation] + min(int(level * count), count - 1)

    def chains(
        self, sub_policies: Sequence[Sequence[Slot]], weights: Sequence[float] | None = None
    ) -> Chains:
        """Sub-policies of equally many slots as chains, equally likely if no weights are given."""
        shares = weights or [1 / len(sub_policies)] * len(sub_policies)
        slots = [
            [(self.row(slot.operation, slot.level), slot.gate) for slot in sub_policy]
            for sub_policy in sub_policies
        ]
        return Chains.of(list(zip(slots, shares, strict=True)))

    def policy(
        self, sub_policies: Sequence[Sequence[Slot]], weights: Sequence[float] | None = None
    ) -> Policy:
        """The policy of sub-policies, with either sign of what has a sign equally likely."""
        return Policy(self.table, self.chains(sub_policies, weights)).symmetric()

    def draw(self, uniforms: Sequence[float]) -> Slot:
        """A slot from three numbers in 0..1: the operation, its gate and its level."""
        operation, gate, level = uniforms
        return Slot(
            min(int(operation * len(self.operations)), len(self.operations) - 1), gate, level
        )
