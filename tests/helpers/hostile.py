"""Policy files that are small on disk and try to be large in memory, or slow."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from deepaa.policy import dumps, load_policy
from deepaa.policy.foreign import PBA_NAMES

IDENTITY = {"name": "identity", "low": None, "high": None, "neutral": None, "options": {}}


def document(
    operations: Sequence[Any], rows: Sequence[Any], phases: Sequence[Any], **info: str
) -> bytes:
    """The text of a policy file."""
    head = {"format": "deepaa-policy", "version": 1, "info": info}
    parts = {"operations": operations, "rows": rows, "phases": phases}
    return json.dumps({**head, **parts}).encode()


def layers(*probabilities: Sequence[float]) -> list[Any]:
    """The one phase of a policy of layers."""
    return [{"epoch": 0, "stages": [{"layers": probabilities}]}]


def operation(
    name: str, low: float | None = None, high: float | None = None, **options: Any
) -> Any:
    """An operation as a file has it."""
    return {"name": name, "low": low, "high": high, "neutral": None, "options": options}


def each_once(count: int) -> list[float]:
    """A layer of equal shares."""
    return [1 / count] * count


def npz(compressed: bool = True, **changed: Any) -> bytes:
    """An archive of the authors' form with some arrays replaced."""
    rows = len(changed.get("ops", [0]))
    arrays = {
        "policy_probs": np.full((1, rows), 1 / rows, np.float32),
        "ops": np.zeros((rows, 1), np.int32),
        "mags": np.zeros((rows, 1), np.int32),
        "l_mags": np.array(13),
        "op_names": np.array(["Identity:(0.0,,1.0)", "Rotate:(-30.0,,30.0)"]),
    }
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **{**arrays, **changed})
    return stream.getvalue()


def _crops(count: int) -> bytes:
    wide = [operation("crop", pad=4096 - i, fill=i % 256) for i in range(count)]
    return document(wide, [[i, None] for i in range(count)], layers(each_once(count)))


def _resized_crops(kinds: int, count: int) -> bytes:
    listed = [operation("resized_crop", scale=[0.01 + i / 10**6, 1.0]) for i in range(kinds)]
    rows = [[i % kinds, None] for i in range(count)]
    return document(listed, rows, layers(each_once(count)))


def _options(count: int) -> bytes:
    listed = [operation("cutout", size=i) for i in range(count)]
    return document(listed, [[i, None] for i in range(count)], layers(each_once(count)))


def _rotations(count: int, depth: int) -> bytes:
    rows = [[0, i * 30 / count] for i in range(count)]
    table = layers(*[each_once(count)] * depth)
    return document([operation("rotate", -30, 30)], rows, table)


def _chains(count: int, slots: int, phases: int = 1) -> bytes:
    rows = [[0, i] for i in range(30)]
    chain = {"weight": 1 / count, "slots": [[i % 30, 1] for i in range(slots)]}
    stage = {"chains": [chain] * count}
    listed = [{"epoch": i, "stages": [stage]} for i in range(phases)]
    return document([operation("rotate", -30, 30)], rows, listed)


def _archive_of_many_names(count: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for i in range(count):
            archive.writestr(f"{i:x}", b"")
    return stream.getvalue()


def _log(lines: int, epoch: Callable[[int], int]) -> bytes:
    flat = [n for j in range(2 * len(PBA_NAMES)) for n in (5, 1 + j % 9)]
    listed = [f"['{i + 1}', '{i}', 0, {epoch(i)}, {flat}, {flat}]" for i in range(lines)]
    return "\n".join(listed).encode()


def _signs(count: int, depth: int) -> bytes:
    return json.dumps([[["Rotate", 0.5, 0.1 + 0.0001 * i]] * depth for i in range(count)]).encode()


@cache
def hostile_policies() -> Mapping[str, bytes]:
    """Files by name; a reader may refuse them, or read them within its limits."""
    text = {"a": "\U0001f600" + "a" * (15 << 20)}
    return {
        "names-repeated.npz": npz(
            op_names=np.array(["Rotate:(-30.0,,30.0)"] * 5000), l_mags=np.array(10_000)
        ),
        "levels.npz": npz(l_mags=np.array(10_000)),
        "rows.npz": npz(
            ops=np.zeros((8_000_000, 1), np.int8), mags=np.zeros((8_000_000, 1), np.int8)
        ),
        "rows-at-limit.npz": npz(ops=np.ones((10_000, 1), np.int8), mags=np.ones((10_000, 1), int)),
        "empty-names.npz": npz(op_names=np.zeros(3_000_000, "U1")),
        "long-name.npz": npz(op_names=np.array(["x" * 15_000_000])),
        "shares.npz": npz(policy_probs=np.ones((8_000_000, 1), np.float32)),
        "entries.npz": _archive_of_many_names(60_000),
        "crops.json": _crops(200),
        "crops-at-limit.json": _crops(1000),
        "resized-crops.json": _resized_crops(1, 10_000),
        "resized-crop-kinds.json": _resized_crops(64, 10_000),
        "resized-crop-many-kinds.json": _resized_crops(1000, 10_000),
        "options.json": _options(1000),
        "options-many.json": _options(20_000),
        "zeros.json": b"[" + b"0," * (8 << 20) + b"0]",
        "zeros-at-limit.json": b"[" + b"0," * 499_990 + b"0]",
        "objects.json": b"[" + b'{"a":0},' * 240_000 + b"0]",
        "texts.json": b"[" + '"é",'.encode() * 490_000 + b"0]",
        "lists.json": b"[" + b"[0]," * 240_000 + b"0]",
        "info.json": document([IDENTITY], [[0, None]], layers([1.0]), **text),
        "info-unicode.json": json.dumps({"sub_policies": [], **text}, ensure_ascii=False).encode(),
        "option-long.json": document(
            [operation("cutout", fill=[0] * 400_000)], [[0, None]], layers([1.0])
        ),
        "rows.json": _rotations(10_000, 45),
        "rows-many.json": _rotations(20_000, 1),
        "layers.json": _rotations(450, 1000),
        "chains.json": _chains(50_000, 2),
        "slots.json": _chains(150, 999),
        "phases.json": _chains(40, 2, 1000),
        "phases-many.json": _chains(1, 1, 20_000),
        "signs.json": _signs(5_000, 12),
        "signs-few.json": _signs(100, 12),
        "log.txt": _log(200, lambda i: i),
        "log-long.txt": _log(10_000, lambda i: min(i, 199)),
    }


def real_policies() -> Mapping[str, bytes]:
    """Files as large as methods write them."""
    return {
        "2250-chains.json": _chains(2250, 2),
        "200-phases.json": _chains(40, 2, 200),
        "uniformaugment.json": dumps(load_policy("uniformaugment")).encode(),
        "deepta.json": dumps(load_policy("deepta:20")).encode(),
        "schedule.txt": _log(17, lambda i: 10 * i),
    }
