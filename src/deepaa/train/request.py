"""What a user wants to train, as typed values, and how a run folder keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepaa import distributed
from deepaa.data import DataSpec
from deepaa.distributed import run_on_main
from deepaa.runs import CONFIG, from_plain, read_config, read_json, to_plain
from deepaa.train.config import TrainConfig
from deepaa.train.recipes import Normalisation

KIND = "train"
"""What config.json calls the run of a training."""
PLACES, SCANS = "places.json", "scan.json"


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


def stored_request(folder: Path, moved: Mapping[str, str | None] | None = None) -> TrainRequest:
    """The request of the run in `folder`, with all its settings.

    Args:
        moved: Where its data, test images and root lie now; None for what has not moved.
    """
    if not (folder / CONFIG).exists():
        reason = "holds no run" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
    config = read_config(folder)
    if config.get("kind") != KIND:
        raise ValueError(f"{folder}: this run is not a training; try deepaa search --resume")
    last = read_json(folder / PLACES) if (folder / PLACES).exists() else {}
    now = {name: place for name, place in (moved or {}).items() if place is not None}
    try:
        kept = config["request"]
        places = {**kept["places"], **last, **now}
        files = {**kept["files"], "data": places["data"], "root": places["root"]}
        levels = kept["normalisation"]
        return TrainRequest(
            folder,
            from_plain(PolicySpec, {"name": places["policy"], **kept["policy"]}),
            DataSpec.from_json(files),
            test=places["test"],
            holdout=kept["holdout"],
            stream=kept["stream"],
            normalisation=None if levels is None else (tuple(levels[0]), tuple(levels[1])),
            model=config["model"],
            config=from_plain(TrainConfig, {**config["train"], "seed": 0}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: config.json is not one of this version: {error}") from error


def settings_json(config: TrainConfig) -> dict[str, Any]:
    """The settings of a training, as config.json has them: those of every seed."""
    plain = to_plain(config)
    del plain["seed"]
    return plain


def read_scan_record(folder: Path) -> dict[str, Any]:
    """What a scan of the run's image files found before, in all processes; empty without one."""

    def read() -> dict[str, Any]:
        try:
            return dict(read_json(folder / SCANS))
        except (OSError, ValueError):  # none, or a damaged one: then the files are scanned again
            return {}

    return distributed.broadcast(run_on_main(read)) or {}


def runs_in(folder: Path) -> list[Path]:
    """The run in a folder itself, or the trainings in the folders in it."""
    if (folder / CONFIG).exists():
        return [folder]
    inner = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    return [path for path in inner if read_config(path).get("kind") == KIND] or [folder]
