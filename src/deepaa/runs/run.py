"""`Run`: the folder in which a search or training keeps its settings, history, state and result.

Everything is written whole or not at all, one process at a time works in a folder, and a run that
was killed goes on from its newest whole state with a history as if it had never stopped. Each start
notes where its results come from: code, versions, hardware and command.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from deepaa.files import plural, printable
from deepaa.runs import checkpoint
from deepaa.runs.checkpoint import (
    DRAFT,
    HISTORY,
    NOTHING,
    History,
    Saved,
    read_history,
    write_json,
)
from deepaa.runs.json_text import RunError, checksum, read_json, to_json
from deepaa.runs.process import LOCK, lock_folder
from deepaa.runs.settings import short

CONFIG, PROVENANCE, POLICY = "config.json", "provenance.json", "policy.json"
FOUND, CONTEST = "found.json", "contest.json"
"""What a search itself found, and the contest by training that chose `POLICY`."""
FORMAT = 2
"""Of all files of a run folder; config.json has it, and folders of another number are refused."""
PACKAGES = ("deepaa", "torch", "torchvision", "numpy", "pillow", "triton")

_LOGGER = logging.getLogger(__name__)
_ABSENT = object()


class Run:
    """A run folder that this process works in; close it, or use it in a `with` statement.

    To look at a run that may be going on elsewhere, use `read_config` and `read_history`: they
    take no lock and change nothing.
    """

    def __init__(
        self, folder: str | Path, config: Mapping[str, object], *, resume: bool = False
    ) -> None:
        """Begin a run with these settings in a new or empty folder, or go on with the one there.

        History lines that are newer than its state are dropped, for the run repeats those steps.

        Args:
            resume: Refuse a folder without a run.

        Raises:
            RunError: The folder holds a run with other settings, or files that are no run, or
                cannot be written, or another process works in it.
        """
        settings = json.loads(to_json(config, "config"))  # before anything is made
        folder = Path(folder)
        # a kill right after the start leaves a lock and no settings: that run begins again
        if resume and not (folder / LOCK).exists() and not (folder / CONFIG).exists():
            reason = "holds no run" if folder.is_dir() else "no such folder"
            raise RunError(f"{folder}: {reason}, so there is nothing to resume")
        _check_foreign_files(folder, make=True)
        self.folder = folder.resolve()
        self._lock = lock_folder(folder)
        try:
            for path in self.folder.iterdir():  # what a killed process was writing
                if DRAFT.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            if not _has_work(self.folder, settings, always=resume):
                document = {"format": FORMAT, "sha256": checksum(settings)}
                write_json(self.folder / CONFIG, {**document, "settings": settings})
            found = checkpoint.recover(self.folder)
            known, self.start = self._provenance(), provenance()
            starts = [*known["starts"], self.start]
            write_json(self.folder / PROVENANCE, {**known, "starts": starts})
            self._mark = found.history if found else NOTHING
            self._history = History(self.folder, self._mark)
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True

    def log(self, record: dict[str, Any]) -> None:
        """Add one line to the history; NaN and infinity are refused, None means no value."""
        self._check_open()
        self._history.append(record)

    def history(self) -> list[dict[str, Any]]:
        """The records so far."""
        return read_history(self.folder)

    def save(self, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        """Make this the newest state, on disk when it returns; the state before it is kept.

        Args:
            position: Where the run is (phase, layer, step), in values that JSON has.

        Raises:
            OSError: The disk is full or fails; the newest state is still the one before.
        """
        self._check_open()
        mark = self._history.sync()
        checkpoint.save(self.folder, tensors, position, mark)
        self._mark = mark

    def latest(self) -> Saved | None:
        """The newest whole state; None before the first."""
        self._check_open()
        found = checkpoint.recover(self.folder)
        if found and found.history != self._mark:  # the newest was damaged since it was read
            self._mark = found.history
            self._history.cut(self._mark)
        return found

    def write_json(self, name: str, value: object) -> None:
        """Put `value` in the file `name`, such as "splits.json"."""
        self._check_open()
        write_json(self.folder / name, value)

    def add_provenance(self, facts: Mapping[str, object]) -> None:
        """Add facts, such as the fingerprint of the data, to `provenance.json`."""
        self._check_open()
        write_json(self.folder / PROVENANCE, {**self._provenance(), **facts})

    def close(self) -> None:
        """Let another process work in the folder; again it does nothing."""
        if self._is_open:
            self._is_open = False
            self._history.close()
            self._lock.release()

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the run."""
        self.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self.folder}: the run is closed")

    def _provenance(self) -> dict[str, Any]:
        path, known = self.folder / PROVENANCE, dict[str, Any]()
        try:
            known = read_json(path) if path.exists() else {}
        except RunError as error:
            _LOGGER.warning("%s; it begins anew", error)
        return known if isinstance(known.get("starts"), list) else {"starts": []}


