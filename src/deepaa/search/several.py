"""Several search methods on the same images, under one budget, and the table that compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.models import is_large
from deepaa.runs import changed_values, read_history
from deepaa.search.contest import (
    FORMS,
    REFERENCES,
    ContestConfig,
    ContestTable,
    JudgedImages,
    LengthPlan,
    Plan,
    Size,
    contest_plan,
    flat,
)
from deepaa.search.methods import OWN, TRAINING_COST, find_searcher
from deepaa.search.plain_network import ClassProtection, ProtectionRecord, protection_of
from deepaa.search.policy_search import PolicySearch
from deepaa.search.proved import LEAST_SEARCHED
from deepaa.search.run import SearchRequest
from deepaa.search.settings import SearchConfig, SettingsRequest
from deepaa.train import TrainConfig

FASTEST = 0.3
"""The highest learning rate of a search in fewer steps."""
DEVIATIONS = 1.96
"""Standard errors to either side of an interval of 95 %."""
MOST_PASSES = 10**12
"""Of a contest that leaves nobody out."""
METHODS_FILE = "methods.json"
"""The table, in the folder of all searches."""


# The settings


def settings_for(name: str, names: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The changes without those that are settings of other methods among `names` only."""
    mine = _settings_of(name)
    others = {setting for other in names for setting in _settings_of(other)} - mine
    return [change for change in changes if change.partition("=")[0] not in others]


def _settings_of(name: str) -> set[str]:
    config = SearchConfig if name == OWN else find_searcher(name).Config
    return {field.name for field in fields(config)}


# The budget


def within_budget(request: SearchRequest, search: PolicySearch, budget: int) -> SearchRequest:
    """The request in the largest form that costs at most `budget` passes forward.

    Args:
        search: The search that the request means.
    """
    if request.method is not None:
        config = request.method.searcher.scaled(request.method.config, search.world, budget)
        return replace(request, method=request.method._replace(config=config))
    found, cost = None, 0
    asked = request.settings.resolve(large=is_large(search.data.images)).search
    for config in _smaller(asked):
        # fewer layers leave more held-out images to each
        cost = _own_cost(search, config.fitted_to(len(search.splits.search)))
        if cost <= budget:
            found = config
            break
    if found is None:
        raise ValueError(f"{OWN} takes {cost:,} passes at least, the budget is {budget:,}")
    names = ("steps", "learning_rate", "max_layers", "layers")
    fields = {name: getattr(found, name) for name in names}
    settings: SettingsRequest = request.settings
    return replace(request, settings=replace(settings, fields={**settings.fields, **fields}))


def whole_cost(search: PolicySearch) -> int:
    """The most that a search costs, in passes forward, with its pre-training."""
    return (
        _own_cost(search, search.config)
        if search.method is None
        else search.method_forecast.passes.cost
    )


def _own_cost(search: PolicySearch, config: SearchConfig) -> int:
    return TRAINING_COST * (search.training_passes + config.passes_left(len(search.space)))


def _smaller(config: SearchConfig) -> Sequence[SearchConfig]:
    """The settings with fewer steps at a higher learning rate, then with fewer layers, too."""
    way = config.steps * config.learning_rate
    least = min(config.steps, math.ceil(way / FASTEST))
    layers = config.layers or config.max_layers
    smaller = [
        replace(config, steps=steps, learning_rate=way / steps)
        for steps in range(config.steps, least - 1, -1)
    ]
    return smaller + [
        replace(smaller[-1], layers=n) if config.layers else replace(smaller[-1], max_layers=n)
        for n in range(layers - 1, 0, -1)
    ]


# What turns one class into another


class SharedProtection:
    """What the searches found that turns one class into another: looked for once, where it is one.

    Searches of one command have the same images, splits and space, so the network that is trained
    for this, and what it says, is the same for each; that of gradient matching is no other.
    """

    def __init__(self) -> None:
        """Nothing was looked for yet."""
        self._found: list[tuple[ClassProtection, ProtectionRecord]] = []

    def known(self, looking: ClassProtection) -> ProtectionRecord | None:
        """What a search would find, as one before it has; None if it has to look."""
        same = (found for other, found in self._found if other.finds_the_same(looking))
        found = next(same, None)
        return found and found._replace(passes=0, seconds=0.0)  # others have paid for it

    def add(self, looking: ClassProtection, search: PolicySearch) -> None:
        """Keep what a search that is over has found, if it has looked."""
        saved = search.protection_state.get("protection")
        if saved is not None and self.known(looking) is None:
            self._found.append((looking, ProtectionRecord.from_tensor(saved)))

    @property
    def together(self) -> ProtectionRecord | None:
        """All that was found, for what the searches meet in; None if nobody has looked."""
        if not self._found:
            return None
        first, *others = (record for _, record in self._found)
        changed = [*first.changed, *(each for other in others for each in other.changed)]
        return first._replace(changed=[e for n, e in enumerate(changed) if e not in changed[:n]])


def looking_of(search: PolicySearch) -> ClassProtection:
    """What looks for changed classes in a search that has not begun, with a network of its own."""
    return protection_of(search, lambda: None, is_trained=False)


# The contest


def training_changes(train: TrainConfig) -> tuple[str, ...]:
    """What a contest needs to train as the searches did: NAME=VALUE each."""
    return changed_values(train, without=("epochs", "seed"))


