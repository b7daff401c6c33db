"""A search and the contest that follows it: the search proposes, training decides."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

from deepaa import distributed
from deepaa.data import weaknesses
from deepaa.models import is_large
from deepaa.policy import Policy, SpaceName
from deepaa.runs import FOUND, POLICY
from deepaa.search.contest import (
    Candidate,
    Contest,
    ContestConfig,
    ContestRecord,
    ContestRun,
    JudgedImages,
    LengthPlan,
    Network,
    all_candidates,
    contest_facts,
    contest_network,
    contest_plan,
    protected_away,
)
from deepaa.search.fresh_network import fresh_copy
from deepaa.search.policy_search import PolicySearch, Record
from deepaa.search.protection import Protection
from deepaa.search.settings import LEAST_PAIRS
from deepaa.train import device_settings

LEAST_SEARCHED = 1000
"""Fewer images are not searched: only policies that need no search take part in the contest."""


class ProvedSearch:
    """A search, then its contest; iterate for the records of both, then take `policy`."""

    def __init__(self, search: PolicySearch, contest: ContestConfig | None) -> None:
        """Nothing is trained before the iteration begins.

        Args:
            contest: How policies are compared by training; None leaves the contest out.
        """
        self.search, self.config = search, contest
        self.contest: ContestRun | None = None
        """The contest, once it has begun."""
        self.stopped = False
        count = len(search.data.labels)
        self.is_searched = contest is None or count >= LEAST_SEARCHED
        """Whether there are images enough for a search; without, there is only the contest."""
        if contest is not None:
            self.check_contest()

    @property
    def is_over(self) -> bool:
        """Whether the run folder holds the result, which is written last."""
        run = self.search.run
        return run is not None and (run.folder / POLICY).exists()

    @property
    def too_few(self) -> str:
        """Why nothing is searched."""
        count = len(self.search.data.labels)
        return (
            f"{count:,} images are too few for a search ({LEAST_SEARCHED:,} or more): policies "
            "that need none are compared by training"
        )

    @property
    def weaknesses(self) -> list[str]:
        """A line for each reason why little can be told from so few images."""
        config, data = self.search.config, self.search.data
        lines = weaknesses(data.labels, data.class_names)
        is_own = self.is_searched and self.search.method is None
        if is_own and config.heldout < LEAST_PAIRS:
            kept = "no layer can be kept; --layers N keeps N of them"
            kept = kept if config.layers is None else "what a layer gains is chance"
            lines.append(
                f"each decision on a layer has {config.heldout} held-out images, and takes "
                f"{LEAST_PAIRS}: {kept}"
            )
        return lines

    @property
    def found(self) -> Policy:
        """What the search found so far."""
        return self.search.policy

    @property
    def policy(self) -> Policy:
        """The winner of a contest that is over; without one, what the search found."""
        return self.found if self.contest is None else self.contest.result.policy

    def __iter__(self) -> Iterator[Record | ContestRecord]:
        """Search, then let candidates compete, and write the winner."""
        search = self.search
        yield from search if self.is_searched else search.protect_alone()
        self.stopped = search.stopped
        if self.stopped:
            return
        if not distributed.is_main():  # which holds the contest alone
            return
        if self.config is None:
            if search.run is not None:
                self.found.save(search.run.folder / POLICY)
            return
        if not self.is_searched and search.run is not None:
            self.found.save(search.run.folder / FOUND)
        if not self.is_over:
            search.show("contest: preparing the trainings")
        self.contest = self._begin()
        yield from self.contest
        self.stopped = self.contest.stopped

    def save(self) -> None:
        """Write the state after the newest record to disk; may be called at any time."""
        (self.search if self.contest is None else self.contest).save()

    # The contest

    @cached_property
    def images(self) -> JudgedImages:
        """All images but the judge to train on, and the judge; or folds."""
        return JudgedImages.of(self.search.data, self.search.splits.judge, searched=True)

    @cached_property
    def network(self) -> Network:
        """The network of the search, from fresh weights or from those of its file."""
        search, device = self.search, self.search.device
        assert self.config is not None
        limit = self.config.limit(device)
        config = device_settings(search.proxy.train, (), device, limit, recipe=False)
        if search.given is None:
            name = search.network_name
            return contest_network(self.images, name, config, device, search.weights)
        return Network("your own", partial(fresh_copy, search.given), config, device)

    def plan(self, found: Policy | None = None) -> LengthPlan:
        """The trainings of the contest; before the search, as if it found many layers."""
        assert self.config is not None
        example = found or (Policy.trivial(self.search.space, 3) if self.is_searched else None)
        names = [each.name for each in self._candidates(example)]
        train, device = self.network.config, self.search.device
        return contest_plan(names, self.images, train, device, self.config)

    def _candidates(self, found: Policy | None, *, protected: bool = True) -> list[Candidate]:
        space: SpaceName = "imagenet" if is_large(self.search.data.images) else "cifar"
        protection = self.search.protection if protected else Protection()
        return all_candidates(space, found=found, excludes=protection.excludes)

    def check_contest(self) -> None:
        """Refuse what no contest can be held with, before the search."""
        self.plan()
        if self.search.given is not None:
            fresh_copy(self.search.given, 0)

    def _begin(self) -> ContestRun:
        search, found = self.search, self.found
        candidates = self._candidates(found)
        excluded = protected_away(self._candidates(found, protected=False), candidates)
        contest = Contest(candidates, self.images, self.network, self.plan(found))
        return ContestRun(
            contest,
            contest_facts(self.images, self.network, search.protection, excluded),
            run=search.run,
            state=search.later_state,
            more_state=search.protection_state,
            checkpoint_seconds=search.checkpoint_seconds,
            stop=search.stop,
        )
