"""Run folders that were changed: values of other types, and checksums that fit them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzzing import EVIL, damaged, flipped, spoiled
from safetensors.torch import load_file, save_file

from deepaa.runs.json_text import checksum

STATES = {
    "manifest.json": "state.safetensors",
    "manifest.previous.json": "state.previous.safetensors",
}


def mutate_folder(source: Path, target: Path, seed: int) -> str:
    """A changed copy of a run folder at `target`; returns the name of the file that differs."""
    random_ = random.Random(seed)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    names = sorted(path.name for path in target.iterdir() if path.suffix != ".png")
    usual = ["config.json"] * 6 + ["history.jsonl", "manifest.json"] * 2 + ["run.lock"]
    name = random_.choice([*names, *usual])
    changes: dict[str, Callable[[Path, random.Random], None]] = {
        "config.json": _change_settings,
        "history.jsonl": _change_history,
        "run.lock": _write_lock,
    }
    change = changes.get(name)
    if random_.random() < 0.06:
        change = _replace_file
    elif random_.random() < 0.06:
        change = _spoil_file
    elif name in STATES:
        change = _change_manifest
    elif name in STATES.values():
        change = _change_state
    elif change is None:
        change = _change_json if name.endswith(".json") else _spoil_file
    change(target / name, random_)
    return name


def _load(path: Path) -> Any:
    return json.loads(path.read_text())


def _write(path: Path, value: Any) -> None:
    path.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))


def _change_settings(path: Path, random_: random.Random) -> None:
    document = _load(path)
    settings = damaged(random_, document["settings"])
    if random_.random() < 0.1:
        document = damaged(random_, document)
    if isinstance(document, dict):
        document |= {"settings": settings, "sha256": checksum(settings)}
    _write(path, document)


def _change_manifest(path: Path, random_: random.Random) -> None:
    manifest = _load(path)
    del manifest["sha256"]
    manifest = damaged(random_, manifest)
    if isinstance(manifest, dict):
        manifest["sha256"] = checksum(manifest)
    _write(path, manifest)


def _change_json(path: Path, random_: random.Random) -> None:
    _write(path, damaged(random_, _load(path)))


def _change_history(path: Path, random_: random.Random) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = damaged(random_, lines)
    listed = changed if isinstance(changed, list) else [changed]
    text = "".join(f"{json.dumps(line)}\n" for line in listed)
    path.write_text(spoiled(random_, text) if random_.random() < 0.1 else text)


def _change_state(path: Path, random_: random.Random) -> None:
    """Other tensors, with a manifest that fits them."""
    tensors = load_file(path) or {"epoch": torch.tensor(0)}
    name = random_.choice(list(tensors))
    old = tensors[name]
    tensors[name] = random_.choice(
        (
            lambda: old.double() if old.dtype == torch.float32 else old.float(),
            lambda: old.reshape(1, *old.shape),
            lambda: torch.zeros(0, dtype=old.dtype),
            lambda: torch.full_like(old, -3),
            lambda: torch.full(old.shape, float("nan")).to(old.dtype),
            lambda: old.repeat(3) if old.ndim == 1 else torch.tensor(7),
            lambda: torch.tensor(10**12),
            lambda: torch.tensor(True),
        )
    )()
    if random_.random() < 0.2:
        del tensors[name]
    if random_.random() < 0.1:
        tensors[f"x{EVIL}"] = torch.zeros(1)
    save_file(tensors, path)
    manifest = path.parent / next(key for key, state in STATES.items() if state == path.name)
    about, data = _load(manifest), path.read_bytes()
    about["state"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del about["sha256"]
    about["sha256"] = checksum(about)
    _write(manifest, about)


def _write_lock(path: Path, random_: random.Random) -> None:
    host = random_.choice((os.uname().nodename, "elsewhere", EVIL))
    lock = {"pid": 2**22, "host": host, "since": "2020", "process_start": 1}
    _write(path, damaged(random_, lock) if random_.random() < 0.8 else lock)


def _spoil_file(path: Path, random_: random.Random) -> None:
    data = path.read_bytes() if path.exists() else b""
    if data and random_.random() < 0.7:
        path.write_bytes(flipped(random_, data))
    else:
        path.write_text(spoiled(random_, data[:2000].decode("utf-8", "replace")))


def _replace_file(path: Path, random_: random.Random) -> None:
    """Something that is no file under its name, or nothing."""
    path.unlink(missing_ok=True)
    kind = random_.randrange(4)
    if kind == 0:
        path.symlink_to(path.parent.parent / "victim.txt")
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