def check_contest(
    search: PolicySearch,
    contest: ContestConfig,
    methods: int,
    *,
    is_asked: bool = True,
    forms: Sequence[int] = (1,),
) -> LengthPlan:
    """The plan of the contest, in which every method takes part.

    Passes that are too few for that are refused, or become enough where nobody asked for them.

    Args:
        forms: In how many forms each method takes part: the first number that the passes reach.
    """
    count = len(search.data.labels)
    if count < LEAST_SEARCHED:
        raise ValueError(
            f"{count:,} images are too few for a search ({LEAST_SEARCHED:,} or more); --contest "
            "off searches all the same"
        )
    images = JudgedImages.of(search.data, search.splits.judge, searched=True)
    for number in forms:
        names = [*REFERENCES, *(f"policy {place}" for place in range(number * methods))]
        make = partial(contest_plan, names, images, search.proxy.train, search.device)
        enough = make(replace(contest, passes=MOST_PASSES)).enough  # else passes mend nothing
        try:
            plan = make(contest)
            why = plan.shortness if plan.left_out else None
        except ValueError:  # not even an epoch of each
            passes = contest.limit(search.device)
            why = f"{passes:,} passes are few for {len(names)} candidates; {enough:,} would do"
        if why is None:
            return plan
        if not is_asked:
            return make(replace(contest, passes=enough))
    raise ValueError(f"--contest-passes: {why}, or --contest off")


# The table


class Judged(NamedTuple):
    """How networks do that were trained with a policy."""

    length: int
    """What the longest trainings cost, in epochs of all images to train on."""
    size: Size
    """Of the longest trainings."""
    seeds: int
    accuracy: float
    low: float
    """Both ends of the 95 % interval of the accuracy, over the images that judge."""
    high: float


class MethodRow(NamedTuple):
    """What a method took, and how networks do that were trained with what it found."""

    method: str
    passes: int
    """Passes forward, or what costs as much; pre-training is included."""
    minutes: float
    images: int
    """Labelled images that it used."""
    judged: Judged | None = None
    """How its policy did in the contest; None without one."""
    form: str | None = None
    """The form of its policy that was judged: the best one."""

    def to_json(self) -> dict[str, Any]:
        """As methods.json has it."""
        return {**self._asdict(), "judged": self.judged and flat(self.judged)}

    @property
    def heading(self) -> str:
        """What stands over the rows that were judged alike."""
        return "not judged" if self.judged is None else f"after {self.judged.size}"

    @property
    def rank(self) -> tuple[int, float]:
        """The place in a table, the least first: a contest trains the better ones longer."""
        return (1, 0.0) if self.judged is None else (-self.judged.length, -self.judged.accuracy)


def spent(folder: Path) -> tuple[int, float]:
    """The passes and the seconds of the search in a run folder, without its contest."""
    trained = passes = 0
    seconds = 0.0
    for record in read_history(folder):
        kind = record.get("kind")
        if kind not in ("epoch", "step", "layer", "trial"):
            continue
        seconds += record["seconds"]
        if kind == "epoch":
            trained += record["images"]
        else:
            passes = record["passes"] if kind == "trial" else TRAINING_COST * record["passes"]
    return TRAINING_COST * trained + passes, seconds


def shared_seconds(folders: Sequence[Path]) -> float:
    """The seconds that searches took to look for what turns one class into another."""
    every = (record for folder in folders for record in read_history(folder))
    return float(sum(r["seconds"] for r in every if r.get("kind") == "protection"))


def images_used(search: PolicySearch) -> int:
    """Labelled images that a search looks at."""
    if search.method is None:
        return sum(len(part) for part in search.splits[:3])
    return search.method.searcher.needs(search.method.config).images(search.world)


def best_form(plan: Plan, table: ContestTable, name: str) -> tuple[str, str] | None:
    """The form of a policy that was trained longest, and was best so: its candidate and its words.

    The images that choose the winner choose it, so that the others can tell how good it is.
    """
    chooses, ranks = plan.without_proof(table), dict[str, tuple[int, float]]()
    for tail in FORMS:
        if own := [each for each in chooses.entries if each.candidate == f"{name}{tail}"]:
            length = max(entry.length for entry in own)
            right = [e.correct[table.chooses].double().mean() for e in own if e.length == length]
            ranks[tail] = length, float(sum(right) / len(right))
    if not ranks:
        return None
    best = max(ranks, key=lambda tail: ranks[tail])
    return f"{name}{best}", FORMS[best] or "as found"


def judged(
    plan: Plan, table: ContestTable, candidate: str, images: Tensor | None = None
) -> Judged | None:
    """The accuracy after the longest trainings with a candidate, and its interval.

    Args:
        images: Whether each image that judges is counted; None for all.
    """
    own = [entry for entry in table.entries if entry.candidate == candidate]
    if not own:
        return None
    images = torch.ones_like(table.chooses) if images is None else images
    length = max(entry.length for entry in own)
    right = [e.correct[images].double().mean().item() for e in own if e.length == length]
    accuracy = sum(right) / len(right)
    half = DEVIATIONS * math.sqrt(accuracy * (1 - accuracy) / int(images.sum()))
    low, high = max(0.0, accuracy - half), min(1.0, accuracy + half)
    return Judged(length, plan.size(length), len(right), accuracy, low, high)


def method_lines(rows: Sequence[MethodRow]) -> list[str]:
    """The table as text, those that were trained longest and the best of them first."""
    head = f"{'method':12} {'passes':>12} {'minutes':>8} {'images':>8}  accuracy (95 %)"
    lines = [head]
    for heading, alike in groupby(sorted(rows, key=lambda r: r.rank), key=lambda r: r.heading):
        lines.append(f"{heading}:")
        for row in alike:
            told = ""
            if (found := row.judged) is not None:
                ends = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
                told = f"  {100 * found.accuracy:.1f} % ({ends})"
                told += "" if row.form is None else f"  {row.form}"
            numbers = f"{row.passes:>12,} {row.minutes:>8.1f} {row.images:>8,}"
            lines.append(f"{row.method:12} {numbers}{told}")
    return lines
