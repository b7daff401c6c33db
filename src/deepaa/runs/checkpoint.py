"""The saved state of a run: tensors and a manifest that proves them, and the pair before.

At rest a folder holds `state.safetensors` with `manifest.json` and, from the second save on,
`state.previous.safetensors` with `manifest.previous.json`. A save writes a third pair, `next`; the
moment its manifest has its name, the save has happened. Then four renames move each pair one place
on. Whoever opens the folder after a kill finishes the renames, so that at every instant one whole
state at least as new as the last finished save is there. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from deepaa.runs.files import RunError, move, read_json, to_json, write_file, write_json
from deepaa.runs.history import Mark

_KEYS = {"state", "position", "history"}

_LOGGER = logging.getLogger(__name__)


class Saved(NamedTuple):
    """A state as it was saved."""

    tensors: dict[str, Tensor]
    position: dict[str, Any]
    """Where the run was: phase, layer, step."""


class FoundState(NamedTuple):
    """A whole state in a folder, and how far the history had come."""

    saved: Saved
    history: Mark
    is_newest: bool


class _Pair(NamedTuple):
    state: str
    manifest: str


NEWEST = _Pair("state.safetensors", "manifest.json")
PREVIOUS = _Pair("state.previous.safetensors", "manifest.previous.json")
NEXT = _Pair("state.next.safetensors", "manifest.next.json")
DAMAGED = _Pair("state.damaged.safetensors", "manifest.damaged.json")


def save(
    folder: Path, tensors: Mapping[str, Tensor], position: Mapping[str, Any], history: Mark
) -> None:
    """Make these tensors the newest state; the one before is kept.

    Raises:
        OSError: The disk is full or fails; the states that were there stay as they were.
    """
    _rotate(folder)  # one that an I/O error stopped half-way
    data = to_bytes(tensors)
    state = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest: dict[str, Any] = {
        "state": state,
        "position": dict(position),
        "history": history._asdict(),
    }
    manifest["sha256"] = _manifest_checksum(manifest)
    try:
        write_file(folder / NEXT.state, data)
        write_json(folder / NEXT.manifest, manifest)
    except OSError:
        if not (folder / NEXT.manifest).exists():
            (folder / NEXT.state).unlink(missing_ok=True)
        raise
    _rotate(folder)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file with these tensors."""
    # copies, because the format refuses tensors that share memory
    copies = {
        name: torch.clone(tensor.detach().cpu(), memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(copies)


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest: a flipped bit in a step number would still be valid JSON."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    text = to_json(body, "manifest")
    return hashlib.sha256(json.dumps(json.loads(text), sort_keys=True).encode()).hexdigest()


def _rotate(folder: Path) -> None:
    """Finish a save whose manifest is written; does nothing otherwise.

    The four renames come in this order, and each step is told from the files that are there, so
    it can be stopped anywhere and called again.
    """
    if not (folder / NEXT.manifest).exists():
        return
    if (folder / NEXT.state).exists():
        for part in (0, 1):
            if (folder / NEWEST[part]).exists():
                move(folder / NEWEST[part], folder / PREVIOUS[part])
        move(folder / NEXT.state, folder / NEWEST.state)
    move(folder / NEXT.manifest, folder / NEWEST.manifest)


def recover(folder: Path) -> FoundState | None:
    """The newest whole state, after tidying up what a kill left; None when none was saved.

    Only the holder of the folder's lock may call this.
    """
    _rotate(folder)
    (folder / NEXT.state).unlink(missing_ok=True)  # its manifest never came
    found = newest(folder)
    if found and not found.is_newest:
        # out of the way, or the next save would keep it in place of the good one
        for part in (0, 1):
            if (folder / NEWEST[part]).exists():
                move(folder / NEWEST[part], folder / DAMAGED[part])
    return found


def newest(folder: Path) -> FoundState | None:
    """The newest whole state, or with a warning the one before it; None when none was saved.

    This only reads, so that every rank may do it while none of them saves.
    """
    problems = []
    for pair in (NEWEST, PREVIOUS):
        if not any((folder / name).exists() for name in pair):
            continue
        try:
            found = _read(folder, pair)
        except RunError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            _LOGGER.warning("%s; the state saved before it is used", problem)
        return found
    if problems:
        raise RunError(f"{'; '.join(problems)}; no whole state is left: start in a new folder")
    return None


def _read(folder: Path, pair: _Pair) -> FoundState:
    """One pair, if the checksums of both files are right."""
    manifest = _read_manifest(folder / pair.manifest)
    path = folder / pair.state
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    expected = manifest["state"]
    if len(data) != expected["bytes"]:
        raise RunError(f"{path}: damaged, {len(data)} bytes instead of {expected['bytes']}")
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise RunError(f"{path}: damaged, its checksum is not the one in {pair.manifest}")
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path}: not a safetensors file ({error})") from None
    return FoundState(
        Saved(tensors, manifest["position"]), Mark(**manifest["history"]), pair == NEWEST
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    if manifest.get("sha256") != _manifest_checksum(manifest) or _KEYS - set(manifest):
        raise RunError(f"{path}: damaged, its checksum is wrong")
    return manifest
