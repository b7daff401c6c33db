"""Who goes on and who wins a contest: pure functions of its table, and the proof of the winner.

The score is the accuracy on the judge images, paired image by image, so that images that are hard
for everybody cancel. What the rules are worth on simulated contests is in
docs/decisions/how-the-contest-picks.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.search.contest.curve import Curve, learning_curve
from deepaa.search.contest.table import ContestTable, Growth

REFERENCES = ("none", "crop-flip")
"""No augmentation, then crop and flip."""
ALONE = "alone"
"""The reason where there was nothing but references."""
SEPARATED = 2.0
"""Standard errors by which a winner is ahead of the reference, and by which one catches up."""
SEPARATED_LATER = 2.5
"""The same where the difference is one that is predicted for the target."""
FALSE_WINNERS = 0.1
"""How often a winner may be named where all candidates are as good as the reference; the proof
refuses about half of those."""
USUAL_EFFECT = 0.05
"""Standard deviation of what augmentation is worth, before anything is trained."""
BETTER_REFERENCE = 1.0
"""Standard errors by which crop and flip must be ahead of no augmentation to replace it."""
LEAVES, LEAVES_LATER = 4.0, 3.0
"""Standard errors behind the leader at which a candidate leaves, after the first rung and later."""
GAIN = 0.15
"""Share of the leader's errors that a stronger candidate may yet gain on it in each e-fold of
epochs; measured: 0.08 to 0.27."""
FLIPS = 2_000
"""Random signs of the images' differences from which the chance of a false winner is counted."""


class Difference(NamedTuple):
    """An accuracy minus another."""

    mean: float
    error: float
    """Standard error over the groups of images."""

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return self.mean / self.error if self.error else 0.0


class Pick(NamedTuple):
    """The winner of a contest."""

    winner: str
    reference: str
    """The better of no augmentation and crop and flip."""
    reason: str
    """ahead: at the longest schedule; catching-up: by extrapolation; not-separated: the reference
    wins because nothing is separated from it; alone: there was nothing but references."""
    ahead: Difference
    """Winner minus reference, on the images that chose; zero for the reference itself."""
    extrapolated: bool
    """Whether `ahead` is extrapolated to the target."""


# Differences


def difference(
    table: ContestTable,
    candidate: str,
    other: str,
    length: int,
    *,
    chooses: bool = True,
    seeds: Collection[int] | None = None,
) -> Difference:
    """The accuracy of a candidate minus that of another one at a length, averaged over seeds.

    Args:
        chooses: Take the images that choose; otherwise those that confirm.
        seeds: Take the networks of these seeds; None for all.
    """
    ours = table.right(candidate, length, chooses=chooses, seeds=seeds).mean(0)
    theirs = table.right(other, length, chooses=chooses, seeds=seeds).mean(0)
    return estimate(ours - theirs, table.group_sizes(chooses=chooses))


def estimate(gaps: Tensor, sizes: Tensor) -> Difference:
    """The mean over images, and its standard error over groups.

    With s the sum of a group and n its images, N in all, m = sum(s) / N:
    error^2 = (G / (G - 1) * sum((s - n m)^2) + 1) / N^2. The 1 counts one more image that one of
    the two has right and the other wrong, so that few images that all agree prove nothing.

    Args:
        gaps: (groups,) sums over the images of each group.
        sizes: (groups,) how many images each has.
    """
    groups, images = len(sizes), float(sizes.sum())
    if groups < 2:
        return Difference(float(gaps.sum()) / max(images, 1.0), math.inf)
    mean = float(gaps.sum()) / images
    squares = float((gaps - sizes * mean).square().sum()) * groups / (groups - 1)
    return Difference(mean, math.sqrt(squares + 1) / images)


