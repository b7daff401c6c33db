"""An experiment: what is trained on which images, once nothing is left open but the seeds."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from deepaa import distributed
from deepaa.data import StreamedImages, TrainTest, absolute_root
from deepaa.distributed import run_on_main
from deepaa.models import SMALL_SIDE, default_model
from deepaa.ops import import_operations
from deepaa.policy import Policy, compared_policy, dumps, load_policy
from deepaa.runs import CONFIG, POLICY, parse_changes, read_config
from deepaa.train.batches import ImageBatches
from deepaa.train.config import TrainConfig, precision_on
from deepaa.train.evaluation import trains_on_one
from deepaa.train.images import NAMES, ExperimentImages, ImagesInMemory, ImagesOnDisk, new_model
from deepaa.train.loop import Training
from deepaa.train.recipes import Recipe, find_recipe
from deepaa.train.request import KIND, TrainRequest, read_scan_record, settings_json
from deepaa.train.stream_policy import crop_for

EPOCHS = 200
STREAMED_SIZE = 224
WORTH_COMPILING = 2_000_000
"""Images through the network from which on compiling it pays."""
FEW = 4
"""Images that are enough for batch norm, and few enough for any network."""
LONG_ENOUGH = 0.5
"""Seconds of a step that say how fast the next ones are."""


@dataclass(frozen=True)
class Experiment:
    """Images, policy, network and settings: all of a training but its seed."""

    images: ExperimentImages
    policy: Policy
    model_name: str
    make_model: Callable[[int], nn.Module]
    """A fresh network for a seed."""
    config: TrainConfig
    """The settings; each training has its own seed in place of theirs."""
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    request: TrainRequest | None = None
    """What the user said, completed; None for an experiment that is made in Python."""
    recipe: Recipe | None = None

    def training(self, seed: int) -> Training:
        """The training of one seed, before its first epoch."""
        config = replace(self.config, seed=seed)
        batches = self.images.batches(self.policy, config, self.device)
        return Training(self.make_model(seed), batches, config)

    def check(self) -> None:
        """Refuse what would fail in the first epoch, before a run folder is made."""
        training = self.training(0)
        fewest = min(training.batches.sizes) * self.config.copies // distributed.world_size()
        if fewest > 1:
            return
        image = self.images.sample().images[:1].to(self.device)
        if not trains_on_one(training.model, image):
            raise ValueError(
                f"--batch {self.config.batch}: of {self.images.facts()['train_images']:,} images "
                f"a step of one is left, and the batch norm of {self.model_name} cannot train on "
                "one image of this size; give another --batch"
            )

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same but for their seeds, as config.json keeps it."""
        images = {k: v for k, v in self.images.facts().items() if k not in NAMES}
        return {
            "kind": KIND,
            "policy_sha256": policy_hash(self.policy),
            "model": self.model_name,
            "train": settings_json(self.config),
            "images": images,
            "request": None if self.request is None else self.request.to_json(),
        }

    def identity_in(self, folder: Path) -> dict[str, Any]:
        """`identity` with the places of the run in `folder`, if there is one.

        Checksums tell images and policies apart, so both may have moved since the run began.
        """
        found = self.identity()
        if found["request"] is not None and (folder / CONFIG).exists():
            known = read_config(folder)
            if known.get("kind") == KIND and known.get("request"):
                found["request"]["places"] = known["request"]["places"]
        return found

    def facts(self) -> dict[str, Any]:
        """What results.json says beside the seeds."""
        policy: dict[str, Any] = {"layers": self.policy.depth, "sha256": policy_hash(self.policy)}
        if self.request is not None:
            spec = self.request.policy
            policy |= {"name": spec.name, "defaults": spec.defaults}
            policy |= {"first_layers": spec.first_layers}
        train, images = settings_json(self.config), self.images.facts()
        return {"policy": policy, "model": self.model_name, "train": train, "images": images}

    def scan_record(self) -> dict[str, Any]:
        """What a scan of all image files found; empty for images in memory."""
        return self.images.scan_record() if isinstance(self.images, ImagesOnDisk) else {}

    def measured_rate(self) -> float | None:
        """Images a second of a short training now, not compiled: a long one on CUDA is faster.

        On a CPU a batch of a large network may take minutes, and more memory than there is: a few
        images are tried first, and more of them while they take no time. None for images on disk.
        """
        if not isinstance(self.images, ImagesInMemory):
            return None
        train, model = self.images.data.train, self.make_model(0)
        short = replace(self.config, epochs=2, warmup_epochs=0.0, compile=False, lr=0.0)
        steps, whole = 20, short.batch
        if self.device.type != "cuda":
            steps, whole = 1, min(short.batch, len(train.labels))
            short = replace(short, batch=min(FEW, whole), copies=1)
        while True:
            part = slice(steps * short.batch)
            images, labels = train.images[part], train.labels[part]
            batches = ImageBatches(images, labels, self.policy, short, self.device)
            _, record = Training(model, batches, short)  # the first epoch starts things up
            if short.batch >= whole or record.seconds > LONG_ENOUGH:
                return record.images / record.seconds
            short = replace(short, batch=min(whole, 4 * short.batch))


