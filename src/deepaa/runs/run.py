"""`Run`: the folder in which a search or training keeps its settings, history, state and result.

Everything is written whole or not at all, one process at a time works in a folder, and a run that
was killed goes on from its newest whole state with a history as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from deepaa.distributed import run_on_main
from deepaa.runs import checkpoint
from deepaa.runs.checkpoint import Saved
from deepaa.runs.environment import provenance
from deepaa.runs.files import DRAFT, RunError, read_json, remove_drafts, to_json, write_json
from deepaa.runs.history import HISTORY, NOTHING, History, read_history
from deepaa.runs.lock import LOCK, lock_folder

CONFIG, PROVENANCE, POLICY = "config.json", "provenance.json", "policy.json"
FORMAT = 2
"""Of all files of a run folder; config.json has it, and folders of another number are refused."""
MAX_DIFFERENCES = 20
"""Settings shown when two configurations differ."""

_LOGGER = logging.getLogger(__name__)
_ABSENT = object()


class SavesItself(Protocol):
    """A policy, which knows its own file format."""

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""


class Run:
    """A run folder that this process works in; close it, or use it in a `with` statement.

    Made by `Run.create` or `Run.open`. To look at a run that may be going on
    elsewhere, use `read_config` and `read_history`: they take no lock and change nothing.
    """

    def __init__(self, folder: Path, config: dict[str, Any] | None) -> None:
        """Use `Run.create` or `Run.open`."""
        self.folder = folder.resolve()
        self._lock = lock_folder(folder)
        try:
            remove_drafts(self.folder)
            if config is None:
                self.config = read_config(folder)
            else:
                self.config = _kept_settings(self.folder, config)
            found = checkpoint.recover(self.folder)
            self.start = self._add_start()
            self._mark = found.history if found else NOTHING
            self._history = History(self.folder, self._mark)
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True

    @classmethod
    def create(
        cls, folder: str | Path, config: Mapping[str, object], *, resume: bool = False
    ) -> Run:
        """A run with these settings in a new or empty folder, or the one that is there already.

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
        if not folder.exists():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unusable(folder, error) from error
        _check_foreign_files(folder)
        return cls(folder, settings)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`, to go on from its newest state.

        History lines that are newer than the state are dropped, for the run repeats those steps.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder")
        if not (folder / CONFIG).exists():
            raise RunError(f"{folder}: holds no run ({CONFIG} is missing)")
        return cls(folder, None)

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
            position: Where the run is (phase, layer, step), as JSON can say it.

        Raises:
            OSError: The disk is full or fails; the newest state is still the one before.
        """
        self._check_open()
        self._history.sync()
        mark = self._history.mark()
        checkpoint.save(self.folder, tensors, position, mark)
        self._mark = mark

    def latest(self) -> Saved | None:
        """The newest whole state; None before the first."""
        self._check_open()
        found = checkpoint.recover(self.folder)
        if found and found.history != self._mark:  # the newest was damaged since we looked
            self._mark = found.history
            self._history.cut(self._mark)
        return found.saved if found else None

    def write_json(self, name: str, value: object) -> None:
        """Put `value` in the file `name`, such as "splits.json"."""
        self._check_open()
        if Path(name).name != name or not name.endswith(".json") or name.startswith("."):
            raise ValueError(f"write_json takes a file name that ends in .json, got {name!r}")
        if name in _own_names():
            raise ValueError(f"write_json({name!r}): the run keeps this file itself")
        write_json(self.folder / name, value)

    def write_policy(self, policy: SavesItself) -> Path:
        """Put `policy` in `policy.json`; where that is."""
        self._check_open()
        path = self.folder / POLICY
        policy.save(path)
        return path

    def add_provenance(self, facts: Mapping[str, object]) -> None:
        """Add facts, such as the fingerprint of the data, to `provenance.json`."""
        self._check_open()
        if "starts" in facts:
            raise ValueError("add_provenance: the run keeps 'starts' itself")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the run."""
        self.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self.folder}: the run is closed")

    def _provenance(self) -> dict[str, Any]:
        path = self.folder / PROVENANCE
        known: dict[str, Any] = {}
        if path.exists():
            try:
                known = read_json(path)
            except RunError as error:
                _LOGGER.warning("%s; it begins anew", error)
        return known if isinstance(known.get("starts"), list) else {"starts": []}

    def _add_start(self) -> dict[str, object]:
        """This start, which is the newest in `provenance.json`."""
        known, start = self._provenance(), provenance()
        write_json(self.folder / PROVENANCE, {**known, "starts": [*known["starts"], start]})
        return start


def config_hash(config: Mapping[str, object]) -> str:
    """The checksum of settings, whatever the order of their names."""
    settings = json.loads(to_json(config, "config"))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def open_in_main(folder: str | Path, config: Mapping[str, object], *, resume: bool) -> Run | None:
    """`Run.create` in the main process alone; what is wrong is raised in all."""
    return run_on_main(lambda: Run.create(folder, config, resume=resume))


def check_folder(folder: str | Path, config: Mapping[str, object]) -> None:
    """Refuse what `Run.create` would refuse for these settings; only looks, whoever works there."""
    folder = Path(folder)
    if not folder.exists():
        return
    _check_foreign_files(folder)
    settings = json.loads(to_json(config, "config"))
    if (folder / CONFIG).exists() and _has_work(folder):
        _check_same(folder, read_config(folder), settings)


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings of the run in `folder`."""
    path = Path(folder) / CONFIG
    document = read_json(path)
    if document.get("format") != FORMAT:
        found = document.get("format")
        raise RunError(f"{path}: run format {found!r}; this version of deepaa reads {FORMAT} only")
    settings = document.get("settings")
    if not isinstance(settings, dict) or config_hash(settings) != document.get("sha256"):
        raise RunError(f"{path}: damaged or changed by hand: the checksum is wrong")
    return settings


def _check_foreign_files(folder: Path) -> None:
    """Refuse a folder with files that belong to no run; a kill at the start leaves two kinds."""
    if not folder.is_dir():
        raise RunError(f"{folder}: a file, expected a folder")
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise _unusable(folder, error) from error
    foreign = [name for name in names if name != LOCK and not DRAFT.fullmatch(name)]
    if foreign and CONFIG not in foreign:
        raise RunError(
            f"{folder}: not empty and no run ({len(foreign)} files, {min(foreign)!r} for one); "
            "choose a new folder"
        )


def _unusable(folder: Path, error: OSError) -> RunError:
    return RunError(f"{folder}: the folder cannot be used: {error.strerror}")


def _kept_settings(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as the folder has them; writes them if it has none, or nothing was done yet."""
    known = read_config(folder) if (folder / CONFIG).exists() else None
    same = known is not None and config_hash(known) == config_hash(settings)
    if known is None or not (same or _has_work(folder)):
        document = {"format": FORMAT, "sha256": config_hash(settings), "settings": settings}
        write_json(folder / CONFIG, document)
        return settings
    _check_same(folder, known, settings)
    _LOGGER.info("%s: going on with the run that is there", folder)
    return known


def _check_same(folder: Path, known: dict[str, Any], settings: dict[str, Any]) -> None:
    if config_hash(known) == config_hash(settings):
        return
    lines = list(_differences(known, settings))
    shown = lines[:MAX_DIFFERENCES]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    listed = ";".join(f"\n  {line}" for line in shown)  # the command line makes one line of it
    raise RunError(f"{folder}: holds a run with other settings:{listed}")


def _has_work(folder: Path) -> bool:
    """Whether a run got so far that its settings matter: not if it was refused at its start."""
    history = folder / HISTORY
    return any(folder.glob("manifest*")) or (history.exists() and history.stat().st_size > 0)


def _differences(known: object, now: object, name: str = "") -> Iterator[str]:
    """One line for each setting that differs."""
    if isinstance(known, dict) and isinstance(now, dict):
        for key in [*known, *(key for key in now if key not in known)]:
            place = f"{name}.{key}" if name else key
            yield from _differences(known.get(key, _ABSENT), now.get(key, _ABSENT), place)
    elif _shown(known) != _shown(now):
        yield f"{name}: {_short(_shown(known))} there, {_short(_shown(now))} now"


def _shown(value: object) -> str:
    return "not set" if value is _ABSENT else json.dumps(value, sort_keys=True)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:56]}..."


def _own_names() -> set[str]:
    pairs = (checkpoint.NEWEST, checkpoint.PREVIOUS, checkpoint.NEXT, checkpoint.DAMAGED)
    return {CONFIG, PROVENANCE, POLICY, HISTORY, *(name for pair in pairs for name in pair)}
