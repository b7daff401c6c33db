"""Run folders as a stranger could send them: real ones, changed, with right checksums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blobs import blobs

from deepaa.data import DataSpec
from deepaa.policy import Policy
from deepaa.runs import Run
from deepaa.runs.json_text import checksum
from deepaa.search import (
    ContestConfig,
    ContestRequest,
    SearchRequest,
    SettingsRequest,
    find_policy,
    open_contest,
)
from deepaa.train import (
    PolicySpec,
    SeedRequest,
    TrainingRun,
    TrainRequest,
    build_experiment,
    train_side_by_side,
)

CONTEST = ContestConfig(passes=9_000, target_epochs=1, fresh_seeds=1)
SMALL = ("heldout=8", "images=2", "validation=8", "chains=16", "converged=1")


def write_data(folder: Path) -> Path:
    """A small data set with a training and a test part."""
    images, labels = (part.numpy() for part in blobs(120, 1))
    parts = {"x_train": images[:96], "y_train": labels[:96]}
    np.savez(folder / "blobs.npz", **parts, x_test=images[96:], y_test=labels[96:])
    return folder / "blobs.npz"


def search_settings(*changes: str) -> SettingsRequest:
    """Of a search that takes a second."""
    fields = {"layers": 1, "steps": 2}
    return SettingsRequest(
        preset="demo", fields=fields, epochs=1, ops="rotate,flip", changes=[*SMALL, *changes]
    )


def begun_search(folder: Path, data: Path, operations: Sequence[str] = ()) -> Path:
    """The folder of a search that was killed right after its start."""
    request = SearchRequest(
        search_settings(),
        DataSpec(data=str(data)),
        operations=tuple(operations),
        contest=None,
    )
    config = request.to_config(request.data.load(), request.settings.resolve(), None)
    Run(folder, config).close()
    return folder


def finished_search(
    folder: Path, data: Path, stop_after: int | None = None, *, contest: bool = False
) -> Path:
    """The folder of a search that has ended, or was stopped after so many records.

    With a contest these few images are not searched: policies that need no search compete.
    """
    settings = search_settings().resolve()
    seen = []

    def stop(record: object) -> None:
        seen.append(record)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    try:
        find_policy(
            data,
            config=settings.search,
            proxy=settings.proxy,
            space=settings.space,
            device="cpu",
            contest=CONTEST if contest else False,
            out=folder,
            progress=stop,
            checkpoint_seconds=0,
        )
    except KeyboardInterrupt:
        assert stop_after is not None
    return folder


def contest_request(data: Path) -> ContestRequest:
    """A contest that takes seconds."""
    return ContestRequest(DataSpec(data=str(data)), model="small", usual=False, contest=CONTEST)


def contested(folder: Path, data: Path, stop_after: int = 8) -> Path:
    """The folder of `deepaa contest`, stopped after so many records."""
    request = contest_request(data)
    with open_contest(request, folder, device=torch.device("cpu"), checkpoint_seconds=0) as run:
        for i, _ in enumerate(run, start=1):
            if i == stop_after:
                break
    return folder


def trained(folder: Path, data: Path, epochs: int = 2, stop_after: int | None = None) -> Path:
    """The folder of a training, ended or stopped after so many events."""
    request = TrainRequest(
        folder,
        PolicySpec("crop-flip"),
        DataSpec(data=str(data)),
        model="small",
        given={"epochs": epochs, "batch": 32},
    )
    experiment = build_experiment(request, torch.device("cpu"))
    with Run(folder, experiment.identity()) as run:
        seeds = SeedRequest(count=1).add_to(run)
        training = TrainingRun(experiment, seeds, run=run, checkpoint_seconds=0)
        for i, _ in enumerate(train_side_by_side([training]), start=1):
            if i == stop_after:
                break
    return folder


def with_settings(folder: Path, *path: str | int, to: Any) -> None:
    """Replace one setting in config.json; the checksum is right again."""
    document = json.loads((folder / "config.json").read_text())
    *way, last = path
    place = document["settings"]
    for step in way:
        place = place[step]
    place[last] = to
    document["sha256"] = checksum(document["settings"])
    (folder / "config.json").write_text(json.dumps(document))


def with_code(folder: Path, marker: Path, name: str = "stranger") -> Path:
    """A module that leaves a mark when it is imported, and holds an operation and a network."""
    path = folder / f"{name}.py"
    path.write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "from torch import nn\nfrom deepaa import Operation\n"
        "blur = Operation('blurred', pil=lambda image, m, u: image)\n"
        "def make(classes):\n"
        "    return nn.Sequential(nn.Flatten(), Float(), nn.Linear(768, classes))\n"
        "class Float(nn.Module):\n    def forward(self, x):\n        return x.float() / 255\n"
    )
    return path


def own_policy(path: Path) -> None:
    """A policy that changes nothing, as a file."""
    Policy.identity().save(path)
