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
from deepaa.compared import compared_policy
from deepaa.pipeline import SMALL_SIDE, proxy_name
from deepaa.policy import Policy
from deepaa.policy_file import load_policy
from deepaa.recipes import DATA, Recipe, find_recipe
from deepaa.runs import read_config
from deepaa.streaming import StreamedImages, crop_for
from deepaa.test_sets import train_and_test
from deepaa.train_config import TrainConfig, with_setting
from deepaa.training_data import FromDisk, InMemory, Material, new_model
from deepaa.training_run import KIND, identity, policy_hash

EPOCHS = 200
STREAMED_SIZE = 224
WORTH_COMPILING = 2_000_000
"""Images through the network from which on compiling it pays."""


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


def stored(folder: Path) -> Asked:
    """What the run in `folder` trains."""
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
    return Asked(source, None, model, known=known, folder=folder)


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
    def of(cls, asked: Asked, device: torch.device, *, download: bool, workers: int | None) -> Plan:
        """Read the images and the policy, and settle what was left open."""
        source = dict(asked.source)
        recipe = None if asked.recipe is None else find_recipe(asked.recipe, source["data"])
        source = _completed(source, recipe)
        start = _start(recipe, asked)
        _policy(source, start.epochs, "cifar", asked.folder)  # refuses a wrong name at once
        material = _material(source, device, start, asked.folder, download, workers)
        shape = material.facts()["shape"]
        policy = _policy(source, start.epochs, space_of(shape), asked.folder)
        name = asked.model or (recipe.model if recipe else None)
        if name is None:
            name = proxy_name(material.sample().images, device)
        images = start.epochs * start.copies * material.facts()["train_images"]
        config = asked.known or _settled(start, asked, device, images)
        return cls(source, material, policy, name, config, device, recipe)

    @property
    def streams(self) -> bool:
        """Whether the images are read anew in every epoch."""
        return isinstance(self.material, FromDisk)

    def model(self, seed: int) -> nn.Module:
        """A fresh network."""
        return new_model(self.model_name, self.material, seed, self.source["levels"])

    def identity(self) -> dict[str, Any]:
        """What the run folder is compared by."""
        return identity(self.policy, self.model_name, self.config, self.material, self.source)

    def facts(self) -> dict[str, Any]:
        """What results.json says beside the seeds."""
        found = self.identity()
        names = ("policy", "defaults", "first_layers")
        policy = {"name": self.source["policy"], **{n: self.source[n] for n in names[1:]}}
        policy |= {"layers": self.policy.depth, "sha256": policy_hash(self.policy)}
        return {"policy": policy, **{n: found[n] for n in ("model", "train", "images")}}


def space_of(shape: list[int]) -> Literal["cifar", "imagenet"]:
    """Whose ranges and defaults images of this shape (C, H, W) get."""
    return "imagenet" if max(shape[1:]) > SMALL_SIDE else "cifar"


def _completed(source: dict[str, Any], recipe: Recipe | None) -> dict[str, Any]:
    """The source with what the recipe says about the images."""
    is_large = recipe is not None and recipe.space == "imagenet"
    if recipe is not None:
        source["levels"] = DATA[recipe.data].levels
    source.setdefault("levels", None)
    if recipe is not None and source["data"] is None:
        if is_large:
            raise ValueError(f"--recipe {recipe.name} needs --data, a folder with train and val")
        source["data"] = recipe.data
    if source["stream"] is None:
        source["stream"] = is_large
    if source["stream"] and source["size"] is None:
        source["size"] = recipe.size if recipe is not None else STREAMED_SIZE
    if source["stream"]:
        if source["test"] is not None or source["holdout"] is not None:
            raise ValueError(
                "--stream tests on the folder's val or test part: no --test, --holdout"
            )
        if source["data"] is None or not Path(source["data"]).is_dir():
            raise ValueError(f"--stream reads a folder with train and val, got {source['data']!r}")
    return source


def _start(recipe: Recipe | None, asked: Asked) -> TrainConfig:
    """The settings that were asked for; some may still depend on the device."""
    if asked.known is not None:
        return asked.known
    given = dict(asked.given)
    if recipe is None and "epochs" not in given:
        given["epochs"] = EPOCHS
    changes = list(asked.changes)
    base = TrainConfig() if recipe is None else recipe.train
    # a schedule and its milestones only make sense together
    pairs = [change for change in changes if change.startswith(("schedule=", "milestones="))]
    for change in changes:
        if change not in pairs:
            base = with_setting(base, change)
    if pairs:
        base = _rescheduled(base, pairs)
    return dataclasses.replace(base, **given)


def _rescheduled(base: TrainConfig, pairs: list[str]) -> TrainConfig:
    plain = dataclasses.replace(base, schedule="step", milestones=base.milestones or (1.0,))
    for change in sorted(pairs):  # milestones come first
        name, _, value = change.partition("=")
        if name == "schedule" and value == "cosine":
            return dataclasses.replace(plain, schedule="cosine", milestones=())
        plain = with_setting(plain, change)
    if base.schedule != "step" and not any(pair.startswith("milestones=") for pair in pairs):
        raise ValueError("--set schedule=step needs --set milestones=[EPOCH,...]")
    return plain


def _settled(config: TrainConfig, asked: Asked, device: torch.device, images: int) -> TrainConfig:
    """The settings with the choices that a device makes."""
    cuda = device.type == "cuda"
    named = {change.partition("=")[0] for change in asked.changes} | asked.given.keys()
    choices: dict[str, Any] = {
        "precision": "bfloat16" if cuda else "float32",
        "channels_last": cuda,
        "compile": cuda and images >= WORTH_COMPILING,
    }
    return dataclasses.replace(
        config, **{name: value for name, value in choices.items() if name not in named}
    )


def _policy(
    source: Mapping[str, Any],
    epochs: int,
    space: Literal["cifar", "imagenet"],
    folder: Path | None,
) -> Policy:
    """The policy; a run that goes on has its own copy, whatever became of the file."""
    if folder is not None and (folder / "policy.json").exists():
        return load_policy(folder / "policy.json")
    return compared_policy(
        source["policy"],
        defaults=source["defaults"],
        space=space,
        epochs=epochs,
        first_layers=source["first_layers"],
    )


def _material(
    source: Mapping[str, Any],
    device: torch.device,
    config: TrainConfig,
    folder: Path | None,
    download: bool,
    workers: int | None,
) -> Material:
    if not source["stream"]:
        return InMemory(_loaded(source, download), workers=workers or 0)
    size = source["size"]
    policy = _policy(source, config.epochs, space_of([3, size, size]), folder)
    reading: dict[str, Any] = {"workers": workers, "device": device}
    reading["on_bad_image"] = source["on_bad_image"]
    train = StreamedImages(source["data"], size, train=True, crop=crop_for(policy), **reading)
    test = StreamedImages(source["data"], size, train=False, **reading)
    return FromDisk(train, test, Path(source["data"]).resolve().name)


def _loaded(source: Mapping[str, Any], download: bool) -> Any:
    """Images in memory; one process fetches them, the others find them."""
    if download and not distributed.is_main():
        distributed.barrier()
    names = ("test", "holdout", "size", "root", "on_bad_image")
    try:
        found = train_and_test(
            source["data"], download=download, **{name: source[name] for name in names}
        )
    except MemoryError as error:
        raise MemoryError(f"{error}; or read them from disk with --stream") from error
    if download and distributed.is_main():
        distributed.barrier()
    return found