@lru_cache(maxsize=1)
def _signs(groups: int) -> Tensor:
    """Random signs (FLIPS, groups), always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (FLIPS, groups), generator=generator).float() * 2 - 1


def _chances(gaps: Tensor) -> Tensor:
    """How often the best of all rows would be as far ahead as each is, if nothing were better.

    Then a group's differences could as well have the other sign, all rows together, which keeps
    the rows' correlation: the max-T test by flips of signs, whose level holds for few images too.

    Args:
        gaps: (rows, groups) sums over the images of each group.
    """
    scale = (gaps.square().sum(1) + 1).sqrt()
    best = (_signs(gaps.shape[1]) @ gaps.T.float() / scale.float()).amax(1)
    reached = best[:, None] >= (gaps.sum(1) / scale).float() - 1e-4
    return (1 + reached.sum(0)) / (1 + FLIPS)


# One length


@dataclass(frozen=True)
class _Standing:
    """The choosing half of the images after a rung."""

    names: tuple[str, ...]
    now: dict[str, Tensor]
    """(groups,) images of each group that each candidate has right, at this length."""
    before: dict[str, Tensor]
    """The same at the length before, for those that have it."""
    strength: dict[str, float]
    """Training losses at this length."""
    sizes: Tensor
    left: float
    """Log of the target over this length."""
    way: Growth
    """From this length to the target."""
    curve: Curve
    """How errors fall with the epochs."""

    def ahead(self, name: str, other: str) -> Difference:
        """At this length."""
        return estimate(self.now[name] - self.now[other], self.sizes)

    def wrong_at_target(self, name: str) -> Tensor:
        """(groups,) images that it is predicted to have wrong at the target."""
        kept = math.exp(-self.curve.fall(self.strength[name], self.way))
        return (self.sizes - self.now[name]) * kept

    def is_predicted(self, *names: str) -> bool:
        """Whether two lengths say how these go on to a target that is further away."""
        return self.left > 0 and {*names} <= self.before.keys()

    def gaps_at_target(self, name: str, other: str) -> Tensor:
        """Differences by group at the target, as the curve predicts; as now without two lengths."""
        if not self.is_predicted(name, other):
            return self.now[name] - self.now[other]
        return self.wrong_at_target(other) - self.wrong_at_target(name)

    def at_target(self, name: str, other: str) -> Difference:
        """Predicted, with the error of the images and that of the curve."""
        mean, error = estimate(self.gaps_at_target(name, other), self.sizes)
        return Difference(mean, math.hypot(error, self.curve_error(name, other)))

    def curve_error(self, name: str, other: str) -> float:
        """What candidates' own rates add to the error of a predicted difference."""
        if not self.is_predicted(name, other):
            return 0.0
        images = float(self.sizes.sum())
        shares = [float(self.wrong_at_target(each).sum()) / images for each in (name, other)]
        return self.curve.error * self.left * math.hypot(*shares)

    def gains(self, name: str, other: str) -> bool:
        """Whether `name` gained over two standard errors on `other` since the length before."""
        if not {name, other} <= self.before.keys():
            return False
        before = self.before[name] - self.before[other]
        now = self.now[name] - self.now[other]
        return estimate(now - before, self.sizes).z > SEPARATED

    def catches_up(self, name: str, other: str) -> bool:
        """Whether `name` is stronger, gains on `other`, and reaches it at a later target."""
        stronger = self.strength[name] > self.strength[other]
        reaches = self.left > 0 and self.at_target(name, other).mean >= 0
        return stronger and reaches and self.gains(name, other)

    def allowance(self, name: str, other: str) -> float:
        """Accuracy that `name` may yet gain on `other` until the target because it is stronger."""
        if self.strength[name] <= self.strength[other]:
            return 0.0
        wrong = float((self.sizes - self.now[other]).sum() / self.sizes.sum().clamp(1))
        return GAIN * wrong * self.left


def _standing(table: ContestTable, length: int, target: int | None) -> _Standing:
    def right(at: int) -> dict[str, Tensor]:
        return {n: table.right(n, at, chooses=True).mean(0) for n in table.trained(at)}

    now = right(length)
    shorter = [each for each in table.lengths if each < length]
    before = right(shorter[-1]) if shorter else {}
    aim = max(target or length, length)
    way, left = table.growth(length, aim), math.log(aim / length)
    strength = {name: table.train_loss(name, length) for name in now}
    sizes = table.group_sizes(chooses=True)
    known = tuple(entry for entry in table.entries if entry.length <= length)
    curve = learning_curve(replace(table, entries=known))
    return _Standing(tuple(now), now, before, strength, sizes, left, way, curve)


def no_reference(references: Sequence[str]) -> ValueError:
    """The error where nothing can be compared."""
    return ValueError(
        f"no network of {' or '.join(references)} was trained to compare with: their loss was not "
        "a number. A smaller learning rate may help"
    )


def _reference(standing: _Standing, references: Sequence[str]) -> str:
    """No augmentation, unless crop and flip is ahead by a standard error or by two at the target.

    The bare better of the two would be a harmful crop and flip too often.
    """
    found = [name for name in references if name in standing.names]
    if not found:
        raise no_reference(references)
    best = found[0]
    for name in found[1:]:
        later = standing.catches_up(name, best) and standing.at_target(name, best).z >= SEPARATED
        if later or standing.ahead(name, best).z >= BETTER_REFERENCE:
            best = name
    return best


def _separated(
    standing: _Standing, reference: str, rivals: Sequence[str]
) -> tuple[set[str], set[str]]:
    """The rivals that are separated from the reference at this length, and at the target.

    Two standard errors, e sqrt(1 + (e / USUAL_EFFECT)^2) each: two posterior deviations above zero
    if effects are normal about zero, so that with few images large differences are taken for luck.
    And the best of all rows would be so far ahead by chance in one contest of ten at most.
    """
    rows = [standing.now[name] - standing.now[reference] for name in rivals]
    found = [(standing.ahead(name, reference), SEPARATED) for name in rivals]
    if standing.left and standing.before:
        rows += [standing.gaps_at_target(name, reference) for name in rivals]
        for name in rivals:
            errors = SEPARATED_LATER if standing.is_predicted(name, reference) else SEPARATED
            found.append((standing.at_target(name, reference), errors))
    apart = []
    chances = _chances(torch.stack(rows)).tolist()
    for ((mean, error), errors), chance in zip(found, chances, strict=True):
        needed = errors * error * math.hypot(1, error / USUAL_EFFECT)
        apart.append(mean >= needed and chance <= FALSE_WINNERS)
    now, later = apart[: len(rivals)], apart[-len(rivals) :]
    return set(compress(rivals, now)), set(compress(rivals, later))


