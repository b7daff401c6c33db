"""The settings of a search: chosen from a preset, changed one by one, as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepaa.presets import PRESETS, SPACES, Preset, ProxyConfig
from deepaa.search_config import SearchConfig
from deepaa.space import Operation, Space
from deepaa.train import TrainConfig


class Settings(NamedTuple):
    """What a search does, whatever the data and the network."""

    search: SearchConfig
    proxy: ProxyConfig
    space: Space


def preset_of(name: str) -> Preset:
    """The preset of this name."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def chosen_settings(
    preset: str,
    *,
    search: Mapping[str, Any] = {},
    model: str | None = None,
    epochs: int | None = None,
    ops: str | None = None,
    exclude: str | None = None,
    operations: Sequence[Operation] = (),
    changes: Sequence[str] = (),
) -> Settings:
    """A preset with what was said on the command line.

    Args:
        search: Fields of `SearchConfig`.
        ops: Names of the operations to keep, with commas between; identity always stays.
        exclude: Names of operations to leave out.
        operations: Own operations to add.
        changes: NAME=VALUE each, see `changed`.
    """
    start = preset_of(preset)
    space = SPACES[start.space]
    if operations:
        space = space.plus(*operations)
    if ops is not None:
        space = space.only("identity", *_names(ops))
    if exclude is not None:
        if "identity" in _names(exclude):
            raise ValueError("identity cannot be left out: every layer starts from it")
        space = space.without(*_names(exclude))
    proxy = start.proxy if model is None else dataclasses.replace(start.proxy, model=model)
    if epochs is not None:
        train = dataclasses.replace(proxy.train, epochs=epochs)
        proxy = dataclasses.replace(proxy, train=train, least_passes=0)
    settings = Settings(dataclasses.replace(start.search, **search), proxy, space)
    return changed(settings, *changes)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def changed(settings: Settings, *changes: str) -> Settings:
    """The settings after each `NAME=VALUE`: heldout=64, augment=false, train.lr=0.05.

    They are checked together, so that their order does not matter.
    """
    search, proxy, space = settings
    of_search, of_proxy, of_train = {}, {}, {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"a setting is given as NAME=VALUE, got {change!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text  # a word, such as bfloat16
        if name.startswith("train."):
            name = name.removeprefix("train.")
            of_train[name] = _fitting(proxy.train, name, value, "train.")
        elif name in ("augment", "least_passes"):
            of_proxy[name] = _fitting(proxy, name, value, "")
        else:
            of_search[name] = _fitting(search, name, value, "")
    train = dataclasses.replace(proxy.train, **of_train)
    if "epochs" in of_train:  # so many, unless both are given
        of_proxy = {"least_passes": 0, **of_proxy}
    proxy = dataclasses.replace(proxy, train=train, **of_proxy)
    return Settings(dataclasses.replace(search, **of_search), proxy, space)


_KINDS: Mapping[str, Any] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "None": type(None),
}


def _fitting(config: Any, name: str, value: object, prefix: str) -> Any:
    """The value of one field of the dataclass, if it is of the field's kind."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(config)}
    if name not in kinds:
        raise ValueError(f"no setting {prefix}{name!r}; there are {', '.join(kinds)}")
    parts = [part.strip() for part in kinds[name].split("|")]
    if value == "auto" and "None" in parts and "str" not in parts:
        value = None  # as the documentation writes it
    if isinstance(value, list) and kinds[name].startswith("tuple"):
        return tuple(value)
    fits = any(isinstance(value, _KINDS[part]) for part in parts if part in _KINDS)
    if not fits or (isinstance(value, bool) and "bool" not in parts):
        raise ValueError(f"{prefix}{name} should be {' or '.join(parts)}, got {value!r}")
    return float(value) if isinstance(value, int) and parts == ["float"] else value


def run_config(
    settings: Settings, *, fingerprint: str, source: Mapping[str, object]
) -> dict[str, object]:
    """What identifies a run: two with equal settings on equal data are the same run.

    Args:
        source: Where the data and the model came from, for `deepaa search --resume`.
    """
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
    proxy = dataclasses.asdict(settings.proxy)
    if not settings.proxy.least_passes:  # as in runs from before it was a setting
        del proxy["least_passes"]
    return {
        "search": dataclasses.asdict(settings.search),
        "proxy": proxy,
        "space": {"operations": operations, "levels": settings.space.levels},
        "fingerprint": fingerprint,
        "source": dict(source),
    }


def is_from_python(config: Mapping[str, Any]) -> bool:
    """Whether the settings of a search are those that Python gave it, and not the command."""
    return "on_bad_image" not in config.get("source", {})


def settings_of(config: Mapping[str, Any], operations: Sequence[Operation] = ()) -> Settings:
    """The settings that a run's config.json holds.

    Args:
        operations: Own operations of its space: JSON does not carry their kernels.
    """
    own = {operation.name: operation for operation in operations}
    try:
        names = {field.name for field in dataclasses.fields(SearchConfig)}
        if other := sorted(names ^ set(config["search"])):
            raise ValueError(f"its settings differ in {', '.join(other)}")
        proxy, space = dict(config["proxy"]), config["space"]
        known = tuple(own.get(op["name"]) or Operation(**op) for op in space["operations"])
        return Settings(
            SearchConfig(**config["search"]),
            ProxyConfig(**{**proxy, "train": TrainConfig(**proxy["train"])}),
            Space(known, space["levels"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"config.json is of another version of deepaa, which can go on with it: {error}"
        ) from error
