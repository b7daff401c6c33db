"""How much a contest trains by a loop of the user's own, whose length it cannot choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from deepaa.search.contest.pick import staying
from deepaa.search.contest.plan import Job, Plan, Rung, has
from deepaa.search.contest.table import ContestTable


@dataclass(frozen=True)
class SeedPlan(Plan):
    """For a loop of the user's own, which always trains as long: a seed, then more for the best."""

    length: int = 1
    """Epochs of the user's loop, for the record."""
    seeds: int = 2

    def rungs(self, table: ContestTable) -> list[Rung]:
        """One seed of all, then all seeds of those that stay."""
        rungs = [Rung(self.length, list(self.names))]
        if all(has(table, Job(name, self.length, 0)) for name in self.names):
            only_first = tuple(entry for entry in table.entries if entry.seed == 0)
            going_on = staying(replace(table, entries=only_first), self.length, self.references)
            rungs.append(Rung(self.length, going_on, tuple(range(self.seeds))))
        return rungs

    @property
    def settings(self) -> dict[str, int]:
        """What trainings of one contest have in common, as contest.json has it."""
        return {"target_epochs": self.target, "seeds": self.seeds, "fresh_seeds": self.fresh_seeds}

    def to_json(self, table: ContestTable) -> dict[str, Any]:
        """What contest.json says of the plan."""
        return {**super().to_json(table), **self.settings}