def build_experiment(
    request: TrainRequest,
    device: torch.device,
    *,
    download: bool = False,
    workers: int | None = None,
    scan: bool = True,
    like: Experiment | None = None,
) -> Experiment:
    """Read the images and the policy of a request, and decide what it leaves open.

    Args:
        download: Fetch a data set that is not there.
        workers: Processes that augment, or decode, see `ImageBatches` and `StreamedImages`.
        scan: Whether files that are decoded in every epoch are all decoded once before.
        like: Another experiment; images that both have are not read and kept twice.
    """
    recipe = None if request.recipe is None else find_recipe(request.recipe, request.data.data)
    request = _completed(request, recipe)
    wanted = requested_settings(request, recipe)
    side = request.data.size or SMALL_SIDE  # until the images are there
    space = space_of([3, side, side])
    policy = load_requested_policy(request, wanted.epochs, space)  # refuses a wrong name at once
    images = _images(request, device, policy, download, workers, scan, like)
    if isinstance(images, ImagesOnDisk) and request.normalisation is None:
        # for the record, and for seeds that join later
        request = replace(request, normalisation=images.normalisation())
    facts = images.facts()
    if space_of(facts["shape"]) != space:
        policy = load_requested_policy(request, wanted.epochs, space_of(facts["shape"]))
    model = request.model or (recipe.model if recipe is not None else None)
    if model is None:
        model = default_model(images.sample().images, device)
    passes = wanted.epochs * wanted.copies * facts["train_images"]
    config = request.config or device_settings(wanted, request, device, passes)
    make = partial(new_model, model, images, normalisation=request.normalisation)
    return Experiment(images, policy, model, make, config, device, request, recipe)


def space_of(shape: list[int]) -> Literal["cifar", "imagenet"]:
    """Whose ranges and defaults images of this shape (C, H, W) get."""
    return "imagenet" if max(shape[1:]) > SMALL_SIDE else "cifar"


def policy_hash(policy: Policy) -> str:
    """The sha256 of a policy's content, whatever its description says."""
    bare = Policy(policy.table, schedule=[(p.epoch, p.stages) for p in policy.phases])
    return hashlib.sha256(dumps(bare).encode()).hexdigest()


def _completed(request: TrainRequest, recipe: Recipe | None) -> TrainRequest:
    """The request with what the recipe says about the images."""
    data, stream = request.data, request.stream
    if recipe is not None:
        request = replace(request, normalisation=recipe.data.normalisation)
        if data.data is None and recipe.stream:
            raise ValueError(f"--recipe {recipe.name} needs --data, a folder with train and val")
        if data.data is None:
            data = replace(data, data=recipe.data.name)
        stream = recipe.stream if stream is None else stream
    if stream:
        size = data.size or (STREAMED_SIZE if recipe is None else recipe.data.size)
        data = replace(data, size=size)
        if request.test is not None or request.holdout is not None:
            raise ValueError(
                "--stream tests on the folder's val or test part: no --test, --holdout"
            )
        if data.data is None or not Path(data.data).is_dir():
            raise ValueError(f"--stream reads a folder with train and val, got {data.data!r}")
    data = replace(data, root=absolute_root(data.root, data.data, request.test))
    return replace(request, data=data, stream=bool(stream))


