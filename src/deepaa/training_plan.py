"""A training as it was asked for, with all that was left open: recipe, images, policy, settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from deepaa import distributed
from deepaa.agreement import by_main
from deepaa.compared import compared_policy
from deepaa.evaluation import trains_on_one
from deepaa.image_files import reading_of
from deepaa.own_operations import import_operations
from deepaa.pipeline import SMALL_SIDE, proxy_name
from deepaa.policy import Policy
from deepaa.policy_file import PBA, SIMPLE, load_policy, policy_names
from deepaa.recipes import DATA, Recipe, find_recipe
from deepaa.runs import read_config
from deepaa.search_config import precision_on
from deepaa.sources import EMBEDDED, SHORT_NAMES, file_choices
from deepaa.streaming import StreamedImages, crop_for
from deepaa.test_sets import TrainTest, train_and_test
from deepaa.train_config import TrainConfig, setting
from deepaa.training_data import FromDisk, InMemory, Material, new_model
from deepaa.training_folder import KIND, PATHS, identity, places_of, policy_hash, recognised

EPOCHS = 200
STREAMED_SIZE = 224
WORTH_COMPILING = 2_000_000
"""Images through the network from which on compiling it pays."""
OPTIONS = {"warmup_epochs": "--warmup"}
"""Options that are not called like their setting."""


def is_policy_name(text: str) -> bool:
    """Whether a text means a policy with a name, whatever files lie around."""
    return text.partition(":")[0] in (SIMPLE, PBA, *policy_names())


@dataclass(frozen=True)
class Asked:
    """What is trained, as said on the command line."""

    source: Mapping[str, Any]
    """Policy and images, as config.json keeps them."""
    recipe: str | None = None
    model: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainConfig` with an option of their own."""
    changes: tuple[str, ...] = ()
    """NAME=VALUE each, for the others."""
    known: TrainConfig | None = None
    """All settings, of a run that goes on."""
    folder: Path | None = None
    """Of that run."""


