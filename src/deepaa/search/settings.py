"""The settings of a search: a preset, what is changed of it, and both as JSON.

The command and `find_policy` say what they want in a `SettingsRequest`; what it resolves to is
kept in the run folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deepaa.ops import Operation, Space
from deepaa.runs import apply_changes, from_plain, parse_changes, to_plain
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.presets import LARGE, PRESETS, SMALL, SPACES, Preset, ProxyConfig

NOT_CHANGED = ("model", "train.seed")
"""Settings that have an option of their own, or follow from another."""


class Settings(NamedTuple):
    """Everything that changes what a search finds, but the images and a given network."""

    search: SearchConfig
    proxy: ProxyConfig
    space: Space


def find_preset(name: str) -> Preset:
    """The preset of this name."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True)
class SettingsRequest:
    """A preset, parts that replace its own, and changes to single settings."""

    preset: str | None = None
    """None takes the one for small or for large images."""
    search: SearchConfig | None = None
    proxy: ProxyConfig | None = None
    space: Space | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SearchConfig` by name."""
    model: str | None = None
    epochs: int | None = None
    """Of pre-training."""
    operations: tuple[Operation, ...] = ()
    """The user's own, in addition to the space."""
    ops: str | Sequence[str] | None = None
    """Operations to keep, with commas between or as a list; identity always stays."""
    exclude: str | Sequence[str] | None = None
    """Operations to leave out."""
    changes: Sequence[str] = ()
    """NAME=VALUE each: heldout=64, augment=false, train.lr=0.05. Checked together, so that their
    order does not matter."""

    def resolve(self, *, large: bool = False) -> Settings:
        """The settings for small or for large images."""
        start = find_preset(self.preset or (LARGE if large else SMALL))
        changes = parse_changes(self.changes, SearchConfig, ProxyConfig, without=NOT_CHANGED)
        if self.epochs is not None:
            changes = {"train.epochs": self.epochs, **changes}
        if "train.epochs" in changes:  # so many, unless both are given
            changes = {"least_passes": 0, **changes}
        search = dataclasses.replace(self.search or start.search, **self.fields)
        proxy = self.proxy or start.proxy
        if self.model is not None:
            proxy = dataclasses.replace(proxy, model=self.model)
        space = self._chosen_space(self.space or SPACES[start.space])
        return Settings(apply_changes(search, changes), apply_changes(proxy, changes), space)

    def _chosen_space(self, space: Space) -> Space:
        if self.operations:
            space = space.plus(*self.operations)
        if self.ops is not None:
            space = space.only("identity", *_names(self.ops))
        if self.exclude is not None:
            if "identity" in _names(self.exclude):
                raise ValueError("identity cannot be left out: every layer starts from it")
            space = space.without(*_names(self.exclude))
        return space


def _names(given: str | Sequence[str]) -> list[str]:
    listed = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in listed if name.strip()]


def settings_to_json(settings: Settings) -> dict[str, Any]:
    """The settings as they stand in config.json."""
    operations = [
        {
            "name": op.name,
            "low": op.low,
            "high": op.high,
            "neutral": op.neutral,
            "options": {k: list(v) if isinstance(v, tuple) else v for k, v in op.options.items()},
        }
        for op in settings.space.operations
    ]
    return {
        "search": to_plain(settings.search),
        "proxy": to_plain(settings.proxy),
        "space": {"operations": operations, "levels": settings.space.levels},
    }


def settings_from_json(config: Mapping[str, Any], operations: Sequence[Operation] = ()) -> Settings:
    """The settings that `settings_to_json` gave.

    Args:
        operations: The user's own operations of the space: JSON does not carry their kernels.
    """
    own = {operation.name: operation for operation in operations}
    try:
        space = config["space"]
        known = tuple(own.get(op["name"]) or Operation(**op) for op in space["operations"])
        return Settings(
            from_plain(SearchConfig, config["search"]),
            from_plain(ProxyConfig, config["proxy"]),
            Space(known, space["levels"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"config.json does not fit this version of deepaa: {error}") from error
