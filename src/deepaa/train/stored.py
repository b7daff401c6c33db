"""The request of a training as its run folder keeps it, read as what anybody may have written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deepaa.data import DataSpec
from deepaa.files import listed
from deepaa.models import is_own_code
from deepaa.runs import (
    CONFIG,
    RunError,
    check_named,
    check_named_model,
    differences,
    from_plain,
    in_lines,
    read_config,
    read_json,
    stored,
)
from deepaa.train.config import Normalisation, TrainConfig
from deepaa.train.experiment import KIND, PLACES, PolicySpec, TrainRequest


def stored_request(
    folder: Path,
    moved: Mapping[str, str | None] | None = None,
    *,
    operations: Sequence[str] = (),
    model: str | None = None,
) -> TrainRequest:
    """The request of the run in `folder`, with all its settings.

    Args:
        moved: Where its data, test images and root lie now; None for what has not moved.
        operations: Its own operations again: none is imported because a folder names it.
        model: Its network again, if that is code of one's own.
    """
    if not (folder / CONFIG).exists():
        reason = "holds no run" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
    config = read_config(folder)
    if config.get("kind") != KIND:
        raise ValueError(f"{folder}: this run is not a training; try deepaa search --resume")
    last = read_json(folder / PLACES) if (folder / PLACES).exists() else {}
    now = {name: place for name, place in (moved or {}).items() if place is not None}
    get = partial(stored, config, place=folder / CONFIG)
    places = {**get("request.places", dict), **last, **now}
    where = partial(stored, places, hint=str | None, place=folder / PLACES)
    files = {**get("request.files", dict), "data": where("data"), "root": where("root")}
    policy = {**get("request.policy", dict), "name": where("policy")}
    try:
        request = TrainRequest(
            folder,
            from_plain(PolicySpec, policy, prefix="policy."),
            DataSpec.from_json(files),
            test=where("test"),
            holdout=get("request.holdout", float | None),
            stream=get("request.stream", bool | None),
            normalisation=get("request.normalisation", Normalisation | None),
            model=get("model", str),
            config=from_plain(TrainConfig, {**get("train", dict), "seed": 0}, prefix="train."),
        )
    except ValueError as error:
        raise ValueError(f"{folder}: config.json is not one of this version: {error}") from error
    check_named(folder, "--operations", request.policy.operations, operations)
    check_named_model(folder, request.model, model, is_code=is_own_code(request.model))
    return request


def runs_in(folder: Path) -> list[Path]:
    """The run in a folder itself, or the trainings in the folders in it."""
    if (folder / CONFIG).exists():
        return [folder]
    inner = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if links := [path.name for path in inner if path.is_symlink()]:
        raise RunError(f"{folder}: {listed(links)} is a link to a run elsewhere; resume that one")
    return [path for path in inner if read_config(path).get("kind") == KIND] or [folder]


def check_alike(folders: Iterable[Path], identity: Mapping[str, Any]) -> None:
    """Refuse to train a policy beside those in `folders` if more than the policy differs.

    Args:
        identity: Of the experiment, as `Experiment.identity` gives it.

    Raises:
        RunError: Images, network or settings are others than in one of the folders.
    """
    for folder in folders:
        lines = list(differences(_but_policy(read_config(folder)), _but_policy(identity)))
        if lines:
            raise RunError(
                f"{folder.parent}: the policies there were trained with other settings, for one "
                f"{folder.name}; give the same, or another --out:{in_lines(lines)}"
            )


def _but_policy(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What trainings must have in common if their policies are compared in one table."""
    images = identity.get("images")  # the crop of streamed images is a part of the policy
    if isinstance(images, Mapping):
        images = {name: value for name, value in images.items() if name != "crop"}
    return {"images": images, "model": identity.get("model"), "train": identity.get("train")}
