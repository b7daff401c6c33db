"""Policy files of every kind, made by chance: most of them are policies, the others nearly."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any, NamedTuple

import numpy as np
from fuzzing import damaged, flipped, spoiled
from hostile import document

from deepaa.ops import BUILTIN
from deepaa.policy.foreign import PBA_NAMES

RANGES = {
    name: (max(spec.limits[0], -1000.0), min(spec.limits[1], 1000.0))
    for name, spec in BUILTIN.items()
    if spec.magnitude
}
AUTHORS = {
    "Identity": None,
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "TranslateX": (-0.45, 0.45),
    "Rotate": (-30.0, 30.0),
    "AutoContrast": None,
    "Invert": None,
    "Solarize": (0.0, 256.0),
    "Posterize": (4.0, 8.0),
    "Brightness": (0.1, 1.9),
    "RandFlip": None,
    "RandCutout": None,
    "RandCrop": None,
}


class Mutant(NamedTuple):
    """A policy file."""

    name: str
    data: bytes


def policy_mutant(seed: int) -> Mutant:
    """The mutant of a seed: two thirds are JSON of this package, the rest files of others."""
    random_ = random.Random(seed)
    kind = random_.randrange(9)
    if kind < 5:
        return _json("p.json", _document(random_), random_)
    if kind == 5:
        return _json("list.json", _sub_policies(random_), random_)
    if kind == 6:
        return _log(random_)
    return Mutant("p.npz", _archive(random_))


def _json(name: str, value: Any, random_: random.Random) -> Mutant:
    fate = random_.random()
    if fate < 0.35:
        value = damaged(random_, value)
    text = json.dumps(value)
    if fate > 0.93:
        text = spoiled(random_, text)
    return Mutant(name, text.encode("utf-8", "surrogatepass"))


def _shares(random_: random.Random, count: int) -> list[float]:
    """Probabilities, some of them 0, that sum to 1."""
    numbers = [random_.choice((0.0, random_.random(), 1e-12)) for _ in range(count)]
    numbers[random_.randrange(count)] += 1.0
    return [number / sum(numbers) for number in numbers]


def _operation(random_: random.Random) -> dict[str, Any]:
    name = random_.choice(list(BUILTIN))
    spec = BUILTIN[name]
    low = high = neutral = None
    if spec.magnitude == "needed" or (spec.magnitude and random_.random() < 0.5):
        first, last = RANGES[name]
        low, high = sorted((random_.uniform(first, last), random_.choice((first, last))))
        if low == high:
            low, high = first, last
        if random_.random() < 0.3:
            low, high, neutral = -last, last, 0.0
            if first > -last:
                low, neutral = first, first
    options = {key: _option(random_, key) for key in spec.options if random_.random() < 0.5}
    return {"name": name, "low": low, "high": high, "neutral": neutral, "options": options}


def _option(random_: random.Random, key: str) -> Any:
    if key == "fill":
        return random_.choice((0, 255, [1, 2, 3], [7]))
    if key == "scale":
        return random_.choice(([0.08, 1.0], [0.5, 0.5], [1e-9, 1e-9], [1, 1]))
    if key == "ratio":
        return random_.choice(([0.75, 1.3], [1.0, 1.0], [1e-6, 100], [99, 100]))
    if key == "central":
        return random_.choice((None, "pixel", 1, 300))
    return random_.choice((0, 1, 5, 300))


def _row(random_: random.Random, operations: list[dict[str, Any]]) -> list[Any]:
    index = random_.randrange(len(operations))
    low, high = operations[index]["low"], operations[index]["high"]
    edge = (low, high) if low is None else (low, high, low + (high - low) * random_.random())
    return [index, random_.choice(edge)]


def _document(random_: random.Random) -> dict[str, Any]:
    operations = [_operation(random_) for _ in range(random_.choice((1, 2, 3, 6)))]
    operations.append(
        {"name": "identity", "low": None, "high": None, "neutral": None, "options": {}}
    )
    rows = [_row(random_, operations) for _ in range(random_.choice((1, 2, 5, 20)))]
    rows.append([len(operations) - 1, None])
    epochs = sorted({0, *(random_.randrange(1, 50) for _ in range(random_.choice((0, 0, 0, 2))))})
    phases = [{"epoch": e, "stages": _stages(random_, len(rows))} for e in epochs]
    text = random_.choice(("me", "", "a\nb", "\x1b[31m", "é"))
    return json.loads(document(operations, rows, phases, by=text))


def _stages(random_: random.Random, rows: int) -> list[Any]:
    stages = []
    for _ in range(random_.choice((0, 1, 1, 1, 2))):
        if random_.random() < 0.6:
            depth = random_.choice((0, 1, 2, 4))
            stages.append({"layers": [_shares(random_, rows) for _ in range(depth)]})
            continue
        slots = random_.choice((1, 2, 3))
        gates = (0, 1, 0.5, 1e-20)
        chains = [
            {
                "weight": weight,
                "slots": [[random_.randrange(rows), random_.choice(gates)] for _ in range(slots)],
            }
            for weight in _shares(random_, random_.choice((1, 2, 7)))
        ]
        stages.append({"chains": chains})
    return stages


def _sub_policies(random_: random.Random) -> Any:
    names = ["ShearX", "rotate", "TranslateY", "Invert", "cutout", "auto-contrast", "Posterize"]
    chains = [
        [
            [random_.choice(names), random_.random(), random_.random()]
            for _ in range(random_.choice((1, 2, 2, 3)))
        ]
        for _ in range(random_.choice((1, 3, 10)))
    ]
    return {"sub_policies": chains, "by": "me"} if random_.random() < 0.3 else chains


def _log(random_: random.Random) -> Mutant:
    def numbers() -> list[int]:
        return [random_.choice((0, 0, 0, 1, 10)) for _ in range(4 * len(PBA_NAMES))]

    lines: list[list[Any]] = []
    old, epoch = numbers(), 0
    for i in range(random_.choice((1, 2, 4))):
        new, epoch = numbers(), epoch + random_.randrange(0, 40)
        lines.append([str(i + 1), str(i), epoch, epoch, old, new])
        old = new
    if random_.random() < 0.35:
        lines = damaged(random_, lines)
    listed = lines if isinstance(lines, list) else [lines]
    text = "\n".join(json.dumps(line).replace('"', "'") for line in listed)
    if random_.random() < 0.05:
        text = spoiled(random_, text or "[]")
    return Mutant("log.txt", text.encode("utf-8", "surrogatepass"))


# Archives


def _arrays(random_: random.Random) -> dict[str, Any]:
    names = random_.sample(list(AUTHORS), random_.randrange(1, len(AUTHORS)))
    levels, count = random_.choice((2, 13, 13, 10_000)), random_.choice((1, 5, 40))
    rows = [(random_.randrange(len(names)), random_.randrange(levels)) for _ in range(count)]
    limits = [AUTHORS[name] for name in names]
    texts = [
        n if x is None else f"{n}:({x[0]},,{x[1]})" for n, x in zip(names, limits, strict=True)
    ]
    depth = random_.choice((1, 2, 6))
    kind = random_.choice((np.int8, np.int32, np.uint64))
    high = np.array([row[1] for row in rows])
    return {
        "policy_probs": np.array([_shares(random_, count) for _ in range(depth)], np.float32),
        "ops": np.array([row[0] for row in rows], kind)[:, None],
        "mags": high[:, None],
        "l_mags": np.array(levels),
        "op_names": np.array(texts),
    }


def _archive(random_: random.Random) -> bytes:
    arrays, fate = _arrays(random_), random_.random()
    if fate < 0.35:
        key = random_.choice(list(arrays))
        arrays = _damaged_arrays(random_, arrays, key)
    stream = io.BytesIO()
    save: Any = np.savez_compressed if random_.random() < 0.5 else np.savez
    save(stream, **arrays)
    data = stream.getvalue()
    if fate > 0.95:
        return flipped(random_, data)
    if fate > 0.9:
        return other_array_file(random_, data)
    return data


def _damaged_arrays(random_: random.Random, arrays: dict[str, Any], key: str) -> dict[str, Any]:
    array = arrays[key]
    changed = random_.choice(
        (
            lambda: array.astype(object),
            lambda: array.astype("U7"),
            lambda: np.zeros(array.shape),
            lambda: np.zeros((0, *array.shape[1:]), array.dtype),
            lambda: array.reshape(-1)[:1],
            lambda: array.reshape(1, *array.shape),
            lambda: np.concatenate([array.reshape(-1)] * 3),
            lambda: np.array(random_.choice((np.nan, -1, 2**40, 0, 1e300))),
            lambda: np.full(array.shape, random_.choice((np.nan, -1.0, 0.5, np.inf))),
            lambda: array.T,
        )
    )
    fate = random_.randrange(4)
    if fate == 0:
        return {name: value for name, value in arrays.items() if name != key}
    if fate == 1:
        return {**arrays, "\x1b[2Jx": np.zeros(2), key: changed()}
    return {**arrays, key: changed()}


def other_array_file(random_: random.Random, data: bytes) -> bytes:
    """The archive with one array's own file changed, and sums that fit."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(stream, "w") as target:
        chosen = random_.choice(source.namelist())
        for name in source.namelist():
            content = source.read(name)
            if name == chosen:
                content = _other_head(random_, content[:128]) + content[128:]
            target.writestr(name, content, random_.choice((0, 8, 12)))
    return stream.getvalue()


def _other_head(random_: random.Random, head: bytes) -> bytes:
    return random_.choice(
        (
            lambda: head.replace(b"(", b"(9", 1),
            lambda: head.replace(b"<", b"|", 1),
            lambda: flipped(random_, head),
            lambda: head.replace(b"False", b"True ", 1),
            lambda: b"",
        )
    )()
