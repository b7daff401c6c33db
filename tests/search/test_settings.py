"""Settings: a preset, changes to it, JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from deepaa import CIFAR, Operation
from deepaa.policy import SPACES
from deepaa.search.settings import (
    PRESETS,
    ProxyConfig,
    SearchConfig,
    Settings,
    SettingsRequest,
)
from deepaa.train.config import TrainConfig

PAGE = Path(__file__).parents[2] / "docs/search.md"


def resolved(preset: str | None = None, **options: Any) -> Settings:
    return SettingsRequest(preset, **options).resolve()


def as_read(settings: Settings) -> dict[str, Any]:
    """The settings as config.json gives them back."""
    config: dict[str, Any] = json.loads(json.dumps(settings.to_json()))
    return config


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_come_back_from_json(preset: str) -> None:
    settings = resolved(preset, exclude="invert")
    config = as_read(settings)
    assert Settings.from_json(config) == settings
    assert as_read(Settings.from_json(config)) == config


def test_own_operations_come_back_with_their_kernel() -> None:
    own = Operation("fade", 0.0, 0.5, neutral=0.0, pil=lambda image, *rest: image)
    settings = resolved(operations=(own,), ops="rotate,fade")
    config = as_read(settings)
    assert Settings.from_json(config, [own]) == settings
    with pytest.raises(ValueError, match="unknown operation 'fade'"):
        Settings.from_json(config)


def test_a_config_of_another_version_is_refused() -> None:
    config = as_read(resolved())
    config["search"]["temperature"] = 1
    with pytest.raises(ValueError, match=r"does not fit this version.*temperature"):
        Settings.from_json(config)


def test_the_default_preset_follows_the_size_of_the_images() -> None:
    request = SettingsRequest(fields={"layers": 1})
    assert request.resolve() == resolved("fast", fields={"layers": 1})
    assert request.resolve(large=True) == resolved("imagenet", fields={"layers": 1})
    assert SettingsRequest("demo").resolve(large=True) == resolved("demo")


def test_changes() -> None:
    def changed(*changes: str) -> Settings:
        return resolved("fast", changes=changes)

    assert changed("heldout=64").search.heldout == 64
    assert changed("penalty=1").search.penalty == 1.0
    assert changed("layers=null").search.layers is None
    assert changed("precision=bfloat16").search.precision == "bfloat16"
    assert changed("deviation_draws=auto").search.deviation_draws is None
    stepped = changed("train.milestones=[3, 6]", "train.schedule=step")
    assert stepped.proxy.train.milestones == (3, 6)
    assert changed("augment=false").proxy.augment is False
    odd = changed("chains=139", "halves=false").search  # neither is wrong before the other
    assert (odd.chains, odd.halves) == (139, False)
    assert changed("train.lr=0.05").proxy.train.lr == 0.05
    assert changed("steps=5", "steps=6").search.steps == 6
    start = resolved("fast").proxy
    assert resolved("fast", model="resnet18", epochs=3).proxy == dataclasses.replace(
        start,
        model="resnet18",
        least_passes=0,
        train=dataclasses.replace(start.train, epochs=3),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("heldout", "NAME=VALUE, got 'heldout'"),
        ("held=3", "no setting 'held'; there are layers, max_layers"),
        ("train.rate=3", "no setting 'train.rate'; there are layers"),
        ("heldout=many", "heldout should be a whole number, got 'many'"),
        ("heldout=1.5", "heldout should be a whole number, got 1.5"),
        ("heldout=true", "heldout should be a whole number, got True"),
        ("tie_signs=1", "tie_signs should be true or false, got 1"),
        ("heldout=0", "heldout should be at least 1, got 0"),
    ],
)
def test_changes_that_make_no_sense(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolved("fast", changes=[change])


@pytest.mark.parametrize("errors", [0.0, 2.0])
@pytest.mark.parametrize("images", [1, 3, 40, 48, 75, 150, 250, 800, 1600, 35_000])
def test_few_images_have_fewer_layers(images: int, errors: float) -> None:
    """As many as have 16 pairs for each decision, of a third of the images."""
    config = SearchConfig(repeat_errors=errors)
    found = config.fitted_to(images)
    decisions = {n: 2 * n - 1 if errors else n for n in range(1, 7)}
    possible = [n for n in range(1, 7) if 16 * decisions[n] <= images // 3]
    assert found.max_layers == max(possible, default=1)
    assert found.decisions == decisions[found.max_layers]
    assert found.heldout == min(256, max(1, images // 3 // found.decisions))
    assert dataclasses.replace(found, max_layers=6, heldout=256) == config
    given = dataclasses.replace(config, layers=3).fitted_to(images)  # they are asked for
    assert given.layers == 3
    assert given.heldout == min(256, max(1, images // 3 // decisions[3]))
    small = dataclasses.replace(config, heldout=4).fitted_to(800)
    assert (small.heldout, small.max_layers) == (4, 6)


def test_the_space_can_be_chosen() -> None:
    names = [op.name for op in resolved("fast", ops="flip, rotate").space.operations]
    assert names == ["identity", "rotate", "flip"]
    assert resolved("fast", exclude="flip,invert").space == CIFAR.without("flip", "invert")
    with pytest.raises(ValueError, match="no operation 'flop' in this space; it has identity, she"):
        resolved("fast", exclude="flop")
    with pytest.raises(ValueError, match="identity cannot be left out"):
        resolved("fast", exclude="identity")


# docs/search.md


def _rows(heading: str) -> dict[str, list[str]]:
    """The table under a heading of the page, by its first column."""
    text = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "auto" if value is None else str(value)


def test_the_page_has_every_setting_with_its_default() -> None:
    rows = _rows("Settings")
    expected = {f.name: getattr(SearchConfig(), f.name) for f in dataclasses.fields(SearchConfig)}
    proxy = PRESETS["fast"].proxy
    expected |= {key: getattr(proxy, key) for key in ("augment", "least_passes", "model")}
    expected |= {
        f"train.{f.name}": getattr(proxy.train, f.name) for f in dataclasses.fields(TrainConfig)
    }
    del expected["train.seed"]  # the seed of the search
    assert {name: row[0] for name, row in rows.items()} == {
        name: _shown(value) for name, value in expected.items()
    }


def test_the_page_says_what_every_preset_changes() -> None:
    rows = _rows("Presets")
    assert list(rows) == list(PRESETS)
    plain = resolved("fast")
    start = {**_flat(SearchConfig()), **_flat(plain.proxy)}
    for name, preset in PRESETS.items():
        now = {**_flat(preset.search), **_flat(preset.proxy)}
        changes = {key: _shown(value) for key, value in now.items() if value != start[key]}
        found = dict(re.findall(r"`([\w.]+)` ([^,]+)", rows[name][1]))
        assert found == changes, name
        assert SPACES[rows[name][2]] == preset.space


def _flat(config: SearchConfig | ProxyConfig) -> dict[str, object]:
    found = dataclasses.asdict(config)
    train = found.pop("train", {})
    return {**found, **{f"train.{key}": value for key, value in train.items()}}


def test_who_says_how_many_epochs_gets_so_many() -> None:
    assert resolved("fast").proxy.least_passes == 180_000
    assert resolved("fast", epochs=3).proxy.least_passes == 0
    assert resolved("fast", changes=["train.epochs=3"]).proxy.least_passes == 0
    both = resolved("fast", changes=["least_passes=70", "train.epochs=3"]).proxy
    assert (both.least_passes, both.train.epochs) == (70, 3)