# Settings


def requested_settings(request: TrainRequest, recipe: Recipe | None) -> TrainConfig:
    """The settings that were asked for; some may still depend on the device."""
    if request.config is not None:
        return request.config
    base = TrainConfig(epochs=EPOCHS) if recipe is None else recipe.train
    changes = parse_changes(request.changes, TrainConfig, without=("seed",))
    if twice := sorted(changes.keys() & request.given.keys()):
        raise ValueError(f"{twice[0]} is given twice: with its own option and with --set")
    changes |= request.given
    # a schedule and its milestones only make sense together
    if changes.get("schedule") == "cosine":
        changes.setdefault("milestones", ())
    elif changes.get("milestones"):
        changes.setdefault("schedule", "step")
    _check_length(recipe, base, changes)
    return replace(base, **changes)


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


def device_settings(
    config: TrainConfig, request: TrainRequest, device: torch.device, passes: int
) -> TrainConfig:
    """The settings with those that suit the device; a recipe has its own for CUDA.

    Args:
        passes: Images through the network in all epochs.
    """
    cuda = device.type == "cuda"
    named = {change.partition("=")[0] for change in request.changes} | request.given.keys()
    choices: dict[str, Any] = {"precision": precision_on(device)}
    if not cuda or request.recipe is None:
        choices |= {"channels_last": cuda, "compile": cuda and passes >= WORTH_COMPILING}
    return replace(config, **{name: v for name, v in choices.items() if name not in named})


# Policy and images


def load_requested_policy(
    request: TrainRequest, epochs: int, space: Literal["cifar", "imagenet"]
) -> Policy:
    """The policy; a run that goes on has its own copy, whatever became of the file."""
    spec, stored = request.policy, request.folder / POLICY
    operations = import_operations(spec.operations)
    if request.config is not None and stored.exists():
        return load_policy(stored, operations)
    how: dict[str, Any] = {"space": space, "epochs": epochs, "operations": operations}
    if spec.first_layers is not None:
        depth = compared_policy(spec.name, defaults=False, **how).most_layers
        if spec.first_layers > depth:
            layers = "1 layer" if depth == 1 else f"{depth} layers"
            raise ValueError(f"--first-layers {spec.first_layers}: {spec.name} has {layers}")
    return compared_policy(spec.name, defaults=spec.defaults, first_layers=spec.first_layers, **how)


def _images(
    request: TrainRequest,
    device: torch.device,
    policy: Policy,
    download: bool,
    workers: int | None,
    scan: bool,
    like: Experiment | None,
) -> ExperimentImages:
    """The images of a request; those of another experiment where they are the same in memory."""
    if like is not None and (like.request is None or not _same_images(like.request, request)):
        like = None
    if not request.stream:
        return like.images if like is not None else _in_memory(request, download, workers or 0)
    known = read_scan_record(request.folder) if like is None else like.scan_record()
    spec = request.data
    assert spec.data is not None  # `_completed` has checked the folder
    assert spec.size is not None
    folder = partial(
        StreamedImages,
        spec.data,
        spec.size,
        device=device,
        workers=workers,
        scan=scan,
        on_bad_image=spec.on_bad_image,
        outside_links=spec.outside_links,
        reading=spec.reading,
    )
    train = folder(train=True, crop=crop_for(policy), known=known.get("train"))
    test = folder(train=False, known=known.get("test"))
    return ImagesOnDisk(train, test, Path(spec.data).resolve().name)


def _same_images(one: TrainRequest, other: TrainRequest) -> bool:
    return all(
        getattr(one, name) == getattr(other, name) for name in ("data", "test", "holdout", "stream")
    )


def _in_memory(request: TrainRequest, download: bool, workers: int) -> ImagesInMemory:
    """All images, read; one process downloads them, the others find them."""

    def load() -> TrainTest:
        try:
            return request.data.load_train_and_test(
                test=request.test, holdout=request.holdout, download=download
            )
        except MemoryError as error:
            raise MemoryError(f"{error}; or read them from disk with --stream") from error

    fetched = run_on_main(load) if download else None
    return ImagesInMemory(load() if fetched is None else fetched, workers=workers)