def check_folder(folder: str | Path, config: Mapping[str, object]) -> None:
    """Refuse what `Run` would refuse for these settings; takes no lock and writes nothing."""
    folder = Path(folder)
    if folder.exists():
        _check_foreign_files(folder)
        _has_work(folder, json.loads(to_json(config, "config")))


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings of the run in `folder`."""
    path = Path(folder) / CONFIG
    document = read_json(path)
    if document.get("format") != FORMAT:
        found = document.get("format")
        raise RunError(
            f"{path}: run format {short(found)}; this version of deepaa reads {FORMAT} only"
        )
    settings = document.get("settings")
    if not isinstance(settings, dict) or checksum(settings) != document.get("sha256"):
        raise RunError(f"{path}: damaged or changed by hand: the checksum is wrong")
    return settings


def _check_foreign_files(folder: Path, *, make: bool = False) -> None:
    """Refuse a folder with files that belong to no run; a kill at the start leaves two kinds."""
    try:
        if make and not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise RunError(f"{folder}: a file, expected a folder")
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError as error:
        raise RunError(f"{folder}: the folder cannot be used: {error.strerror}") from error
    for entry in entries:  # a link could lead what is written here to any place
        if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            kind = "a link" if entry.is_symlink() else "a pipe or device"
            raise RunError(f"{folder / entry.name}: {kind}; a run has only files and folders in it")
    names = [entry.name for entry in entries]
    foreign = [name for name in names if name != LOCK and not DRAFT.fullmatch(name)]
    if foreign and CONFIG not in foreign:
        files = f"{plural(len(foreign), 'file')}, {min(foreign)!r} for one"
        raise RunError(f"{folder}: not empty and no run ({files}); choose a new folder")


def _has_work(folder: Path, settings: dict[str, Any], *, always: bool = False) -> bool:
    """Whether the run in `folder` has done work; its settings must then be these.

    All but those under `source`: equal images may lie elsewhere by now. A run that was refused at
    its start has done no work, and leaves the folder free.

    Args:
        always: Compare the settings of a run without work too: one that is resumed reads what its
            folder names, and may read nothing else than what the run began with.
    """
    if not (folder / CONFIG).exists():
        return False
    known, history = read_config(folder), folder / HISTORY
    worked = any(folder.glob("manifest*")) or (history.exists() and history.stat().st_size > 0)
    if not worked and not always:
        return False
    lines = list(differences(known, settings))
    if not all(line.startswith("source.") for line in lines):
        raise RunError(f"{folder}: holds a run with other settings:{in_lines(lines)}")
    return worked


def in_lines(texts: Sequence[str]) -> str:
    """Up to 20 texts on a line each; the command line makes one line of them."""
    shown = list(texts[:20])
    if len(texts) > len(shown):
        shown.append(f"and {len(texts) - len(shown)} more")
    return ";".join(f"\n  {text}" for text in shown)


def differences(known: object, now: object, name: str = "") -> Iterator[str]:
    """One line for each setting that differs."""
    if isinstance(known, dict) and isinstance(now, dict):
        for key in [*known, *(key for key in now if key not in known)]:
            place = f"{name}.{printable(key[:60])}" if name else printable(key[:60])
            yield from differences(known.get(key, _ABSENT), now.get(key, _ABSENT), place)
        return
    # as JSON has them: 0 is not false
    pair = (known, now)
    texts = ["not set" if v is _ABSENT else json.dumps(v, sort_keys=True) for v in pair]
    if texts[0] != texts[1]:
        there, here = (text if len(text) <= 60 else f"{text[:56]}..." for text in texts)
        yield f"{name}: {there} there, {here} now"


def versions(*more: str) -> dict[str, str | None]:
    """The versions of Python and of the packages that matter here, or `more`; None for missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", None)
    return found


def devices() -> tuple[str, ...]:
    """The CPU and each CUDA device, in words."""
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    found = [f"cpu: {plural(cores, 'core')}, torch uses {plural(threads, 'thread')}"]
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        memory = about.total_memory / 2**30
        capability = f"compute capability {about.major}.{about.minor}"
        found.append(f"cuda:{i}: {about.name}, {memory:.0f} GiB, {capability}")
    return tuple(found)


def provenance() -> dict[str, object]:
    """The code, versions, hardware, command and time of this process, ready for JSON."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "code": code_version(Path(__file__).parents[1]),
        "versions": versions(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "devices": list(devices()),
    }


@cache  # later changes of the files do not reach a process that runs
def code_version(folder: Path) -> dict[str, object] | None:
    """The git commit of the code in `folder` and whether its files differ from it.

    None when the code is not in a repository, such as a package installed from a wheel, even if
    the environment it is installed in lies inside somebody's repository.
    """
    if not _git(folder, "ls-files", "."):  # not one file of it belongs to the repository
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", ".")
    return {"commit": commit, "changed": bool(changes)} if commit else None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None without git or a repository."""
    # set inside a git hook, these would answer for another repository
    hidden = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},  # asking must not write to the index
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,  # a hanging git (a network disk) must not hang a run
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
