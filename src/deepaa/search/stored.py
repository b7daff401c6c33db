"""The request of a search as config.json keeps it, read as what anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.data import DataSpec, SearchSubset
from deepaa.files import printable
from deepaa.models import is_own_code
from deepaa.ops import import_operations
from deepaa.runs import CONFIG, RunError, check_named, check_named_model, from_plain, short, stored
from deepaa.search.contest import ContestConfig
from deepaa.search.methods import METHODS, Method, stored_method
from deepaa.search.settings import Settings

Sizes = tuple[int, int, int]


class StoredSearch(NamedTuple):
    """What a run folder says of the search in it."""

    settings: Settings
    data: DataSpec
    weights: str | None
    pretrain: bool
    splits: Sizes | None
    operations: tuple[str, ...]
    contest: ContestConfig | None
    method: Method | None


def read_stored(
    folder: Path,
    config: Mapping[str, Any],
    operations: Sequence[str],
    model: str | None,
    method: str | None = None,
) -> StoredSearch:
    """The search in `folder`, whose settings are `config`.

    Args:
        operations: The own operations of the run again: none is imported for the folder's sake.
        model: Its network again, if that is code of one's own.
        method: Its search method again, likewise.
    """
    get = partial(stored, config, place=folder / CONFIG)
    if from_python := get("source.from_python", tuple[str, ...]):
        raise ValueError(
            f"{folder}: {printable(' and '.join(from_python))} of this run came from Python "
            "code and are not in its folder; call find_policy again with the same arguments"
        )
    entry = get("source.data", dict[str, Any])
    kept, network = get("source.operations", tuple[str, ...]), get("proxy.model", str | None)
    check_named(folder, "--operations", kept, operations)
    check_named_model(folder, network, model, is_code=is_own_code(network))
    return StoredSearch(
        Settings.from_json(config, import_operations(kept)),
        DataSpec.from_json(entry, f"{folder / CONFIG}: source.data"),
        get("source.weights", str | None),
        get("pretrain", bool),
        get("splits", Sizes | None),
        kept,
        _contest(folder, get("contest", dict[str, Any] | None)),
        _method(folder, get("method", dict[str, Any] | None, default=None), method),
    )


def _contest(folder: Path, entry: Mapping[str, Any] | None) -> ContestConfig | None:
    try:
        return None if entry is None else from_plain(ContestConfig, entry, prefix="contest.")
    except ValueError as error:
        raise RunError(f"{folder / CONFIG}: damaged: {error}") from error


def _method(folder: Path, entry: Mapping[str, Any] | None, named: str | None) -> Method | None:
    """The search method of a run; one that is code of one's own only if it is named again."""
    place = folder / CONFIG
    kept = None if entry is None else stored(entry, "name", str, place)
    if kept is not None and kept not in METHODS:
        check_named(folder, "--method", [kept], [] if named is None else [named])
    elif named not in (None, kept):
        has = "gradient matching" if kept is None else short(kept)
        raise RunError(f"{folder}: the method of this run is {has}, got --method {short(named)}")
    if entry is None or kept is None:
        return None
    try:
        return stored_method({"name": kept, "config": stored(entry, "config", dict, place)})
    except ValueError as error:
        raise RunError(f"{place}: damaged: {error}") from error


def stored_subset(
    config: Mapping[str, Any], splits: Sizes | None, seed: int, *, pretrain: bool
) -> tuple[SearchSubset | None] | None:
    """The part of a folder that the run with these settings has read; None if it is another run.

    The part is None for all of the folder.
    """
    get = partial(stored, config, place=CONFIG)
    if (entry := get("source.data", dict[str, Any] | None)) is None:
        return None
    asked = get("splits", Sizes | None), get("pretrain", bool), get("search.seed", int)
    return (DataSpec.from_json(entry).subset(seed),) if asked == (splits, pretrain, seed) else None
