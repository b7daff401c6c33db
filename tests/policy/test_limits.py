"""Small files that would be large in memory: counted limits, and what they cost at most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hostile import document, hostile_policies, layers, operation, real_policies

from deepaa.ops import Operation, Table
from deepaa.policy import Layers, Policy, PolicyFileError, dumps, load_policy
from deepaa.policy.format import save_policy
from deepaa.policy.load import read_policy_text
from deepaa.policy.strict_json import (
    MAX_BYTES,
    MAX_CHAINS,
    MAX_CROPS,
    MAX_OPERATIONS,
    MAX_PARTS,
    MAX_PHASES,
    MAX_ROWS,
)

MEGABYTES, SECONDS = 300, 2.0
READ = """
import json, resource, sys, time
import torch
from PIL import Image
from deepaa import DeepAutoAugment
from deepaa.policy import load_policy
small, large = (torch.zeros(4, 3, side, side, dtype=torch.uint8) for side in (32, 224))
DeepAutoAugment(load_policy("deepta"))(small)
def use(path):
    began, outcome = time.process_time(), "read"
    try:
        augment = DeepAutoAugment(load_policy(path))
        for images in (small, Image.new("RGB", (32, 32)), large):
            augment(images)
    except ValueError as error:
        outcome = str(error)
    return outcome, time.process_time() - began
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
found = {path: use(path) for path in sys.argv[1:]}
print(json.dumps([peak() - before, found]))
"""


def measured(folder: Path, files: dict[str, bytes]) -> tuple[float, dict[str, tuple[str, float]]]:
    """Megabytes beyond the imported package, and the outcome and CPU seconds of each file."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    paths = [str(folder / name) for name in files]
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True
    )
    megabytes, found = json.loads(done.stdout)
    return megabytes, {Path(path).name: tuple(result) for path, result in found.items()}


def test_what_methods_write_is_read(tmp_path: Path) -> None:
    megabytes, found = measured(tmp_path, dict(real_policies()))
    assert {outcome for outcome, _ in found.values()} == {"read"}
    assert megabytes < MEGABYTES


@pytest.mark.slow
def test_no_file_takes_much_memory_or_time(tmp_path: Path) -> None:
    files = dict(hostile_policies())
    megabytes, found = measured(tmp_path, files)
    assert megabytes < MEGABYTES
    assert {name: took for name, (_, took) in found.items() if took > SECONDS} == {}
    outcomes = {name: outcome for name, (outcome, _) in found.items() if outcome != "read"}
    for name, outcome in outcomes.items():  # each is one line that names the file
        assert outcome.startswith(f"{tmp_path / name}: "), outcome
        assert "\n" not in outcome
        assert len(outcome) < 700
    # the limits are no wall around nothing: half of these files are read
    assert len(files) / 3 < len(outcomes) < len(files) * 2 / 3


def test_a_file_of_a_kilobyte_may_not_repeat_its_names(tmp_path: Path) -> None:
    for name, message in {
        "names-repeated.npz": "array 'op_names': 5,000 entries; at most 100 are read",
        "rows.npz": "array 'policy_probs': 32,000,000 bytes; at most 8,388,608 are read",
    }.items():
        (tmp_path / name).write_bytes(hostile_policies()[name])
        with pytest.raises(PolicyFileError, match=message):
            load_policy(tmp_path / name)


# Each limit: what is at it is read, and one more is not


def read(tmp_path: Path, data: bytes) -> Policy:
    (tmp_path / "p.json").write_bytes(data)
    return load_policy(tmp_path / "p.json")


def rows(count: int) -> bytes:
    listed = [[0, 0.001 * (i % 30_000)] for i in range(count)]
    return document([operation("rotate", -30, 30)], listed, layers([1.0] + [0.0] * (count - 1)))


def operations(count: int) -> bytes:
    listed = [operation("cutout", size=i) for i in range(count)]
    return document(listed, [[i, None] for i in range(count)], layers([1.0] + [0.0] * (count - 1)))


