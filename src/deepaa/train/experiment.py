"""What a user wants to train, and the experiment it means: images, policy, network, settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepaa import distributed
from deepaa.data import (
    DataSpec,
    StreamedImages,
    absolute_root,
    decoder_for,
    fetch,
    lists_files,
)
from deepaa.files import plural
from deepaa.models import SMALL_SIDE, channel_statistics, default_model, load_model
from deepaa.ops import check_own_operations, import_operations
from deepaa.policy import Policy, SpaceName, compared_policy, dumps, load_policy
from deepaa.runs import CONFIG, POLICY, Run, read_config, read_json, stored, to_plain, to_record
from deepaa.train.batches import (
    ExperimentImages,
    ImageBatches,
    ended_policy,
    images_in_memory,
    space_of,
    stream_images,
)
from deepaa.train.config import (
    Normalisation,
    Recipe,
    TrainConfig,
    device_settings,
    find_recipe,
    requested_settings,
)
from deepaa.train.loop import Metrics, Training, evaluate, evaluate_streamed
from deepaa.train.stream_policy import crop_for

KIND = "train"
"""What config.json calls the run of a training."""
PLACES, SCANS = "places.json", "scan.json"
STREAMED_SIZE = 224
FEW = 4
"""Images that are enough for batch norm, and few enough for any network."""
LONG_ENOUGH = 0.5
"""Seconds of a step that say how fast the next ones are."""


@dataclass(frozen=True)
class PolicySpec:
    """Which policy is trained, and with what around it."""

    name: str
    """A name of `deepaa policies`, or the absolute path of a file."""
    defaults: bool | None = None
    """Whether the default augmentation follows; None as its authors evaluate it."""
    first_layers: int | None = None
    """So many of its layers; None for all."""
    operations: tuple[str, ...] = ()
    """The user's own operations that it names, MODULE:NAME each."""