def stored(folder: Path, places: Mapping[str, str | None] | None = None) -> Asked:
    """What the run in `folder` trains.

    Args:
        places: Where its images lie now, by the names of `PATHS`; None for the others.
    """
    if not (folder / "config.json").exists():
        reason = "holds no run" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
    config = read_config(folder)
    if config.get("kind") != KIND:
        raise ValueError(f"{folder}: this run is not a training; try deepaa search --resume")
    try:
        known = TrainConfig(**config["train"])
        source, model = dict(config["source"]), str(config["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: config.json is not one of this version: {error}") from error
    now = {name: place for name, place in (places or {}).items() if place is not None}
    return Asked({**source, **places_of(folder), **now}, None, model, known=known, folder=folder)


@dataclass
class Plan:
    """Everything that is trained: images, policy, network, settings."""

    source: dict[str, Any]
    material: Material
    policy: Policy
    model_name: str
    config: TrainConfig
    device: torch.device
    recipe: Recipe | None

    @classmethod
    def of(
        cls,
        asked: Asked,
        device: torch.device,
        *,
        download: bool = False,
        workers: int | None = None,
        like: Plan | None = None,
        scan: bool = True,
        scans: Mapping[str, Any] | None = None,
    ) -> Plan:
        """Read the images and the policy, and settle what was left open.

        Args:
            like: Another plan; images that both have are not read and kept twice.
            scan: Whether files that are read in every epoch are all decoded first.
            scans: What that found before, by `Plan.scans`; it is not done again.
        """
        source = dict(asked.source)
        recipe = None if asked.recipe is None else find_recipe(asked.recipe, source["data"])
        source = _completed(source, recipe)
        start = _start(recipe, asked)
        side = source["size"] or SMALL_SIDE  # until the images are there
        space = space_of([3, side, side])
        policy = _policy(source, start.epochs, space, asked.folder)  # refuses a wrong name at once
        same = like is not None and _same_images(like.source, source)
        if like is not None and same and not like.streams:
            material = like.material
        else:
            known = like.scans() if like is not None and same else scans
            decoding = {"workers": workers, "scan": scan, "known": known or {}}
            material = _material(source, device, policy, download, decoding)
        if isinstance(material, FromDisk) and source["levels"] is None:
            source["levels"] = material.levels()  # for the record, and for seeds that join later
        facts = material.facts()
        if space_of(facts["shape"]) != space:
            policy = _policy(source, start.epochs, space_of(facts["shape"]), asked.folder)
        name = asked.model or (recipe.model if recipe else None)
        if name is None:
            name = proxy_name(material.sample().images, device)
        images = start.epochs * start.copies * facts["train_images"]
        config = asked.known or _settled(start, asked, device, images)
        return cls(source, material, policy, name, config, device, recipe)

    @property
    def streams(self) -> bool:
        """Whether the images are read anew in every epoch."""
        return isinstance(self.material, FromDisk)

    def model(self, seed: int) -> nn.Module:
        """A fresh network."""
        return new_model(self.model_name, self.material, seed, self.source["levels"])

    def rehearse(self) -> None:
        """Set up a training and do nothing with it: what is wrong is said before files are made."""
        training = self.material.training(self.model(0), self.policy, self.config, self.device)
        fewest = min(training.batches.sizes) * self.config.copies // distributed.world_size()
        if fewest > 1:
            return
        image = self.material.sample().images[:1].to(self.device)
        if not trains_on_one(training.model, image):
            raise ValueError(
                f"--batch {self.config.batch}: of {self.material.facts()['train_images']:,} images "
                f"a step of one is left, and the batch norm of {self.model_name} cannot train on "
                "one image of this size; give another --batch"
            )

    def identity(self, folder: Path | None = None) -> dict[str, Any]:
        """What the run folder is compared by, in the words of the run that is there."""
        found = identity(self.policy, self.model_name, self.config, self.material, self.source)
        return found if folder is None else recognised(found, folder)

    def scans(self) -> dict[str, Any]:
        """What was found when all files were decoded; nothing where they are in memory."""
        return self.material.scanned() if isinstance(self.material, FromDisk) else {}

    def places(self) -> dict[str, Any]:
        """Where the images lie."""
        return {name: self.source[name] for name in PATHS}

    def facts(self) -> dict[str, Any]:
        """What results.json says beside the seeds."""
        found = self.identity()
        policy = {"name": self.source["policy"]}
        policy |= {name: self.source[name] for name in ("defaults", "first_layers")}
        policy |= {"layers": self.policy.depth, "sha256": policy_hash(self.policy)}
        return {"policy": policy, **{n: found[n] for n in ("model", "train", "images")}}


def space_of(shape: list[int]) -> Literal["cifar", "imagenet"]:
    """Whose ranges and defaults images of this shape (C, H, W) get."""
    return "imagenet" if max(shape[1:]) > SMALL_SIDE else "cifar"


def _completed(source: dict[str, Any], recipe: Recipe | None) -> dict[str, Any]:
    """The source with what the recipe says about the images."""
    if recipe is not None:
        source["levels"] = DATA[recipe.data].levels
    source.setdefault("levels", None)
    if recipe is not None and source["data"] is None:
        if recipe.stream:
            raise ValueError(f"--recipe {recipe.name} needs --data, a folder with train and val")
        source["data"] = recipe.data
    if source["stream"] is None:
        source["stream"] = recipe is not None and recipe.stream
    if source["stream"] and source["size"] is None:
        source["size"] = recipe.size if recipe is not None else STREAMED_SIZE
    if source["stream"]:
        if source["test"] is not None or source["holdout"] is not None:
            raise ValueError(
                "--stream tests on the folder's val or test part: no --test, --holdout"
            )
        if source["data"] is None or not Path(source["data"]).is_dir():
            raise ValueError(f"--stream reads a folder with train and val, got {source['data']!r}")
    source["root"] = _settled_root(source)
    return source


# Settings


def _start(recipe: Recipe | None, asked: Asked) -> TrainConfig:
    """The settings that were asked for; some may still depend on the device."""
    if asked.known is not None:
        return asked.known
    base = TrainConfig(epochs=EPOCHS) if recipe is None else recipe.train
    pairs = [setting(change) for change in asked.changes]
    changes = dict(pairs)
    if len(changes) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)} is given twice with --set")
    if twice := sorted(changes.keys() & asked.given.keys()):
        option = OPTIONS.get(twice[0], f"--{twice[0].replace('_', '-')}")
        raise ValueError(f"{twice[0]} is given twice: with {option} and with --set")
    changes |= asked.given
    # a schedule and its milestones only make sense together
    if changes.get("schedule") == "cosine":
        changes.setdefault("milestones", ())
    elif changes.get("milestones"):
        changes.setdefault("schedule", "step")
    _check_length(recipe, base, changes)
    return dataclasses.replace(base, **changes)


