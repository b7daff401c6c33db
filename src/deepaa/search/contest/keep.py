"""A contest in a run folder: its records, states and results, and the progress that it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from deepaa.runs import (
    CONTEST,
    POLICY,
    ProgressLine,
    Run,
    StopAskedError,
    checks_state,
    duration,
    notify,
)
from deepaa.search.contest.plan import FIRST_FRESH_SEED, LengthPlan, flat
from deepaa.search.contest.result import ContestResult, contest_result, document
from deepaa.search.contest.run import Contest, ContestEntry, ContestEpoch, ContestRecord
from deepaa.search.plain_network import LOOKING, ClassProtection
from deepaa.search.protection import Protection

PHASE, PROTECTING = "contest", "protection"
"""Where a run is, as its state says."""
PROTECTION = "protection.json"
"""The file that keeps what turns one class into another, once that is known."""


class Unprotected(NamedTuple):
    """Class protection that comes before a contest without a search."""

    looking: ClassProtection
    contest: Callable[[Protection], tuple[Contest, dict[str, Any]]]
    """The contest without what turns one class into another, and its facts."""
    state: Mapping[str, Tensor]
    """Where the looking was stopped; empty if it was not."""
    show: Callable[[str], None]
    """Is told what is done, in words for a person."""


class ContestRun:
    """A contest whose records and states go to a run folder; iterate for its records."""

    def __init__(
        self,
        contest: Contest,
        facts: Mapping[str, Any],
        *,
        run: Run | None = None,
        state: Mapping[str, Tensor] | None = None,
        more_state: Mapping[str, Tensor] | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
        unprotected: Unprotected | None = None,
    ) -> None:
        """Go on from a state if there is one.

        Args:
            facts: What contest.json says beside the outcomes.
            run: Where everything goes; None keeps nothing.
            more_state: What is saved beside the contest's own state.
            stop: Asked often; once it says yes, the iteration saves and ends as `stopped`.
            unprotected: What is to be done before; `contest` is as if nothing were left out.
        """
        self.contest, self.facts, self.run = contest, facts, run
        self.unprotected = unprotected
        """None once it is known what turns one class into another."""
        self._held: dict[str, Tensor] = {}  # of the looking, after the newest epoch
        self.more_state = more_state or {}
        self.stopped, self._stop = False, stop
        self.checkpoint_seconds, self._saved = checkpoint_seconds, time.monotonic()
        contest.before_step = self._check_stop
        if state:
            with checks_state(run):
                contest.load_state(state)

    def __iter__(self) -> Iterator[ContestRecord]:
        """Train what is left to train, and write the winner."""
        try:
            if self.unprotected is not None:
                self._protect(self.unprotected)
            for record in self.contest:
                self._log(record)
                is_epoch = isinstance(record, ContestEpoch)
                if not is_epoch or time.monotonic() - self._saved >= self.checkpoint_seconds:
                    self.save()
                yield record
                self._check_stop()
        except StopAskedError:
            self.save()
            self.stopped = True
            return
        self.save()
        if self.run is not None:
            self.result.policy.save(self.run.folder / POLICY)

    def _protect(self, before: Unprotected) -> None:
        """Look for what turns one class into another, and leave it out."""
        looking = before.looking
        if before.state:
            looking.load_state(before.state, self.run)
            self._held = dict(before.state)
        looking.before_step, looking.keep = self._check_stop, self._hold
        looking.show = before.show
        before.show(LOOKING)
        record = looking.find()
        before.show("")
        for line in record.lines:
            notify(line)
        self.contest, self.facts = before.contest(record.protection)
        self.contest.before_step = self._check_stop
        self.unprotected = None
        if self.run is not None:
            self.run.write_json(PROTECTION, record._asdict())

    def _hold(self) -> None:
        """Keep where the looking is, and have it on disk now and then."""
        assert self.unprotected is not None
        self._held = self.unprotected.looking.state()
        if time.monotonic() - self._saved >= self.checkpoint_seconds:
            self.save()

    @cached_property
    def result(self) -> ContestResult:
        """What a contest that is over says."""
        contest = self.contest
        return contest_result(contest.candidates, contest.plan, contest.table)

    @property
    def document(self) -> dict[str, Any]:
        """contest.json as it is now."""
        contest = self.contest
        facts = {**self.facts, "left_out": contest.left_out}
        return document(contest.candidates, contest.plan, contest.table, facts)

    def save(self) -> None:
        """Have the state and what is known so far on disk."""
        if self.run is not None and self.unprotected is not None:
            if self._held:
                self.run.save(self._held, {"phase": PROTECTING})
        elif self.run is not None:
            self.run.save({**self.contest.state(), **self.more_state}, {"phase": PHASE})
            self.run.write_json(CONTEST, self.document)
        self._saved = time.monotonic()

    def _log(self, record: ContestRecord) -> None:
        kind = "contest-epoch" if isinstance(record, ContestEpoch) else "contest"
        if self.run is not None:
            self.run.log({"kind": kind, **flat(record)})

    def _check_stop(self) -> None:
        if self._stop():
            raise StopAskedError


class ContestProgress:
    """Shows the records of a contest on stderr: call it with each."""

    def __init__(self, run: ContestRun, line: ProgressLine | None = None) -> None:
        """Nothing is shown before the first record."""
        self.run, self.line = run, line or ProgressLine()
        self._began, self._first = time.monotonic(), run.contest.passes
        self._most: int | None = None  # until the next training is judged

    def __call__(self, record: ContestRecord) -> None:
        """Show one record; a judged candidate stays on the screen."""
        title = self.run.contest.candidates[record.candidate].title
        if isinstance(record, ContestEntry):
            self._most = None
            proof = " (proof)" if record.seed >= FIRST_FRESH_SEED else ""
            accuracy = " failed" if record.loss is None else f"{100 * record.accuracy:5.1f} %"
            self.line.message(f"contest: {accuracy} after {record.size}, {title}{proof}")
            return
        text = (
            f"contest  left {self._left()}  epoch {record.epoch + 1}/{record.size.epochs}  {title}"
        )
        self.line.update(text)

    def _left(self) -> str:
        """The time that the rest takes at most."""
        contest = self.run.contest
        plan, passes = contest.plan, contest.passes
        seconds = time.monotonic() - self._began
        if not isinstance(plan, LengthPlan) or passes == self._first:
            return "?"
        if self._most is None:
            self._most = plan.most_passes(contest.table)
        left = max(0, self._most - passes)
        return duration(left * seconds / (passes - self._first))

    def clear(self) -> None:
        """Remove the line that changes."""
        self.line.clear()
