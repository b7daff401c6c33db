"""Settings: a preset, changes to it, JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from deepaa import CIFAR, Operation
from deepaa.presets import PRESETS, ProxyConfig
from deepaa.run_settings import changed, chosen_settings, run_config, settings_of
from deepaa.search_config import SearchConfig
from deepaa.train import TrainConfig

PAGE = Path(__file__).parents[1] / "docs/search.md"
SOURCE = {"data": None}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_come_back_from_json(preset: str) -> None:
    settings = chosen_settings(preset, exclude="invert")
    config = run_config(settings, fingerprint="f", source=SOURCE)
    back = settings_of(json.loads(json.dumps(config)))
    assert back == settings
    assert run_config(back, fingerprint="f", source=SOURCE) == config


def test_own_operations_come_back_with_their_kernel() -> None:
    own = Operation("fade", 0.0, 0.5, neutral=0.0, pil=lambda image, *rest: image)
    settings = chosen_settings("fast", operations=[own], ops="rotate,fade")
    config = json.loads(json.dumps(run_config(settings, fingerprint="f", source=SOURCE)))
    assert settings_of(config, [own]) == settings
    with pytest.raises(ValueError, match="unknown operation 'fade'"):
        settings_of(config)


def test_a_config_of_another_version_is_refused() -> None:
    config: dict[str, Any] = json.loads(
        json.dumps(run_config(chosen_settings("fast"), fingerprint="f", source=SOURCE))
    )
    config["search"]["temperature"] = 1
    with pytest.raises(ValueError, match=r"of another version.*temperature"):
        settings_of(config)


def test_changes() -> None:
    start = chosen_settings("fast")
    assert changed(start, "heldout=64").search.heldout == 64
    assert changed(start, "penalty=1").search.penalty == 1.0
    assert changed(start, "layers=null").search.layers is None
    assert changed(start, "precision=bfloat16").search.precision == "bfloat16"
    assert changed(start, "deviation_draws=auto").search.deviation_draws is None
    stepped = changed(start, "train.milestones=[3, 6]", "train.schedule=step")
    assert stepped.proxy.train.milestones == (3, 6)
    assert changed(start, "augment=false").proxy.augment is False
    odd = changed(start, "chains=139", "halves=false").search  # neither is wrong before the other
    assert (odd.chains, odd.halves) == (139, False)
    assert changed(start, "train.lr=0.05").proxy.train.lr == 0.05
    assert chosen_settings("fast", changes=["steps=5", "steps=6"]).search.steps == 6
    assert chosen_settings("fast", model="resnet18", epochs=3).proxy == dataclasses.replace(
        start.proxy,
        model="resnet18",
        least_passes=0,
        train=dataclasses.replace(start.proxy.train, epochs=3),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("heldout", "NAME=VALUE, got 'heldout'"),
        ("held=3", "no setting 'held'; there are layers, max_layers"),
        ("train.rate=3", "no setting train.'rate'; there are epochs, batch"),
        ("heldout=many", "heldout should be int, got 'many'"),
        ("heldout=1.5", "heldout should be int, got 1.5"),
        ("heldout=true", "heldout should be int, got True"),
        ("tie_signs=1", "tie_signs should be bool, got 1"),
        ("heldout=0", "heldout should be at least 1, got 0"),
    ],
)
def test_changes_that_make_no_sense(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        chosen_settings("fast", changes=[change])


def test_the_space_can_be_chosen() -> None:
    names = [op.name for op in chosen_settings("fast", ops="flip, rotate").space.operations]
    assert names == ["identity", "rotate", "flip"]
    assert chosen_settings("fast", exclude="flip,invert").space == CIFAR.without("flip", "invert")
    with pytest.raises(ValueError, match="no operation 'flop' in this space; it has identity, she"):
        chosen_settings("fast", exclude="flop")
    with pytest.raises(ValueError, match="identity cannot be left out"):
        chosen_settings("fast", exclude="identity")


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
    plain = chosen_settings("fast")
    start = {**_flat(SearchConfig()), **_flat(plain.proxy)}
    for name, preset in PRESETS.items():
        now = {**_flat(preset.search), **_flat(preset.proxy)}
        changes = {key: _shown(value) for key, value in now.items() if value != start[key]}
        found = dict(re.findall(r"`([\w.]+)` ([^,]+)", rows[name][1]))
        assert found == changes, name
        assert rows[name][2] == preset.space


def _flat(config: SearchConfig | ProxyConfig) -> dict[str, object]:
    found = dataclasses.asdict(config)
    train = found.pop("train", {})
    return {**found, **{f"train.{key}": value for key, value in train.items()}}


def test_who_says_how_many_epochs_gets_so_many() -> None:
    assert chosen_settings("fast").proxy.least_passes == 180_000
    assert chosen_settings("fast", epochs=3).proxy.least_passes == 0
    assert chosen_settings("fast", changes=["train.epochs=3"]).proxy.least_passes == 0
    both = chosen_settings("fast", changes=["least_passes=70", "train.epochs=3"]).proxy
    assert (both.least_passes, both.train.epochs) == (70, 3)


def test_runs_from_before_least_passes_are_the_same_runs() -> None:
    now = run_config(chosen_settings("demo"), fingerprint="0", source={})
    before = json.loads(
        json.dumps(run_config(chosen_settings("demo", epochs=10), fingerprint="0", source={}))
    )
    assert now["proxy"]["least_passes"] == 20_000  # type: ignore[index]
    assert "least_passes" not in before["proxy"]
    again = run_config(settings_of(before, []), fingerprint="0", source={})
    assert json.loads(json.dumps(again)) == before