def _check_length(recipe: Recipe | None, base: TrainConfig, changes: Mapping[str, Any]) -> None:
    """Refuse milestones that never come, and a warm-up of the recipe that leaves no time."""
    epochs = changes.get("epochs", base.epochs)
    if recipe is not None and "warmup_epochs" not in changes and epochs <= base.warmup_epochs:
        raise ValueError(
            f"the recipe's warm-up of {base.warmup_epochs:g} epochs leaves nothing of {epochs}; "
            "add --warmup"
        )
    milestones = changes.get("milestones", base.milestones)
    if late := [f"{m:g}" for m in milestones if m >= epochs]:
        whose = "milestones" if "milestones" in changes else "the recipe's milestones"
        raise ValueError(
            f"{whose} {', '.join(late)} never come in {epochs} epochs; "
            "add --set milestones=[EPOCH,...] or --set schedule=cosine"
        )


def _settled(config: TrainConfig, asked: Asked, device: torch.device, images: int) -> TrainConfig:
    """The settings with the choices that a device makes; a recipe made its own for CUDA."""
    cuda = device.type == "cuda"
    named = {change.partition("=")[0] for change in asked.changes} | asked.given.keys()
    choices: dict[str, Any] = {"precision": precision_on(device)}
    if not cuda or asked.recipe is None:
        choices |= {"channels_last": cuda, "compile": cuda and images >= WORTH_COMPILING}
    return dataclasses.replace(
        config, **{name: value for name, value in choices.items() if name not in named}
    )


# The policy


def _policy(
    source: Mapping[str, Any],
    epochs: int,
    space: Literal["cifar", "imagenet"],
    folder: Path | None,
) -> Policy:
    """The policy; a run that goes on has its own copy, whatever became of the file."""
    operations = import_operations(source.get("operations", ()))
    if folder is not None and (folder / "policy.json").exists():
        return load_policy(folder / "policy.json", operations)
    name, first = source["policy"], source["first_layers"]
    how: dict[str, Any] = {"space": space, "epochs": epochs, "operations": operations}
    if first is not None:
        depth = compared_policy(name, defaults=False, **how).most_layers
        if first > depth:
            layers = "1 layer" if depth == 1 else f"{depth} layers"
            raise ValueError(f"--first-layers {first}: {name} has {layers}")
    return compared_policy(name, defaults=source["defaults"], first_layers=first, **how)


# The images


def _material(
    source: Mapping[str, Any],
    device: torch.device,
    policy: Policy,
    download: bool,
    decoding: Mapping[str, Any],
) -> Material:
    if not source["stream"]:
        return InMemory(_loaded(source, download), workers=decoding["workers"] or 0)
    known, size = decoding["known"], source["size"]
    reading: dict[str, Any] = {**decoding, "device": device}
    reading["on_bad_image"] = source["on_bad_image"]
    reading["outside_links"] = source.get("outside_links", False)
    reading["reading"] = reading_of(source)
    reading["known"] = known.get("train")
    train = StreamedImages(source["data"], size, train=True, crop=crop_for(policy), **reading)
    reading["known"] = known.get("test")
    test = StreamedImages(source["data"], size, train=False, **reading)
    return FromDisk(train, test, Path(source["data"]).resolve().name)


def _loaded(source: Mapping[str, Any], download: bool) -> TrainTest:
    """Images in memory; one process fetches them, the others find them."""

    def load() -> TrainTest:
        names = ("test", "holdout", "size", "root")
        reading = {name: source[name] for name in names} | file_choices(source)
        try:
            return train_and_test(source["data"], download=download, **reading)
        except MemoryError as error:
            raise MemoryError(f"{error}; or read them from disk with --stream") from error

    fetched = by_main(load) if download else None
    return load() if fetched is None else fetched


def _same_images(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = (*PATHS, "holdout", "size", "stream", "on_bad_image", "outside_links", "read")
    return all(one.get(name) == other.get(name) for name in names)


def _settled_root(source: Mapping[str, Any]) -> str | None:
    """Where data sets with a name lie, from any folder; None where there is none of them."""

    def has_name(place: str | None) -> bool:
        if place is None or place == EMBEDDED:
            return False
        return place in SHORT_NAMES or not Path(place).exists()

    if not any(has_name(source[name]) for name in ("data", "test")):
        return None
    return str(Path(source["root"] or "data").resolve())
