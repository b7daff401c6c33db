"""Parts of labelled images by class and group: judge, splits of a search, folds, held-out images.

Every division is the same on every machine.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa import distributed
from deepaa.data.equal_images import KEEP_TOGETHER, warn_of_equal_images
from deepaa.data.image_file import listed, shown
from deepaa.data.splits import (
    LabelledImages,
    Sizes,
    Splits,
    TrainTest,
    apportion,
    check_labels,
    check_sizes,
    checked,
    default_sizes,
    interleaved,
    members,
    random_order,
    stratified_splits,
    without_images,
)
from deepaa.data.whole_groups import divide_groups, groups_of_classes
from deepaa.files import plural
from deepaa.runs import RunError, read_json, short, stored

LEAST_JUDGED = 2_000
"""Of fewer images none are set aside to judge: folds over all of them judge better."""
JUDGE_SHARE, MOST_JUDGED = 0.2, 10_000
"""Share of the images that judges, and the most images that do."""
KEPT = 3
"""Images of every class, or groups with such, that the judge leaves: one for each other split."""
LEAST_GROUPS = 2
"""Groups of each half of the images that judge: of one nobody can tell how groups differ."""
LEAST_IMAGES = 30
"""Fewer images are neither searched nor compared on: everything would be chance."""
FEW_IMAGES, FEW_OF_A_CLASS = 300, 20
"""Results of fewer images, in all or of a class, are weak, and that is said."""
_JUDGE, _FOLDS, _HALVES = 0x4A55, 0x464F, 0x4841
"""Added to seeds: the divisions of one set of images have nothing to do with each other."""

_log = logging.getLogger(__name__)


def judge_part(labels: Tensor, groups: Tensor | None = None, seed: int = 0) -> Tensor:
    """Indices, ascending, of the images that judge policies: a fifth of them, at most 10,000.

    By class and in whole groups. Empty below 2,000 images, where classes are so small that they
    cannot spare that many, and where so few groups would judge that they cannot be halved.
    """
    nothing = torch.empty(0, dtype=torch.int64)
    if len(labels) < LEAST_JUDGED:
        return nothing
    counts: list[int] = labels.bincount(minlength=check_labels(labels)).tolist()
    spare = [max(0, n - KEPT) for n in counts]
    size = max(min(round(JUDGE_SHARE * len(labels)), MOST_JUDGED), sum(n > 0 for n in spare))
    if size > sum(spare):
        return nothing
    taken = apportion(counts, size, KEPT)
    if groups is None:
        found = members(labels, seed + _JUDGE, len(counts))
        chosen = [each[:n] for each, n in zip(found, taken, strict=True)]
        return torch.cat(chosen).sort().values
    left = [n - k for n, k in zip(counts, taken, strict=True)]
    part = divide_groups(labels, groups, (left, taken), (KEPT, 1), seed + _JUDGE)
    judge = (part == 1).nonzero()[:, 0]
    return judge if len(torch.unique(groups[judge])) >= 2 * LEAST_GROUPS else nothing


def folds(
    labels: Tensor,
    groups: Tensor | None = None,
    count: int = 5,
    seed: int = 0,
    *,
    class_names: Sequence[str] = (),
) -> Tensor:
    """The fold (N,) of each image, in 0..count-1: by class, and groups whole; none is empty.

    Without groups, folds differ by one image at most, and so do the images of a class in them. A
    warning names the classes that are all in one fold, with `class_names` or their numbers.
    """
    numbers = torch.arange(len(labels)) if groups is None else torch.unique(groups)
    if not 2 <= count <= len(numbers):
        what = "images" if groups is None else f"groups ({len(labels):,} images)"
        raise ValueError(f"{count} folds: expected 2 to {len(numbers):,}, the number of {what}")
    fold = _dealt(labels, groups, count, seed + _FOLDS, fewest=1)
    names = class_names or [str(c) for c in range(int(labels.max()) + 1)]
    alone = [name for c, name in enumerate(names) if len(torch.unique(fold[labels == c])) == 1]
    if alone:
        _warn(f"{listed(alone)}: all images are in one fold, so that no network learns them for it")
    return fold


def halves(labels: Tensor, groups: Tensor | None = None, seed: int = 0) -> Tensor:
    """Whether each image (N,) is in the half that chooses; by class, and groups whole.

    Raises:
        ValueError: There are so few groups that a half would have less than two.
    """
    if groups is not None and (count := len(torch.unique(groups))) < 2 * LEAST_GROUPS:
        raise ValueError(
            f"groups: the {plural(len(labels), 'image')} that judge policies are in "
            f"{plural(count, 'group')}, and a contest takes at least {2 * LEAST_GROUPS}: "
            f"{LEAST_GROUPS} choose the winner, {LEAST_GROUPS} prove it. Name smaller groups, or "
            "more images"
        )
    return _dealt(labels, groups, 2, seed + _HALVES, fewest=LEAST_GROUPS) == 0


def _dealt(labels: Tensor, groups: Tensor | None, count: int, seed: int, fewest: int) -> Tensor:
    """The part (N,) of each image of `count` equal ones, with so many groups at least."""
    if not len(labels):
        return torch.empty(0, dtype=torch.int64)
    classes = check_labels(labels)
    parts = torch.empty(len(labels), dtype=torch.int64)
    # dealt like cards, class after class
    parts[torch.cat(members(labels, seed, classes))] = torch.arange(len(labels)) % count
    if groups is None:
        return parts
    targets = [labels[parts == k].bincount(minlength=classes).tolist() for k in range(count)]
    return divide_groups(labels, groups, targets, (1,) * count, seed, fewest)


# How many images there are


def check_enough(labels: Tensor, class_names: Sequence[str], place: str) -> None:
    """Raises ValueError for images that are too few for a search or a contest.

    Every class needs one for each split, and so many at least that folds judge most of it.
    """
    counts = labels.bincount(minlength=len(class_names)).tolist()
    few = [f"{name} ({n})" for name, n in zip(class_names, counts, strict=True) if n < KEPT]
    if few:
        raise ValueError(
            f"{shown(place)}: {len(few)} of {len(class_names)} classes have too few images: "
            f"{listed(few)}; every class needs at least {KEPT}. Add images, or leave the class out"
        )
    if len(labels) < LEAST_IMAGES:
        raise ValueError(
            f"{shown(place)}: {len(labels)} images in all, at least {LEAST_IMAGES} are needed: of "
            "fewer every result is chance. Add images, or take a policy of deepaa policies as it is"
        )


def weaknesses(labels: Tensor, class_names: Sequence[str]) -> list[str]:
    """A line for each reason why little can be told from these images."""
    lines = []
    if len(labels) < FEW_IMAGES:
        lines.append(
            f"{len(labels)} images tell only large differences between policies, of about "
            f"{100 * math.sqrt(2 / len(labels)):.0f} points of accuracy; {FEW_IMAGES} or more "
            "tell smaller ones"
        )
    counts = labels.bincount(minlength=len(class_names)).tolist()
    pairs = zip(class_names, counts, strict=True)
    if few := [f"{name} ({n})" for name, n in pairs if n < FEW_OF_A_CLASS]:
        lines.append(
            f"{len(few)} of {len(class_names)} classes have fewer than {FEW_OF_A_CLASS} images, "
            f"which a network hardly learns: {listed(few)}"
        )
    return lines


# Searches


def search_splits(
    data: LabelledImages, sizes: Sizes | None = None, seed: int = 0, *, pretrains: bool = True
) -> Splits:
    """The judge, and what else a search takes of the images it leaves, by class and group.

    The judge is the same for every seed, so that it is new to the policies of all searches.

    Args:
        sizes: Images for pretrain, search and validation, exact where there are no groups; None
            means the `default_sizes` of what the judge leaves.
        pretrains: Whether a network is trained, for the default sizes.
    """
    judge = judge_part(data.labels, data.groups) if data.judge is None else data.judge
    rest, names = others(judge, len(data.labels)), data.class_names
    labels, groups = data.labels[rest], None if data.groups is None else data.groups[rest]
    sizes = sizes or default_sizes(len(rest), len(names), pretrains=pretrains)
    _check_room(sizes, len(rest), len(judge))
    if groups is None:
        found = list(stratified_splits(labels, sizes, seed, class_names=names)[:3])
    else:
        found = _grouped_splits(labels, groups, sizes, seed, names)
    usual = min(round(JUDGE_SHARE * len(data.labels)), MOST_JUDGED)
    if data.judge is None and len(judge) and not usual / 2 <= len(judge) <= 2 * usual:
        _warn(f"{data.name}: large groups make a judge of {len(judge):,} images, not {usual:,}")
    is_judge = torch.zeros_like(data.labels)
    is_judge[judge] = 1
    warn_of_equal_images(
        data,
        parts=is_judge,
        measured="images of the judge",
        others="images outside of it",
        advice=KEEP_TOGETHER,
    )
    if len(judge) and (absent := without_images(names, data.labels[judge])):
        classes = f"no images of {len(absent)} of {len(names)} classes: {listed(absent)}"
        _warn(f"{data.name}: the judge has {classes}; it says nothing about them")
    pretrain, search, validation = (rest[part] for part in found)
    return Splits(pretrain, search, validation, judge)


def others(indices: Tensor, n: int) -> Tensor:
    """The indices in 0..n-1 that are not among these, ascending."""
    left = torch.ones(n, dtype=torch.bool)
    left[indices] = False
    return left.nonzero()[:, 0]


def _check_room(sizes: Sizes, left: int, judged: int) -> None:
    """Refuse sizes that would fit if there were no judge, and say so."""
    if judged and len(sizes) == 3 and left < sum(sizes) <= left + judged:
        raise ValueError(
            f"sizes {tuple(sizes)} are {sum(sizes):,} images, but the judge, which a search never "
            f"sees, has {judged:,} of the {left + judged:,}; {left:,} are left"
        )


def _grouped_splits(
    labels: Tensor, groups: Tensor, sizes: Sizes, seed: int, names: Sequence[str]
) -> list[Tensor]:
    """Pretrain, search and validation of whole groups; each has every class."""
    counts: list[int] = labels.bincount(minlength=len(names)).tolist()
    check_sizes(sizes, counts, names)
    wanted = [k for k, size in enumerate(sizes) if size]
    have = groups_of_classes(labels, groups, len(names))
    few = [f"{name} ({n})" for name, n in zip(names, have, strict=True) if n < len(wanted)]
    if few:
        raise ValueError(
            f"{len(wanted)} disjoint parts need at least {len(wanted)} groups with images of every "
            f"class; too few in: {listed(few)}"
        )
    targets, left = [], counts
    for k, size in enumerate(sizes):
        taken = apportion(left, size, sum(other > k for other in wanted))
        targets.append(taken)
        left = [n - m for n, m in zip(left, taken, strict=True)]
    part = divide_groups(labels, groups, (*targets, left), (1, 1, 1, 0), seed)
    for k in wanted:
        if absent := without_images(names, labels[part == k]):
            raise ValueError(
                f"groups: {Splits._fields[k]} gets no images of {listed(absent)}, whose groups "
                "hold several classes; smaller groups may help"
            )
    found = members(labels, seed, len(names))
    return [interleaved([each[part[each] == k] for each in found]) for k in range(3)]


def read_splits(path: Path, images: int) -> Splits | None:
    """The splits of so many images in the file of a run; None where there is no such file.

    Runs of the first versions have no judge.
    """
    if not path.exists():
        return None
    content = {"judge": [], **read_json(path)}
    try:
        if sorted(content) != sorted(Splits._fields):
            names = ", ".join(Splits._fields)
            raise RunError(f"{path}: damaged: expected {names}, got {short(sorted(content))}")
        lists = [stored(content, name, tuple[int, ...], path) for name in Splits._fields]
    except RunError as error:
        raise RunError(f"{error}; without this file the splits are drawn again") from error
    kept = Splits(*(torch.tensor(each, dtype=torch.int64) for each in lists))
    every = torch.cat(kept)
    wrong = not len(every) or int(every.min()) < 0 or int(every.max()) >= images
    if wrong or int(every.bincount().max()) > 1:
        raise RunError(f"{path}: damaged: it names images that are not there, or one twice")
    return kept


class Chosen(NamedTuple):
    """The images of a large folder that a search reads."""

    places: list[int]
    """Their indices, ascending."""
    judge: list[int]
    """Those of them that are the judge."""
    sizes: Sizes
    """Of the splits for which the others are enough."""


class SearchSubset(NamedTuple):
    """Says which images of a large folder a search reads: enough for its splits, and no others."""

    sizes: Sizes | None = None
    """None means `default_sizes`."""
    seed: int = 0
    pretrains: bool = True
    judged: bool = True
    """Whether some are set aside as the judge; the first versions did not."""

    def choose(
        self, labels: Sequence[int], class_names: Sequence[str] = (), groups: Tensor | None = None
    ) -> Chosen | None:
        """The judge of all images, enough others, and some of each class to spare.

        The spare ones stand in for files that turn out to be bad. None if that is all of them.
        """
        every = torch.as_tensor(labels)
        classes = len(class_names) or int(every.max()) + 1
        judge = judge_part(every, groups) if self.judged else torch.empty(0, dtype=torch.int64)
        rest = others(judge, len(every))
        sizes = self.sizes or default_sizes(len(rest), classes, pretrains=self.pretrains)
        _check_room(sizes, len(rest), len(judge))
        if sum(sizes) == len(rest):
            return None
        names = class_names or [str(c) for c in range(classes)]
        if groups is None:
            places = self._enough(every[rest], sizes, names)
        else:
            places = self._enough_groups(every[rest], groups[rest], sizes, names)
        if len(places) == len(rest):
            return None
        found = torch.cat([judge, rest[places]]).sort().values
        return Chosen(found.tolist(), judge.tolist(), sizes)

    def _enough(self, labels: Tensor, sizes: Sizes, names: Sequence[str]) -> Tensor:
        parts = stratified_splits(labels, sizes, self.seed, class_names=names)
        wanted = labels[torch.cat(parts)].bincount(minlength=len(names))
        wanted += 2 + wanted // 50
        found = members(labels, self.seed, len(wanted))
        return torch.cat([each[:n] for each, n in zip(found, wanted.tolist(), strict=True)])

    def _enough_groups(
        self, labels: Tensor, groups: Tensor, sizes: Sizes, names: Sequence[str]
    ) -> Tensor:
        """Whole groups: those of the splits, and as many more as it takes."""
        parts = _grouped_splits(labels, groups, sizes, self.seed, names)
        chosen = torch.zeros(len(labels), dtype=torch.bool)
        chosen[torch.cat(parts)] = True
        wanted = min(sum(sizes) + sum(sizes) // 50 + 2 * len(names), len(labels))
        left, counts = torch.unique(groups[~chosen], return_counts=True)
        order = random_order(left, self.seed)
        before = counts[order].cumsum(0) - counts[order]
        more = left[order[before < wanted - int(chosen.sum())]]
        chosen |= torch.isin(groups, more)
        return chosen.nonzero()[:, 0]


# Held-out images


def held_out(data: LabelledImages, share: float) -> TrainTest:
    """A stratified share of the images as test images, in whole groups; the rest trains."""
    n, classes = len(data.labels), len(data.class_names)
    count = max(classes, round(share * n))
    if n - count < classes:
        raise ValueError(
            f"{data.name}: a held-out share of {share:g} leaves {max(0, n - count)} of {n} images, "
            f"too few to train {classes} classes"
        )
    how = f"{share:g} of the training images, held out"
    sizes = n - count, 0, count  # by seed 0: the same images whatever the seed of a training
    train, _, test, _ = stratified_splits(data.labels, sizes, class_names=data.class_names)
    parts = [train.sort().values, test.sort().values]
    if data.groups is not None:
        targets = [data.labels[part].bincount(minlength=classes).tolist() for part in parts]
        numbers = divide_groups(data.labels, data.groups, targets, (1, 1), 0)
        parts = [(numbers == k).nonzero()[:, 0] for k in range(2)]
        if not len(parts[1]):
            raise ValueError(f"{data.name}: no class has a group to spare, so none is held out")
        how += " in whole groups"
    both = TrainTest(data.part(parts[0]), data.part(parts[1]), how)
    warn_of_equal_images(*both[:2], measured="held-out images", advice=KEEP_TOGETHER)
    if (tested := len(both.test.labels)) < LEAST_IMAGES:
        _warn(f"{data.name}: {tested} images are held out; an accuracy on so few says little")
    return checked(both)


def _warn(line: str) -> None:
    if distributed.is_main():
        _log.warning("%s", line)