@dataclass(frozen=True)
class TrainRequest:
    """What a user wants to train, and in which run folder.

    What is None has not been decided: `build_experiment` takes it from the recipe, the images and
    the device.
    """

    folder: Path
    policy: PolicySpec
    data: DataSpec = field(default_factory=DataSpec)
    test: str | None = None
    """Where the test images lie, if elsewhere."""
    holdout: float | None = None
    """Share of the training images to test on instead."""
    stream: bool | None = None
    """Whether images are decoded from their files in every epoch."""
    normalisation: Normalisation | None = None
    recipe: str | None = None
    model: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainConfig` with an option of their own."""
    changes: tuple[str, ...] = ()
    """NAME=VALUE each, for the other fields."""
    config: TrainConfig | None = None
    """All settings, of a run that goes on."""

    def places(self) -> dict[str, str | None]:
        """Where the images lie."""
        return {"data": self.data.data, "test": self.test, "root": self.data.root}

    def to_json(self) -> dict[str, Any]:
        """What config.json keeps of the request, besides model and settings."""
        policy, files = to_plain(self.policy), self.data.to_json()
        del files["data"], files["root"]
        return {
            "places": {"policy": policy.pop("name"), **self.places()},
            "policy": policy,
            "files": files,
            "holdout": self.holdout,
            "stream": self.stream,
            "normalisation": self.normalisation,
        }


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
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    request: TrainRequest | None = None
    """What the user said, completed; None for an experiment that is made in Python."""
    recipe: Recipe | None = None

    def training(self, seed: int) -> Training:
        """The training of one seed, before its first epoch."""
        config = replace(self.config, seed=seed)
        batches = self.images.batches(self.policy, config, self.device)
        return Training(self.make_model(seed), batches, config)

    def test(self, model: nn.Module) -> Metrics:
        """Loss and accuracy of a model on the test images."""
        test = self.images.test
        if isinstance(test, StreamedImages):
            return evaluate_streamed(model, test)
        return evaluate(model, test.images, test.labels)

    def check(self) -> None:
        """Refuse what would fail in the first epoch, before a run folder is made."""
        training, sample = self.training(0), self.images.sample
        if any(operation.is_custom for operation in self.policy.table.operations):
            place = "cpu" if self.images.workers else self.device
            check_own_operations(self.policy.table, sample.images[:2].to(place))
        if training.outputs != len(sample.class_names):
            raise ValueError(
                f"model {self.model_name!r} has {training.outputs} outputs, but {sample.name} has "
                f"{len(sample.class_names)} classes"
            )
        fewest = min(training.batches.sizes) * self.config.copies // distributed.world_size()
        if fewest > 1:
            return
        try:
            with torch.random.fork_rng(devices=()), torch.no_grad():
                training.model.train()(sample.images[:1].to(self.device))
        except ValueError as error:  # torch's own check of what batch norm gets
            raise ValueError(
                f"--batch {self.config.batch}: of {len(training.batches.labels):,} images "
                f"a step of one is left, and the batch norm of {self.model_name} cannot train on "
                "one image of this size; give another --batch"
            ) from error

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same but for their seeds, as config.json keeps it.

        Checksums tell images and policies apart, so both may have moved since the run began: the
        places are those of the run in the request's folder, if there is one.
        """
        facts, train, request = self.facts(), to_record(self.config), None
        del train["seed"]
        if self.request is not None:
            request, folder = self.request.to_json(), self.request.folder
            known = read_config(folder) if (folder / CONFIG).exists() else {}
            if known.get("kind") == KIND and known.get("request"):
                request["places"] = stored(known, "request.places", dict, folder / CONFIG)
        return {
            "kind": KIND,
            "policy_sha256": facts["policy"]["sha256"],
            "model": self.model_name,
            "train": train,
            "images": {k: v for k, v in facts["images"].items() if k not in ("data", "test")},
            "request": request,
        }

    def write_inputs(self, run: Run) -> None:
        """Write what a later call needs of a request: its policy, where images lie, their scans."""
        if self.request is not None:
            self.policy.save(run.folder / POLICY)
            run.write_json(PLACES, self.request.places())
            if any((scans := self.images.scan_record()).values()):
                run.write_json(SCANS, scans)

    def facts(self) -> dict[str, Any]:
        """What results.json says beside the seeds."""
        policy: dict[str, Any] = {"layers": self.policy.depth, "sha256": policy_hash(self.policy)}
        if self.request is not None:
            spec = to_plain(self.request.policy)
            policy |= {name: spec[name] for name in ("name", "defaults", "first_layers")}
        train, images = to_plain(self.config), self.images.facts()
        del train["seed"]
        return {"policy": policy, "model": self.model_name, "train": train, "images": images}

    def measured_rate(self) -> float | None:
        """Images a second of a short training now, not compiled: a long one on CUDA is faster.

        On a CPU a batch of a large network may take minutes, and more memory than there is: a few
        images are tried first, and more of them while they take no time. None for images on disk.
        """
        train, model = self.images.train, self.make_model(0)
        if isinstance(train, StreamedImages):
            return None
        short = replace(
            self.config, epochs=2, warmup_epochs=0.0, end_epochs=0, compile=False, lr=0.0
        )
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


def policy_hash(policy: Policy) -> str:
    """The sha256 of a policy's content, whatever its description says."""
    bare = Policy(policy.table, schedule=[(p.epoch, p.stages) for p in policy.phases])
    return hashlib.sha256(dumps(bare).encode()).hexdigest()


# From a request to an experiment


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
    wanted = request.config or requested_settings(recipe, request.given, request.changes)
    side = request.data.size or SMALL_SIDE  # until the images are there
    space = space_of([3, side, side])
    policy = load_requested_policy(request, wanted.epochs, space)  # refuses a wrong name at once
    images = None
    if like is not None and like.request is not None:
        names = ("data", "test", "holdout", "stream")
        if all(getattr(like.request, name) == getattr(request, name) for name in names):
            images = like.images
    if request.stream:
        if download:
            distributed.run_on_main(lambda: fetch(request.data.data))
        found = distributed.from_main(lambda: _scan_record(request.folder))
        known = found if images is None else images.scan_record()
        options = {"device": device, "workers": workers, "scan": scan}
        crop = crop_for(ended_policy(policy, wanted, [3, side, side]))
        images = stream_images(_with_decoder(request, device), crop, known, **options)
    elif request.data.reading.decoder == "torchvision":
        raise ValueError("--read decoder=torchvision is for --stream: Pillow reads what is kept")
    elif images is None:
        where = request.data, request.test, request.holdout
        images = images_in_memory(*where, download=download, workers=workers or 0)
    sample, shape = images.sample, list(images.sample.images.shape[1:])
    if request.stream and request.normalisation is None:
        # for the record, and for seeds that join later; rounded to what a sample can tell
        mean, std = ([round(x, 4) for x in each] for each in channel_statistics(sample.images))
        request = replace(request, normalisation=(tuple(mean), tuple(std)))
    if space_of(shape) != space:
        policy = load_requested_policy(request, wanted.epochs, space_of(shape))
    model = request.model or (recipe.model if recipe is not None else None)
    model = model or default_model(sample.images, device)
    if request.config is None:
        named = {change.partition("=")[0] for change in request.changes} | request.given.keys()
        passes = wanted.epochs * wanted.copies * len(images.train.labels)
        wanted = device_settings(wanted, named, device, passes, recipe=recipe is not None)
    classes, levels = len(sample.class_names), request.normalisation
    make = partial(load_model, model, sample.images, classes, normalisation=levels)
    return Experiment(images, policy, model, make, wanted, device, request, recipe)


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
        if any(given is not None for given in (request.test, request.holdout, data.groups)):
            raise ValueError(
                "--stream tests on the val or test part of its data: no --test, --holdout, --groups"
            )
        if data.data is None or not lists_files(data.data):
            raise ValueError(
                "--stream reads a folder with train and val, a table, shards or hf:NAME, "
                f"got {data.data!r}"
            )
    data = replace(data, root=absolute_root(data.root, data.data, request.test))
    return replace(request, data=data, stream=bool(stream))


def _with_decoder(request: TrainRequest, device: torch.device) -> DataSpec:
    """The data with what decodes its files: what has decoded them in a run that goes on."""
    reading = request.data.reading
    if reading.decoder == "auto":
        before = distributed.from_main(lambda: _stored_decoder(request.folder))
        reading = replace(reading, decoder=before or decoder_for(reading, device))
    return replace(request.data, reading=reading)


def _stored_decoder(folder: Path) -> str | None:
    """What decodes the files of a run; None where there is none yet."""
    if not (folder / CONFIG).exists():
        return None
    images = read_config(folder).get("images")
    return str(images.get("decoder", "pillow")) if isinstance(images, Mapping) else None


def load_requested_policy(request: TrainRequest, epochs: int, space: SpaceName) -> Policy:
    """The policy; a run that goes on has its own copy, whatever became of the file."""
    spec, stored = request.policy, request.folder / POLICY
    operations = import_operations(spec.operations)
    if request.config is not None and stored.exists():
        return load_policy(stored, operations)
    how: dict[str, Any] = {"space": space, "epochs": epochs, "operations": operations}
    if spec.first_layers is not None:
        depth = compared_policy(spec.name, defaults=False, **how).most_layers
        if spec.first_layers > depth:
            has = f"{spec.name} has {plural(depth, 'layer')}"
            raise ValueError(f"--first-layers {spec.first_layers}: {has}")
    return compared_policy(spec.name, defaults=spec.defaults, first_layers=spec.first_layers, **how)


def _scan_record(folder: Path) -> dict[str, Any]:
    """What a scan of the run's image files found before; empty without one."""
    try:
        return dict(read_json(folder / SCANS))
    except (OSError, ValueError):  # none, or a damaged one: then the files are scanned again
        return {}
