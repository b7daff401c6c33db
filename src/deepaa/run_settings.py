"""The settings of a search run as JSON, and back: what `--resume` needs to go on alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from deepaa.presets import ProxyConfig
from deepaa.search_config import SearchConfig
from deepaa.space import Operation, Space
from deepaa.train import TrainConfig


def run_config(
    *,
    search: SearchConfig,
    proxy: ProxyConfig,
    space: Space,
    fingerprint: str,
    source: Mapping[str, object],
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
        for op in space.operations
    ]
    return {
        "search": dataclasses.asdict(search),
        "proxy": dataclasses.asdict(proxy),
        "space": {"operations": operations, "levels": space.levels},
        "fingerprint": fingerprint,
        "source": dict(source),
    }


def settings_of(config: Mapping[str, Any]) -> tuple[SearchConfig, ProxyConfig, Space]:
    """The settings that a run's config.json holds."""
    try:
        proxy = dict(config["proxy"])
        space = config["space"]
        operations = tuple(Operation(**operation) for operation in space["operations"])
        return (
            SearchConfig(**config["search"]),
            ProxyConfig(**{**proxy, "train": TrainConfig(**proxy["train"])}),
            Space(operations, space["levels"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"config.json is not one of this version: {error}") from error
