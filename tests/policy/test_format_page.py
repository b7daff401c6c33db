"""docs/policy-format.md: its numbers, its table, and a reader written from its text alone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_text import loads

from deepaa.ops.rng import sample_keys
from deepaa.ops.space import BUILTIN, CIFAR, Operation
from deepaa.policy import dumps
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.policy.strict_json import MAX_BYTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policy-format.md").read_text("utf-8")
SECTIONS = {part[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)}


def cells(section: str) -> list[list[str]]:
    """The table of a section, without its two heading lines."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# Section 5 in plain Python, from the text; nothing of the package is used.

MASK = 2**64 - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def hashed(key: int, counter: int) -> int:
    return mix((mix(key & MASK) + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)


def thresholds(numbers: list[float]) -> list[int]:
    sums, total = [], 0.0
    for number in numbers:
        total += number
        sums.append(total)
    shares = [s / total for s in sums]
    return [2**53 if share >= 1 else math.floor(share * 2**53) for share in shares]


def chosen(numbers: list[float], word: int) -> int:
    return sum(t <= word for t in thresholds(numbers))


def rows_of(document: dict[str, Any], key: int, epoch: int) -> list[int]:
    stages = [phase["stages"] for phase in document["phases"] if phase["epoch"] <= epoch][-1]
    names = [document["operations"][operation]["name"] for operation, _ in document["rows"]]
    rows: list[int] = []
    for stage in stages:
        word = hashed(key, 256 * len(rows)) >> 11
        if "chains" in stage:
            chain = stage["chains"][chosen([c["weight"] for c in stage["chains"]], word)]
            for row, gate in chain["slots"]:
                is_open = hashed(key, 256 * len(rows) + 1) >> 11 < math.floor(gate * 2**53)
                rows.append(row if is_open else names.index("identity"))
        else:
            for layer in stage["layers"]:
                rows.append(chosen(layer, hashed(key, 256 * len(rows)) >> 11))
    return rows


def uniform(key: int, k: int, i: int) -> float:
    return (hashed(key, 256 * k + 2 + i) >> 40) / 2**24


EXAMPLE = re.findall(r"```json\n(.*?)```", SECTIONS["6"], flags=re.DOTALL)[0]


def test_the_example_is_canonical() -> None:
    assert dumps(loads(EXAMPLE)) == EXAMPLE


def test_the_thresholds_of_the_example() -> None:
    layers, chains = json.loads(EXAMPLE)["phases"][0]["stages"]
    expected = thresholds(layers["layers"][0])
    expected += thresholds([chain["weight"] for chain in chains["chains"]])
    for chain in chains["chains"]:
        expected += [math.floor(gate * 2**53) for _, gate in chain["slots"]]
    text = SECTIONS["6"].split("Thresholds of the layer:")[1].split("\n\n")[0]
    assert [int(number) for number in re.findall(r"\d+", text)] == expected
    stages = loads(EXAMPLE).phases[0].stages
    constants = [stages[0].constants[0], stages[1].constants[0], stages[1].constants[2]]
    assert [n for c in constants for n in c.flatten().tolist()] == expected


def test_the_draws_of_the_example() -> None:
    policy, document = loads(EXAMPLE), json.loads(EXAMPLE)
    table = cells("6")
    assert len(table) == 9
    for sample, key_text, k_text, choice, gate, row, uniforms in table:
        key, k = int(key_text), int(k_text)
        assert key == (hashed(7, 2) + int(sample)) & MASK
        assert key == sample_keys(7, 2, torch.tensor([int(sample)])).item() & MASK
        assert choice == ("" if k == 2 else str(hashed(key, 256 * k) >> 11))
        assert gate == ("" if k == 0 else str(hashed(key, 256 * k + 1) >> 11))
        assert int(row) == rows_of(document, key, 2)[k]
        numbers = [uniform(key, k, i) for i in range(2)] if uniforms else []
        assert uniforms == ", ".join(map(repr, numbers))
        assert policy.draw_one(key, 2)[k] == (int(row), numbers)


def test_the_words_about_the_example() -> None:
    (first, *_, last) = [rows_of(json.loads(EXAMPLE), int(line[1]), 2) for line in cells("6")]
    assert loads(EXAMPLE).table.rows[first[1]].magnitude == -15
    assert loads(EXAMPLE).table.rows[last[1]].operation.name == "identity"
    assert str(hashed(0, 0)) in SECTIONS["5"]


@pytest.mark.parametrize("source", ["schedule", "chains", "layers", "deepta"])
@pytest.mark.parametrize("epoch", [0, 5, 80])
def test_a_reader_written_from_the_text_draws_the_same(source: str, epoch: int) -> None:
    path = ROOT / "tests" / "golden" / f"policy_v1_{source}.json"
    policy = load_policy(path) if path.exists() else load_policy(source)
    document = json.loads(dumps(policy))
    keys = sample_keys(1, epoch, torch.arange(100))
    draw = policy.draw(keys, epoch)
    for n, key in enumerate(keys.tolist()):
        assert rows_of(document, key, epoch) == draw.choice[n].tolist()
        for k in range(draw.uniform.shape[1]):
            expected = [uniform(key, k, i) for i in range(draw.uniform.shape[2])]
            assert draw.uniform[n, k].tolist() == expected


def test_the_table_of_operations() -> None:
    found = {}
    for name, magnitude, options, _ in cells("4"):
        pairs = re.findall(r"`(\w+)` (\[.*?\]|\S+?)(?:,|$)", options)
        found[name.strip("`")] = (magnitude, {key: json.loads(value) for key, value in pairs})
    assert list(found) == list(BUILTIN)
    for name, spec in BUILTIN.items():
        magnitude, options = found[name]
        kind = "optional" if magnitude.startswith("none,") else "needed"
        assert spec.magnitude == ("" if magnitude == "none" else kind)
        assert options == json.loads(json.dumps(spec.options))


def test_the_sizes_in_the_text() -> None:
    assert MAX_BYTES == 16 << 20
    assert "16 MiB" in SECTIONS["2"]
    assert "at most 1000" in SECTIONS["2"]


def test_keys_are_those_the_text_names() -> None:
    document = json.loads(dumps(Policy.identity()))
    assert list(document) == [row[0].strip("`") for row in cells("2")]
    assert '`{"name", "low", "high", "neutral", "options"}`' in SECTIONS["2"]
    assert list(document["operations"][0]) == ["name", "low", "high", "neutral", "options"]


def test_boxes_follow_the_text() -> None:
    from deepaa.ops.resized_crop import resized_crop_box
    from deepaa.ops.rng import cutout_box

    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        u = [(x / 2**24) for x in torch.randint(2**24, (12,), generator=generator).tolist()]
        w, h = (int(x) for x in torch.randint(1, 300, (2,), generator=generator))
        options = CIFAR.operations[16].options
        central = 100 if u[3] < 0.5 else None
        settings = {**options, "central": central}
        del settings["fill"]
        for m in (None, 0.3):

            def edges(
                u: float, n: int, s: float, m: float | None = m, central: int | None = central
            ) -> list[int]:
                span = n if central is None else min(n, central)
                begin = (n - span) / 2 + u * span - s / 2
                start = math.floor(max(0, begin))
                return [start, math.floor(min(n, (begin if m is None else start) + s))]

            side = 16 if m is None else m * w
            (left, right), (top, bottom) = edges(u[0], w, side), edges(u[1], h, side)
            assert cutout_box(u, h, w, m, **settings) == (left, top, right, bottom)
        assert resized_crop_box(u, h, w, (0.08, 1.0), (3 / 4, 4 / 3)) == resized(u, h, w)
    assert Operation("resized_crop").options == {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}


def resized(u: list[float], height: int, width: int) -> tuple[int, int, int, int]:
    low, high = math.log(0.75), math.log(4 / 3)
    for i in range(10):
        a, b = divmod(math.floor(u[i] * 2**24), 4096)
        area = height * width * (0.08 + (1.0 - 0.08) * ((a + 0.5) / 4096))
        shape = math.exp(low + (high - low) * ((b + 0.5) / 4096))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return math.floor(u[10] * (width - w + 1)), math.floor(u[11] * (height - h + 1)), w, h
    w, h = width, height
    if width / height < 0.75:
        h = max(1, round(width / 0.75))
    if width / height > 4 / 3:
        w = max(1, round(height * (4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h
