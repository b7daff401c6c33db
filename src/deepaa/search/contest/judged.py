"""The images of a contest: those that networks train on, and those that judge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.data import (
    KEEP_TOGETHER,
    LabelledImages,
    class_order,
    folds,
    halves,
    judge_part,
    warn_of_equal_images,
)

FOLDS = 5
"""Parts of a cross-validation, where images are too few to set some aside; fewer of few groups."""


class Part(NamedTuple):
    """One division of the images."""

    train: Tensor
    """Indices of the images that a network trains on."""
    judge: Tensor
    """Indices of the images that judge it."""
    places: Tensor
    """Where those stand among all images that judge."""


@dataclass(frozen=True, eq=False)
class JudgedImages:
    """Images with one judge part, or with folds in which every image judges once."""

    data: LabelledImages
    parts: tuple[Part, ...]
    chooses: Tensor
    """(J,) whether an image that judges helps to choose the winner; the others prove."""
    clusters: Tensor | None
    """(J,) the group of each image that judges."""

    @classmethod
    def of(
        cls, data: LabelledImages, judge: Tensor | None = None, *, searched: bool = False
    ) -> JudgedImages:
        """The images with the part that was set aside, `judge`; few images are cut into folds.

        Args:
            searched: Whether a search has told of equal images, in two classes and beside those of
                the judge.
        """
        judge = data.judge if judge is None else judge
        judge = judge_part(data.labels, data.groups) if judge is None else judge
        everything, parts = torch.arange(len(data.labels)), list[Part]()
        is_part = len(judge) > 0
        judge = judge if is_part else everything
        groups = None if data.groups is None else data.groups[judge]
        chooses = halves(data.labels[judge], groups)
        if is_part:
            is_train = torch.ones(len(data.labels), dtype=torch.bool)
            is_train[judge] = False
            parts.append(Part(everything[is_train], judge, torch.arange(len(judge))))
            if not searched:
                warn_of_equal_images(
                    data,
                    parts=(~is_train).long(),
                    measured="images of the judge",
                    others="images that networks train on",
                    advice=KEEP_TOGETHER,
                )
        else:
            count = FOLDS if groups is None else min(FOLDS, len(torch.unique(groups)))
            of = folds(data.labels, data.groups, count, class_names=data.class_names)
            warn_of_equal_images(
                data,
                parts=of,
                counted=torch.ones(len(of), dtype=torch.bool),
                measured="images of a fold",
                others="images of another fold",
                advice="--groups keeps such images in one fold",
                classes=not searched,
            )
            for k in range(count):
                parts.append(Part(everything[of != k], everything[of == k], everything[of == k]))
        return cls(data, tuple(parts), chooses, groups)

    @property
    def train_images(self) -> int:
        """Images that the smallest training set has."""
        return min(len(part.train) for part in self.parts)

    def in_class_order(self, part: int) -> Tensor:
        """The images to train on in a part, so that the first ones have about all classes' shares.

        A training of fewer images has the first of them, so larger ones have these, too.
        """
        train = self.parts[part].train
        return train[class_order(self.data.labels[train])]

    def facts(self) -> dict[str, object]:
        """What contest.json says about the images."""
        groups = None if self.clusters is None else len(torch.unique(self.clusters))
        judge = {
            "how": "part" if len(self.parts) == 1 else "folds",
            "images": len(self.chooses),
            "folds": None if len(self.parts) == 1 else len(self.parts),
            "chooses": int(self.chooses.sum()),
            "groups": groups,
        }
        return {"name": self.data.name, "images": len(self.data.labels), "judge": judge}