def crops(count: int) -> bytes:
    listed = [operation("resized_crop", scale=[0.1 + i / 1000, 1.0]) for i in range(count)]
    return document(listed, [[i, None] for i in range(count)], layers([1.0] + [0.0] * (count - 1)))


def phases(count: int) -> bytes:
    listed = [{"epoch": i, "stages": []} for i in range(count)]
    return document([operation("invert")], [[0, None]], listed)


@pytest.mark.parametrize(
    ("make", "limit", "message"),
    [
        (rows, MAX_ROWS, 'key "rows": 10,001 entries; at most 10,000 are read'),
        (operations, MAX_OPERATIONS, 'key "operations": 1,001 entries; at most 1,000 are read'),
        (crops, MAX_CROPS, "65 different resized crops; at most 64 are read"),
        (phases, MAX_PHASES, 'key "phases": 1,001 entries; at most 1,000 are read'),
    ],
)
def test_limits(tmp_path: Path, make: object, limit: int, message: str) -> None:
    assert callable(make)
    policy = read(tmp_path, make(limit))
    save_policy(policy, tmp_path / "again.json")
    assert load_policy(tmp_path / "again.json").equals(policy)
    with pytest.raises(PolicyFileError, match=message):
        read(tmp_path, make(limit + 1))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    table = Table((Operation("rotate", -30, 30), 0.001 * i) for i in range(MAX_ROWS + 1))
    policy = Policy.uniform(table, 1)
    with pytest.raises(PolicyFileError, match="10,001 rows; a policy file has at most 10,000"):
        policy.save(tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()
    deep = Policy.uniform(Table(table.rows[:1000]), 600)
    with pytest.raises(PolicyFileError, match="numbers, lists and objects; a policy file has at m"):
        deep.save(tmp_path / "p.json")


def test_chains_of_all_phases_are_counted(tmp_path: Path) -> None:
    chain = {"weight": 1 / 60, "slots": [[0, 1]]}
    listed = [{"epoch": i, "stages": [{"chains": [chain] * 60}]} for i in range(900)]
    assert MAX_CHAINS > 900 * 60
    assert read(tmp_path, document([operation("invert")], [[0, None]], listed[:100])).depth == 1
    text = document([operation("invert")], [[0, None]], listed)
    assert sum(map(text.count, (b",", b"[", b"{"))) < MAX_PARTS
    assert len(read(tmp_path, text).phases) == 900


def test_both_signs_of_long_chains_are_counted() -> None:
    policy = read_policy_text(hostile_policies()["signs-few.json"].decode(), "x").policy
    with pytest.raises(ValueError, match="more than 500,000 slots with both signs"):
        policy.symmetric()


def test_the_page_of_the_format_has_these_limits() -> None:
    page = (Path(__file__).parents[2] / "docs/policy-format.md").read_text()
    for line in (
        f"| bytes | {MAX_BYTES >> 20} MiB |",
        f"opening brackets of its text | {MAX_PARTS:,} |",
        f"| operations | {MAX_OPERATIONS:,} |",
        f"| resized crops with other options | {MAX_CROPS} |",
        f"| rows | {MAX_ROWS:,} |",
        f"| phases | {MAX_PHASES:,} |",
        f"| chains of all phases | {MAX_CHAINS:,} |",
    ):
        assert line in page, line


def test_long_texts_make_no_long_errors(tmp_path: Path) -> None:
    for options in ({"fill": "x" * 10**6}, {"x" * 10**6: 1}):
        with pytest.raises(PolicyFileError) as caught:
            read(tmp_path, document([operation("cutout", **options)], [[0, None]], layers([1.0])))
        assert len(str(caught.value)) < 800


def test_layers_stay_exact_through_the_quick_check() -> None:
    table = Table((Operation("rotate", -30, 30), float(i)) for i in range(4))
    policy = Policy(table, Layers(torch.tensor([[0.1, 0.2, 0.7, 0]], dtype=torch.float64)))
    assert read_policy_text(dumps(policy), "x").policy.equals(policy)