def _leader(standing: _Standing, reference: str, separated: Collection[str]) -> str:
    """The best of those that are separated from the reference, or the reference."""
    if not separated:
        return reference
    # of two with equal accuracy, the weaker
    return max(
        (name for name in standing.names if name in separated),
        key=lambda name: (standing.ahead(name, reference).mean, -standing.strength[name]),
    )


# The rules


def staying(
    table: ContestTable,
    length: int,
    references: Sequence[str] = REFERENCES,
    target: int | None = None,
) -> list[str]:
    """Who goes on after the rung of this length, in the order of the table.

    The leader is the best candidate that is separated from the reference, or else the reference: a
    bare maximum of many is often luck. A candidate leaves when it is 4 standard errors behind the
    leader after the first rung, or 3 later without having gained 2 on it. Short schedules favour
    weak augmentation, so a candidate that is stronger than the leader may be further behind, by
    15 % of the leader's errors for each e-fold of epochs that is left to the target. References
    stay, but for one that is weaker than the other and as far behind it; a candidate with a
    training that failed leaves.
    """
    standing = _standing(table, length, target)
    reference = _reference(standing, references)
    rivals = [name for name in standing.names if name not in references]
    leader = reference
    if rivals:
        leader = _leader(standing, reference, _separated(standing, reference, rivals)[0])
    limit = LEAVES_LATER if standing.before else LEAVES

    def stays(name: str) -> bool:
        if name in references:  # others are compared with it, unless there is a better one
            weaker = standing.strength[name] < standing.strength[reference]
            mean, error = standing.ahead(name, reference)
            behind = weaker and mean <= -limit * error
        else:
            mean, error = standing.ahead(name, leader)
            behind = mean + standing.allowance(name, leader) <= -limit * error
        return not behind or standing.gains(name, leader)

    return [name for name in standing.names if stays(name)]


def foremost(
    table: ContestTable,
    length: int,
    names: Sequence[str],
    count: int,
    references: Sequence[str] = REFERENCES,
    target: int | None = None,
) -> list[str]:
    """The references among these candidates and, up to so many, those with the best prospects.

    Those are the accuracies that the learning curve predicts for the target, so that strong
    augmentation is not left behind because the trainings are short. The last place is that of the
    candidate that is most accurate now, if no other has it: what leads is not given up for a
    prediction that no longer training has borne out yet.
    """
    standing = _standing(table, length, target)
    rivals = [name for name in names if name not in references]
    kept = {name for name in names if name in references}
    places = max(1, count - len(kept))
    best = sorted(rivals, key=lambda name: float(standing.wrong_at_target(name).sum()))[:places]
    if places > 1 and rivals:
        now = max(rivals, key=lambda name: float(standing.now[name].sum()))
        best = best if now in best else [*best[:-1], now]
    return [name for name in names if name in kept.union(best)]


def pick(
    table: ContestTable, references: Sequence[str] = REFERENCES, target: int | None = None
) -> Pick:
    """The winner among the candidates that were trained at the longest schedule.

    A candidate wins if it is separated from the reference, by 2 standard errors and by a test that
    knows how many candidates there are; the best of them at the longest schedule leads. A stronger
    one is preferred if it gained more than 2 standard errors on the leader since the length before
    and, by the learning curve, reaches the leader at the target, where it must be separated
    from the reference as well. Otherwise the reference wins.

    Args:
        target: Epochs of the training that the winner is for; None for the longest schedule.
    """
    if not table.entries:
        raise ValueError("the contest has no entries: train its candidates first")
    standing = _standing(table, table.lengths[-1], target)
    reference = _reference(standing, references)
    rivals = [name for name in standing.names if name not in references]
    if not rivals:
        reason = ALONE if {*table.candidates} <= {*references} else "not-separated"
        return Pick(reference, reference, reason, Difference(0.0, 0.0), False)
    now, later = _separated(standing, reference, rivals)
    leader = _leader(standing, reference, now)
    chasers = [
        name
        for name in standing.names
        if (name in later or name == reference) and standing.catches_up(name, leader)
    ]
    if chasers:
        winner = max(chasers, key=lambda name: standing.at_target(name, leader).mean)
        if winner != reference:
            ahead = standing.at_target(winner, reference)
            return Pick(winner, reference, "catching-up", ahead, True)
        leader = reference
    if leader == reference:
        return Pick(reference, reference, "not-separated", Difference(0.0, 0.0), False)
    return Pick(leader, reference, "ahead", standing.ahead(leader, reference), False)
