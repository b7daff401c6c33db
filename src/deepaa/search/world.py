"""What a search gives to every method: its images but the judge, a network, what may be used."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from deepaa import distributed
from deepaa.data import LabelledImages, Splits
from deepaa.models import load_model
from deepaa.ops import Space
from deepaa.policy import Policy, default_policy
from deepaa.search.fresh_network import fresh_copy
from deepaa.search.methods import Part, World
from deepaa.train import space_of

if TYPE_CHECKING:
    from deepaa.search.policy_search import PolicySearch

Parts = tuple[Part, Part, Part]
DEFAULT_AUGMENTATION = ("crop", "resized_crop", "flip", "cutout")


def parts_of(data: LabelledImages, splits: Splits) -> Parts:
    """The images for pre-training, search and validation."""

    def part(name: str) -> Part:
        places = getattr(splits, name)
        groups = None if data.groups is None else data.groups[places]
        return Part(data.images[places], data.labels[places], groups)

    return part("pretrain"), part("search"), part("validation")


def world_of(search: PolicySearch, parts: Parts) -> World:
    """The world of a search, as its protection of classes is now."""
    names = {operation.name for operation in search.space.operations}
    excludes = search.protection.excludes
    defaults = default_policy(space_of(search.data.images.shape[1:]))
    pretrain, augmented, validation = parts
    return World(
        pretrain=pretrain,
        search=augmented,
        validation=validation,
        classes=len(search.data.class_names),
        space=search.space,
        excludes=excludes,
        defaults=defaults.without(lambda row: row.operation.name not in names or excludes(row)),
        make_model=partial(_fresh_model, search),
        train=search.train_config(pretrain.count),
        device=search.device,
        seed=search.config.seed,
        # of several processes each has other work, so they meet after each piece alone
        pause=search.check_stop if distributed.world_size() == 1 else lambda: None,
    )


def _fresh_model(search: PolicySearch, seed: int) -> nn.Module:
    if search.given is not None:
        return fresh_copy(search.given, seed).to(search.device)
    images, classes = search.data.images, len(search.data.class_names)
    name, levels = search.network_name, search.levels
    model = load_model(name, images, classes, seed, search.weights, levels, new_head=True)
    return model.to(search.device)


def default_augmentation(space: Space, names: tuple[str, ...] = DEFAULT_AUGMENTATION) -> Policy:
    """The policy of crop, flip and cutout, without those that the space leaves out."""
    have = {op.name: op for op in space.operations}
    wanted = [have[name] for name in names if name in have]
    return Policy.always(*wanted) if wanted else Policy.identity(space)
