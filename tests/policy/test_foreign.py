"""The authors' .npz, sub-policy lists and PBA's schedules, made here and as published."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import pickle
import random
import re
import zipfile
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frequencies import Step, check_counts, our_name, outcomes, step
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageEnhance, ImageOps
from policy_text import loads

from deepaa.ops.apply import run_pil
from deepaa.ops.space import BUILTIN, CIFAR, IMAGENET, Operation, Row, Space
from deepaa.policy import PolicyFileError, dumps, load_policy
from deepaa.policy.foreign import chances, is_log, read_log, read_npz
from deepaa.policy.load import compared_policy
from deepaa.policy.policy import Policy

# fmt: off
AUTHORS_NAMES = [
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "AutoContrast", "Invert",
    "Equalize", "Solarize", "Posterize", "Contrast", "Color", "Brightness", "Sharpness", "RandFlip",
    "RandCutout",
]
# fmt: on
LAST = {"cifar": "RandCrop", "imagenet": "RandResizeCrop_imagenet"}


# The authors' archives


def authors(kind: str = "cifar", layers: int = 2, seed: int = 0) -> dict[str, Any]:
    """Arrays as in the authors' files, with random layers."""
    ops, mags = [], []
    for i, operation in enumerate(CIFAR.operations):
        ranged = operation.low is not None
        grid = np.linspace(operation.low, operation.high, 13) if ranged else []
        levels = [k for k, m in enumerate(grid) if abs(m - operation.neutral) > 1e-9]
        ops += [i] * max(1, len(levels))
        mags += levels or [6]
    names = [
        f"{name}:({op.low},,{op.high})" if op.low is not None else f"{name}:(0.0,,1.0)"
        for name, op in zip([*AUTHORS_NAMES, LAST[kind]], CIFAR.operations, strict=True)
    ]
    p = np.random.default_rng(seed).random((layers, 139)).astype(np.float32)
    return {
        "policy_probs": p / p.sum(1, keepdims=True),
        "l_ops": np.array(18),
        "l_mags": np.array(13),
        "ops": np.array(ops, np.int32)[:, None],
        "mags": np.array(mags, np.int32)[:, None],
        "op_names": np.array(names),
    }


def packed(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(("kind", "space"), [("cifar", CIFAR), ("imagenet", IMAGENET)])
def test_npz(kind: str, space: Space, tmp_path: Path) -> None:
    arrays = authors(kind)
    path = tmp_path / "policy.npz"
    path.write_bytes(packed(arrays))
    policy = load_policy(str(path))
    assert policy.table == space.table
    assert policy.depth == 2
    expected = arrays["policy_probs"].astype(np.float64)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(policy.row_probabilities().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(policy.row_probabilities().sum(1).numpy(), 1.0, atol=1e-15)
    # the name of the file does not matter
    assert load_policy(path.rename(tmp_path / "policy")).equals(policy)
    assert loads(dumps(policy)).equals(policy)


def test_npz_with_another_order_and_number_of_levels() -> None:
    arrays = authors()
    arrays["l_mags"] = np.array(31)
    arrays["ops"], arrays["mags"] = np.array([[5], [0], [13]]), np.array([[30], [15], [1]])
    arrays["policy_probs"] = np.array([[0.5, 0.25, 0.25]], np.float32)
    table = read_npz(packed(arrays), "x").table
    assert [str(row.transformation) for row in table.rows] == [
        "rotate 30",
        "identity",
        "brightness 0.16",
    ]


def test_imagenet_cutout_is_60_pixels() -> None:
    for name in ("RandCutout", "RandCutout60"):
        arrays = authors("imagenet")
        arrays["op_names"] = np.array([n.replace("RandCutout", name) for n in arrays["op_names"]])
        rows = read_npz(packed(arrays), "x").table.rows
        assert rows[137].operation.options == {
            "size": 60,
            "fill": (125, 123, 114),
            "central": 256,
            "min_side": 121,
        }


def change(key: str, index: Any, value: Any) -> dict[str, Any]:
    arrays = authors()
    arrays[key] = arrays[key].copy()
    arrays[key][index] = value
    return arrays


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "nan": (
        change("policy_probs", (1, 5), np.nan),
        "'policy_probs': layer 2: holds a value that is",
    ),
    "negative": (
        change("policy_probs", (0, 5), -0.1),
        "'policy_probs': layer 1: holds a value that",
    ),
    "infinite": (change("policy_probs", (0, 5), np.inf), "layer 1: holds a value that is no"),
    "sum": (change("policy_probs", (1, 5), 0.5), "'policy_probs': layer 2: sums to 1.4"),
    "narrow": (
        {**authors(), "policy_probs": np.full((2, 3), 1 / 3, np.float32)},
        "'policy_probs': has shape (2, 3), expected (layers, 139)",
    ),
    "flat": ({**authors(), "policy_probs": np.full(139, 1 / 139)}, "has shape (139,)"),
    "many_layers": (
        {**authors(), "policy_probs": np.full((1001, 139), 1 / 139)},
        "'policy_probs': 1,001 layers; a policy has at most 1,000",
    ),
    "integers": (
        {**authors(), "policy_probs": np.ones((2, 139), int)},
        "'policy_probs': has type int64",
    ),
    "ops_range": (change("ops", (3, 0), 18), "'ops': entries should be from 0 to 17"),
    "ops_negative": (change("ops", (3, 0), -1), "'ops': entries should be from 0 to 17"),
    "ops_shape": (
        {**authors(), "ops": np.zeros((2, 70), np.int32)},
        "'ops': has shape (2, 70), expected (rows, 1)",
    ),
    "mags_range": (change("mags", (3, 0), 13), "'mags': entries should be from 0 to 12"),
    "mags_short": (
        {**authors(), "mags": np.zeros((100, 1), np.int32)},
        "'mags': has shape (100, 1), expected (rows, 1), as many in both",
    ),
    "no_rows": (
        {
            **authors(),
            "ops": np.zeros((0, 1), int),
            "mags": np.zeros((0, 1), int),
            "policy_probs": np.zeros((1, 0)),
        },
        "'ops': a table needs at least one row",
    ),
    "levels": ({**authors(), "l_mags": np.array(1)}, "'l_mags': expected one number of levels"),
    "levels_list": ({**authors(), "l_mags": np.array([13, 13])}, "'l_mags': expected one number"),
    "unknown_name": (
        change("op_names", 3, "Swirl:(0.0,,1.0)"),
        "'op_names': unknown operation \"Swirl:(0.0,,1.0)\"; known are identity, shear_x,",
    ),
    "other_range": (
        change("op_names", 1, "ShearX:(-0.5,,0.5)"),
        "'op_names': \"ShearX:(-0.5,,0.5)\" has a range other than -0.3 to 0.3",
    ),
    "names_table": (
        {**authors(), "op_names": authors()["op_names"].reshape(2, 9)},
        "'op_names': has shape (2, 9)",
    ),
    "missing": (
        {k: v for k, v in authors().items() if k != "ops"},
        "array 'ops' is missing; the file has policy_probs, l_ops, l_mags, mags, op_names",
    ),
    "objects": (
        {**authors(), "op_names": authors()["op_names"].astype(object)},
        "'op_names': holds Python objects, which are never unpickled",
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays(name: str, tmp_path: Path) -> None:
    arrays, message = BAD_ARRAYS[name]
    path = tmp_path / f"{name}.npz"
    path.write_bytes(packed(arrays))
    with pytest.raises(PolicyFileError, match=re.escape(message)) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: array ")


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04", packed(authors())[:-100]])
def test_not_an_archive(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    path.write_bytes(data)
    with pytest.raises(PolicyFileError, match=r"policy\.npz: not an \.npz file, or a damaged one"):
        load_policy(path)


def repacked(key: str, data: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    """An archive in which one array's file is replaced."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as out:
        for name, array in authors().items():
            part = io.BytesIO()
            np.save(part, array)
            out.writestr(f"{name}.npy", data if name == key else part.getvalue())
    return buffer.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    part = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        part, {"shape": shape, "fortran_order": False, "descr": "<f4"}
    )
    return part.getvalue()


def test_an_array_that_claims_to_be_huge_is_refused() -> None:
    data = repacked("policy_probs", npy_header((10**9, 139)) + b"\0" * 100)
    with pytest.raises(PolicyFileError, match="its header promises shape"):
        read_npz(data, "x")


@pytest.mark.parametrize("header", [b"", b"\x93NUMPY", npy_header((9, 9)).replace(b"}", b" ")])
def test_a_damaged_header_is_refused(header: bytes) -> None:
    with pytest.raises(PolicyFileError, match=r"^x: array 'ops': its header cannot be read$"):
        read_npz(repacked("ops", header), "x")


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = npy_header((16 << 20, 1)) + bytes(64 << 20)
    data = repacked("policy_probs", bomb, zipfile.ZIP_DEFLATED)
    assert len(data) < 1 << 20
    with pytest.raises(PolicyFileError, match="67,108,864 bytes; at most 8,388,608 are read"):
        read_npz(data, "x")


def test_an_unusual_packing_is_refused() -> None:
    with pytest.raises(PolicyFileError, match="is packed in a way that numpy does not use"):
        read_npz(repacked("", b"", zipfile.ZIP_LZMA), "x")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_an_error_or_a_policy(data: st.DataObject) -> None:
    good = (
        packed(authors(layers=1))
        if data.draw(st.booleans())
        else repacked("", b"", zipfile.ZIP_DEFLATED)
    )
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        # headers lie at both ends
        place = data.draw(
            st.integers(0, 400) | st.integers(-700, -1) | st.integers(0, len(bad) - 1)
        )
        bad[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PolicyFileError):  # and nothing else
        assert isinstance(read_npz(bytes(bad), "x"), Policy)


class Payload:
    """Makes a file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.marker),))


def hostile_files(marker: Path) -> dict[str, bytes]:
    evil = np.array([Payload(marker)], dtype=object)
    plain = io.BytesIO()
    np.save(plain, evil, allow_pickle=True)
    checkpoint = io.BytesIO()
    torch.save({"policy": Payload(marker)}, checkpoint)
    return {
        "objects.npz": packed({**authors(), "op_names": evil}),
        "all_objects.npz": packed(dict.fromkeys(authors(), evil)),
        "pickle_as_array.npz": repacked("ops", pickle.dumps(Payload(marker))),
        "pickle.npz": pickle.dumps(Payload(marker)),
        "pickle.json": pickle.dumps(Payload(marker)),
        "text_pickle.json": pickle.dumps(Payload(marker), protocol=0),
        "array.npy": plain.getvalue(),
        "checkpoint.pt": checkpoint.getvalue(),
    }


def test_payloads_are_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    files = hostile_files(marker)
    np.load(io.BytesIO(files["objects.npz"]), allow_pickle=True)["op_names"]
    assert marker.exists()  # the payload is real
    marker.rmdir()
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(PolicyFileError, match=re.escape(name)):
            load_policy(path)
        assert not marker.exists(), name


# Sub-policy lists


def test_sub_policies() -> None:
    text = json.dumps(
        [
            [["ShearX", 0.9, 0.0], ["Invert", 0.2, 0.3]],
            [["rotate", 1.0, 0.75], ["AUTO_CONTRAST", 0.0, None], ["shear-x", 0.4, 0]],
            [],
        ]
    )
    policy = loads(text)
    shear, rotate = CIFAR.operations[1], CIFAR.operations[5]
    assert policy.table.rows == (
        Row(Operation("identity"), None),
        Row(shear, -0.3),
        Row(Operation("invert"), None),
        Row(rotate, 15.0),
        Row(Operation("auto_contrast"), None),
    )
    (stage,) = policy.phases[0].stages
    assert stage.weights.tolist() == [1 / 3] * 3
    assert stage.rows.tolist() == [[1, 2, 0], [3, 4, 1], [0, 0, 0]]
    assert stage.gates.tolist() == [[0.9, 0.2, 0.0], [1.0, 0.0, 0.4], [0.0, 0.0, 0.0]]
    assert policy.info == {}


LEVELS = {
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "TranslateX": (-0.45, 0.45),
    "TranslateY": (-0.45, 0.45),
    "Rotate": (-30, 30),
    "Solarize": (0, 256),
    "Posterize": (4, 8),
    "Contrast": (0.1, 1.9),
    "Color": (0.1, 1.9),
    "Brightness": (0.1, 1.9),
    "Sharpness": (0.1, 1.9),
    "Cutout": (0.0, 0.2),
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_span_fast_autoaugments_ranges(name: str) -> None:
    low, high = LEVELS[name]
    for level in (0, 0.123, 0.5, 1):
        row = loads(json.dumps([[[name, 0.5, level]]])).table.rows[1]
        assert row.magnitude == pytest.approx(level * (high - low) + low, abs=1e-12)
        assert low <= row.magnitude <= high


@pytest.mark.parametrize("name", BUILTIN)
def test_our_own_names_are_known_too(name: str) -> None:
    policy = loads(json.dumps([[[name, 1, 0.5]]]))
    assert policy.table.rows[-1].operation.name == name


def test_texts_beside_the_list_become_info() -> None:
    text = json.dumps({"method": "mine", "sub_policies": [[["Invert", 1, 0]]], "format": "list"})
    assert loads(text).info == {"method": "mine", "format": "list"}


BAD_LISTS = {
    "[]": "no sub-policies",
    "[[], []]": "every sub-policy is empty",
    "[3]": "sub-policy 1: expected a list, got 3",
    '{"sub_policies": {}}': 'key "sub_policies": expected a list, got an object',
    '{"sub_policies": [[["Invert", 1, 0]]], "n": 3}': 'key "n": expected text, got 3',
    '{"sub_policies": [], "sub_policies": []}': 'key "sub_policies" appears twice',
    '[[["Invert", 1, 0]], [["Swirl", 1, 0]]]': "sub-policy 2, operation 1: unknown operation",
    '[[["Invert", 1]]]': "sub-policy 1, operation 1: expected [operation, probability, level]",
    "[[[3, 1, 0]]]": "sub-policy 1, operation 1, operation: expected text, got 3",
    '[[["Invert", 1.1, 0]]]': "operation 1, probability: 1.1 should be from 0 to 1",
    '[[["Invert", true, 0]]]': "operation 1, probability: expected a number, got true",
    '[[["Rotate", 1, 1.01]]]': "operation 1, level: 1.01 should be from 0 to 1",
    '[[["Rotate", 1, NaN]]]': "operation 1, level: nan is not a finite number",
    '[[["Rotate", 1, null]]]': "operation 1, level: expected a number, got null",
    '[[["Invert", 1, -1]]]': "operation 1, level: -1 should be from 0 to 1",
    f"[[{', '.join(['0'] * 1001)}]]": "sub-policy 1: 1,001 operations; a policy has at most 1,000",
}


@pytest.mark.parametrize("text", BAD_LISTS, ids=lambda text: text[:40])
def test_bad_lists(text: str) -> None:
    with pytest.raises(PolicyFileError, match=re.escape(BAD_LISTS[text])) as caught:
        loads(text, source="list.json")
    assert str(caught.value).startswith("list.json: ")


# The published files


PERPLEXITIES = {
    "deepaa_cifar_1": [37.9, 1.5, 1.7, 2.7, 4.4, 1.2],
    "deepaa_cifar_2": [36.7, 1.1, 2.0, 2.1, 1.8, 1.1],
    "deepaa_imagenet_1": [39.7, 3.7, 13.2, 43.6, 28.7],
    "deepaa_imagenet_2": [38.3, 5.6, 14.2, 25.7, 35.8],
}
LEADING = {  # the two most likely operations of each layer
    "deepaa_cifar_1": [
        {"translate_x": 0.164, "solarize": 0.160},
        {"cutout": 0.918, "crop": 0.051},
        {"crop": 0.897, "identity": 0.035},
        {"flip": 0.731, "crop": 0.150},
        {"color": 0.578, "crop": 0.319},
        {"identity": 0.965, "crop": 0.020},
    ],
    "deepaa_cifar_2": [
        {"solarize": 0.154, "color": 0.128},
        {"cutout": 0.991},
        {"crop": 0.679, "cutout": 0.307},
        {"crop": 0.725, "flip": 0.233},
        {"flip": 0.780, "identity": 0.215},
        {"identity": 0.991, "color": 0.007},
    ],
    "deepaa_imagenet_1": [
        {"resized_crop": 0.199, "translate_y": 0.165},
        {"resized_crop": 0.743, "cutout": 0.118},
        {"flip": 0.300, "cutout": 0.259},
        {"sharpness": 0.256, "posterize": 0.207},
        {"flip": 0.269, "sharpness": 0.215},
    ],
    "deepaa_imagenet_2": [
        {"translate_x": 0.178, "translate_y": 0.158},
        {"resized_crop": 0.543, "cutout": 0.295},
        {"flip": 0.330, "resized_crop": 0.299},
        {"sharpness": 0.588, "posterize": 0.088},
        {"flip": 0.212, "color": 0.177},
    ],
}
USES = {
    "deepaa_cifar_1": {"crop": 1.44, "cutout": 0.98, "flip": 0.74, "color": 0.73},
    "deepaa_cifar_2": {"crop": 1.41, "cutout": 1.32, "flip": 1.02},
    "deepaa_imagenet_1": {"resized_crop": 1.17, "flip": 0.69, "sharpness": 0.50, "cutout": 0.39},
    "deepaa_imagenet_2": {"resized_crop": 1.09, "flip": 0.58, "sharpness": 0.79, "cutout": 0.32},
}


MIRRORED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
RENAMED = {"RandFlip": "flip", "RandCutout": "cutout", "RandCrop": "crop",
           "RandResizeCrop_imagenet": "resized_crop"}  # fmt: skip


@pytest.mark.parametrize("name", PERPLEXITIES)
def test_every_number_of_a_published_npz(name: str, shared: Path) -> None:
    """Row by row from the file's own arrays, and mirrored as the authors' evaluation does."""
    path = shared / "policies" / f"{name}.npz"
    with np.load(path) as file:
        stored = {key: file[key] for key in file.files}
    names = [str(text).split(":")[0] for text in stored["op_names"]]
    places = list(zip(stored["ops"][:, 0].tolist(), stored["mags"][:, 0].tolist(), strict=True))
    policy, mirrored = load_policy(path), compared_policy(path)
    for (op, level), row in zip(places, policy.table.rows, strict=True):
        plain = RENAMED.get(names[op], names[op].lower())
        assert row.operation.name.replace("_", "") == plain.replace("_", "")
        if names[op] in LEVELS:
            low, high = LEVELS[names[op]]
            assert row.magnitude == pytest.approx(level / 12 * (high - low) + low, abs=1e-12)
        else:
            assert row.magnitude is None
    shares = stored["policy_probs"].astype(np.float64)
    shares /= shares.sum(1, keepdims=True)
    np.testing.assert_allclose(policy.row_probabilities().numpy(), shares, rtol=1e-12)
    twins = [
        places.index((op, 12 - level)) if names[op] in MIRRORED else i
        for i, (op, level) in enumerate(places)
    ]
    both = (shares + shares[:, twins]) / 2
    assert mirrored.table == policy.table
    np.testing.assert_allclose(mirrored.row_probabilities().numpy(), both, rtol=1e-12)
    if "cifar_1" in name:  # lopsided in the file
        assert not np.allclose(both, shares, atol=0.01)


@pytest.mark.parametrize("name", PERPLEXITIES)
def test_published_npz(name: str, shared: Path) -> None:
    policy = load_policy(shared / "policies" / f"{name}.npz")
    assert policy.table == (CIFAR if "cifar" in name else IMAGENET).table
    rows = policy.row_probabilities()
    found = torch.exp(-torch.special.xlogy(rows, rows).sum(1)).tolist()
    assert [round(value, 1) for value in found] == PERPLEXITIES[name]
    names = [operation.name for operation in policy.table.operations]
    for layer, expected in zip(policy.operation_probabilities(), LEADING[name], strict=True):
        top = layer.topk(len(expected))
        leading = {
            names[i]: round(p, 3) for p, i in zip(top.values.tolist(), top.indices, strict=True)
        }
        assert leading == pytest.approx(expected, abs=0.0011)
    for operation, expected_use in USES[name].items():
        assert policy.expected_uses()[operation] == pytest.approx(expected_use, abs=0.0051)
    assert loads(dumps(policy)).equals(policy)


SIZES = {"dada": [25] * 4, "fast_autoaugment": [493, 498, 497]}


@pytest.mark.parametrize("method", SIZES)
def test_published_sub_policies(method: str, shared: Path) -> None:
    paths = sorted((shared / "policies").glob(f"{method}_*.json"))
    sizes = []
    for path in paths:
        policy = load_policy(path)
        (stage,) = policy.phases[0].stages
        sizes.append(len(stage.weights))
        listed = json.loads(path.read_text())["sub_policies"]
        for chain, rows, gates in zip(
            listed, stage.rows.tolist(), stage.gates.tolist(), strict=True
        ):
            for (name, p, level), row, gate in zip(chain, rows, gates, strict=True):
                operation, magnitude = policy.table.rows[row]
                assert operation.name.replace("_", "") == name.lower()
                assert gate == p
                if name in LEVELS:
                    low, high = LEVELS[name]
                    assert math.isclose(magnitude, level * (high - low) + low, abs_tol=1e-12)
                else:
                    assert magnitude is None
        assert policy.info["dataset"] in path.name
        assert loads(dumps(policy)).equals(policy)
        uses = policy.symmetric().expected_uses()
        assert uses == pytest.approx(policy.expected_uses(), abs=1e-6)
    assert sizes == SIZES[method]


# PBA's schedules


SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
NAMES = (
    *("rotate", "translate_x", "translate_y", "brightness", "color", "invert", "sharpness"),
    *("posterize", "shear_x", "solarize", "shear_y", "equalize", "auto_contrast", "cutout"),
    "contrast",
)
"""The order of a log's numbers, from arcelien/pba @950397f, `augmentation_transforms_hp.py`."""


def line(trial: str, clone: str, epoch: int, old: list[int], new: list[int]) -> str:
    return str([trial, clone, epoch + 1, epoch, old, new])


def some_numbers(seed: int, *, busy: bool = True) -> list[int]:
    """60 numbers: probabilities and levels of 30 operations."""
    generator = random.Random(seed)
    most = 10 if busy else 2
    return [
        generator.randint(0, most) if i % 2 == 0 else generator.randint(0, 9) for i in range(60)
    ]


# The order of the numbers


def python_2_order(names: list[str]) -> list[str]:
    """How a dict of CPython 2.7 (64 bits) gives keys that were put in as `names`."""

    def put(name: str, slots: list[str]) -> None:
        word = ord(name[0]) << 7
        for letter in name:
            word = (1000003 * word ^ ord(letter)) % 2**64
        place = rest = word ^ len(name)
        while slots[place % len(slots)]:
            place, rest = 5 * place + rest + 1, rest >> 5
        slots[place % len(slots)] = name

    slots = [""] * 8
    for count, name in enumerate(names, start=1):
        put(name, slots)
        if 3 * count >= 2 * len(slots):  # a table four times as large as the keys need
            keys, slots = list(filter(None, slots)), [""] * 2 ** (4 * count).bit_length()
            for key in keys:
                put(key, slots)
    return list(filter(None, slots))


def test_the_order_is_that_of_the_search() -> None:
    """PBA first took the order from a plain dict, and the published logs come from Python 2."""
    filled = (
        "AutoContrast Equalize Invert Rotate Posterize Solarize Color Contrast Brightness "
        "Sharpness ShearX ShearY TranslateX TranslateY Cutout"
    )
    assert [our_name(name) for name in python_2_order(filled.split())] == list(NAMES)


@pytest.mark.parametrize("place", range(30))
def test_each_number_belongs_to_its_operation(place: int) -> None:
    numbers = [0] * 60
    numbers[2 * place], numbers[2 * place + 1] = 10, 5
    uses = read_log(line("4", "0", 0, [0] * 60, numbers), "log").expected_uses()
    assert {name for name, share in uses.items() if share} == {"identity", NAMES[place % 15]}
    assert uses[NAMES[place % 15]] == pytest.approx(0.8)


# Chances


def slow_chances(p: list[Fraction]) -> tuple[Fraction, list[Fraction], list[list[Fraction]]]:
    """Every count, order and set of successes, one by one."""
    n = len(p)
    none, single = Fraction(0), [Fraction(0)] * n
    pair = [[Fraction(0)] * n for _ in p]
    orders = list(permutations(range(n)))
    for count, weight in enumerate((Fraction(2, 10), Fraction(3, 10), Fraction(5, 10))):
        for order, successes in product(orders, product((True, False), repeat=n)):
            chance = weight / len(orders)
            for i, success in enumerate(successes):
                chance *= p[i] if success else 1 - p[i]
            applied = [i for i in order if successes[i]][:count]
            if len(applied) == 2:
                pair[applied[0]][applied[1]] += chance
            elif applied:
                single[applied[0]] += chance
            else:
                none += chance
    return none, single, pair


@pytest.mark.parametrize("tenths", [[], [0], [10], [3, 10], [1, 5, 9], [10, 0, 7, 4], [10] * 4])
def test_chances_by_enumeration(tenths: list[int]) -> None:
    none, single, pair = slow_chances([Fraction(k, 10) for k in tenths])
    found = chances(np.array(tenths) / 10)
    assert found[0] == pytest.approx(float(none), abs=1e-14)
    assert found[1].tolist() == pytest.approx(list(map(float, single)), abs=1e-14)
    for ours, theirs in zip(found[2].tolist(), pair, strict=True):
        assert ours == pytest.approx(list(map(float, theirs)), abs=1e-14)


def test_chances_of_thirty_add_up() -> None:
    p = np.array(some_numbers(3)[::2]) / 10
    none, single, pair = chances(p)
    assert none + single.sum() + pair.sum() == pytest.approx(1, abs=1e-12)
    assert (pair >= 0).all()
    np.testing.assert_allclose(pair, pair.T, atol=1e-15)


# The procedure


def slow_step(name: str, level: int, generator: random.Random) -> Step | None:
    """An operation at a level, as PBA applies it; None where it changes nothing."""
    sign = generator.choice((1, -1))
    if name in SIGNED:
        pixels_or_degrees = {"rotate": int(level * 30 / 10), "shear_x": level * 0.3 / 10}
        value = pixels_or_degrees.get(name, int(level * 10 / 10) / 32)
        value = level * 0.3 / 10 if name == "shear_y" else value
        return step(name, sign * value) if value else None
    if name == "cutout":
        return (f"cutout of {level * 2}", None) if level else None
    if name in ("auto_contrast", "equalize", "invert"):
        return name, None
    values = {"posterize": 4 - int(level * 4 / 10), "solarize": 256 - int(level * 256 / 10)}
    return step(name, values.get(name, level * 1.8 / 10 + 0.1))


def slow_apply(numbers: list[int], generator: random.Random) -> tuple[Step, ...]:
    """PBA's procedure: shuffle, and apply each with its probability until the count is used."""
    count = generator.choices((0, 1, 2), (0.2, 0.3, 0.5))[0]
    listed = list(zip([*NAMES, *NAMES], numbers[::2], numbers[1::2], strict=True))
    generator.shuffle(listed)
    applied = []
    for name, probability, level in listed:
        if count and generator.random() < probability / 10:
            applied.append(slow_step(name, level, generator))
            count -= 1
    return tuple(s for s in applied if s is not None)


def sized_outcomes(text: str, epoch: int) -> dict[tuple[Step, ...], float]:
    """`outcomes`, with the side of cutout in its name."""
    policy = read_log(text, "log")
    (stage,) = policy.phase(epoch).stages
    found: dict[tuple[Step, ...], float] = {}
    for weight, rows in zip(stage.weights.tolist(), stage.rows.tolist(), strict=True):
        steps = []
        for operation, magnitude in (policy.table.rows[row] for row in rows):
            name = operation.name
            if name == "cutout":
                name = f"cutout of {operation.options['size']}"
            if name != "identity":
                steps.append(step(name, magnitude))
        found[tuple(steps)] = found.get(tuple(steps), 0.0) + weight
    return found


@pytest.mark.parametrize("busy", [True, False])
def test_a_phase_is_the_procedure(busy: bool) -> None:
    numbers = some_numbers(5, busy=busy)
    generator = random.Random(0)
    counts = Counter(slow_apply(numbers, generator) for _ in range(40_000))
    text = line("1", "2", 20, [0] * 60, numbers)
    check_counts(counts, sized_outcomes(text, 20))
    assert outcomes(read_log(text, "log"), 19) == {(): 1.0}


# Pixels


def original(image: Image.Image, name: str, level: int, sign: int) -> np.ndarray:
    """An operation by way of RGBA, where transparent is the mean; cutout about (20, 3)."""
    shear, shift = sign * level * 0.3 / 10, sign * level
    affine = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    picture = image.convert("RGBA")
    if name in affine:
        picture = picture.transform((32, 32), Image.Transform.AFFINE, affine[name])
    elif name == "rotate":
        picture = picture.rotate(sign * 3 * level)
    elif name == "cutout":  # 2 pixels a level
        cut = np.array(picture)
        cut[max(0, 3 - level) : 3 + level, 20 - level : 20 + level] = (125, 122, 113, 0)
        picture = Image.fromarray(cut)
    elif name in ("color", "contrast", "brightness", "sharpness"):
        picture = getattr(ImageEnhance, name.title())(picture).enhance(level * 1.8 / 10 + 0.1)
    elif name == "posterize":
        lost = 4 + int(level * 4 / 10)
        picture = image.point([value >> lost << lost for value in range(256)] * 3)
    elif name == "solarize":
        picture = ImageOps.solarize(image, 256 - int(level * 256 / 10))
    else:
        picture = getattr(ImageOps, name.replace("_", ""))(image)
    done = np.asarray(picture.convert("RGBA"))
    return np.where(done[..., 3:] == 0, np.uint8((125, 123, 114)), done[..., :3])


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("place", range(15))
def test_one_operation_gives_the_pixels_of_the_original(place: int, level: int) -> None:
    numbers = [0] * 60
    numbers[2 * place], numbers[2 * place + 1] = 10, level
    table = read_log(line("4", "0", 0, [0] * 60, numbers), "log").table
    picture = Image.fromarray(np.random.default_rng(level).integers(0, 256, (32, 32, 3), np.uint8))
    rows = range(1, len(table)) or [0]  # level 0 may be no more than identity
    ours = {run_pil(picture, [(i, [20.5 / 32, 3.5 / 32])], table).tobytes() for i in rows}
    assert ours == {original(picture, NAMES[place], level, sign).tobytes() for sign in (1, -1)}


# Logs


def test_phases_and_stretching() -> None:
    a, b, c = some_numbers(1), some_numbers(2), some_numbers(3)
    zeros = [0] * 60
    text = "\n".join(
        [
            line("9", "7", 3, zeros, zeros),  # another line of descent
            line("4", "0", 50, zeros, a),
            "",
            line("2", "4", 120, a, b),
            line("1", "2", 120, b, c),
        ]
    )
    assert is_log(text)
    policy = read_log(text, "log")
    assert [phase.epoch for phase in policy.phases] == [0, 50, 120]
    alone = {0: zeros, 50: a, 120: c}
    for epoch, numbers in alone.items():
        expected = read_log(line("1", "2", 0, zeros, numbers), "one").expected_uses()
        expected = {name: uses for name, uses in expected.items() if uses}
        found = {name: uses for name, uses in policy.expected_uses(epoch).items() if uses}
        assert found == pytest.approx(expected)
    for epochs, starts in {200: [0, 50, 120], 1800: [0, 450, 1080], 5: [0, 1, 3]}.items():
        assert [phase.epoch for phase in policy.stretched(epochs, 200).phases] == starts
    one = policy.stretched(1, 200)  # all phases fall on the only epoch, and the last stays
    assert [phase.epoch for phase in one.phases] == [0]
    assert one.phases[0].stages == policy.phases[-1].stages
    for epochs, over in ((0, 200), (10, 120)):
        with pytest.raises(ValueError, match="begins at epoch 120 cannot be stretched"):
            policy.stretched(epochs, over)


GOOD = line("4", "0", 50, [0] * 60, some_numbers(1))
BAD_LOGS = {
    GOOD.replace("0, 0, 0]", "0, 0]", 1): "line 1: old numbers: 59 numbers, expected 60",
    GOOD.replace("0, 0, 0]", "0, 0, 11]", 1): "line 1: old numbers, number 59: 11 should be from",
    GOOD.replace("0, 0, 0]", "0, 0, 0.5]", 1): "number 59: expected an integer, got 0.5",
    GOOD[:-40]: "line 1: line 1, column",
    "['4', '0', 51]": "line 1: expected [trial, clone, trial epoch, clone epoch, old numbers",
    f"{GOOD}\n['x'": "line 2: ",
    f"{GOOD}\n{line('3', '4', 20, [0] * 60, [0] * 60)}": "epoch 20 follows epoch 50",
    line("4", "0", 200, [0] * 60, [0] * 60): "a change at epoch 200 of a search of 200 epochs",
    "['a']\n" * 2_001: "2,001 lines; at most 2,000 are read",
}


@pytest.mark.parametrize("text", BAD_LOGS, ids=lambda text: BAD_LOGS.get(text, "")[:30])
def test_bad_logs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(PolicyFileError, match=re.escape(BAD_LOGS[text])) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_names_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a,b=c.txt"
    path.write_text(line("4", "0", 170, [0] * 60, some_numbers(1)))
    whole = load_policy(str(path))
    assert whole.equals(load_policy(f"pba:{path}"))
    assert whole.equals(load_policy(f"pba:{path},over=171"))
    with pytest.raises(PolicyFileError, match="a change at epoch 170 of a search of 160 epochs"):
        load_policy(f"pba:{path},over=160")
    with pytest.raises(PolicyFileError, match=r"over should be a whole number .*, got '-3'"):
        load_policy(f"pba:{path},over=-3")
    with pytest.raises(PolicyFileError, match=r"needs a policy behind it: pba:FILE"):
        load_policy("pba")
    with pytest.raises(PolicyFileError, match=r"^no-such-log: no such file$"):
        load_policy("pba:no-such-log")
    for text in ('[[["Invert", 1, 0]]]', '{"sub_policies": []}', ""):
        path.write_text(text)
        with pytest.raises(PolicyFileError, match=r"c\.txt: not a log of PBA; other files need no"):
            load_policy(f"pba:{path}")


def test_published_schedule(shared: Path) -> None:
    path = shared / "policies" / "pba_cifar10.txt"
    text = path.read_text()
    policy = load_policy(path)
    lines = [ast.literal_eval(entry) for entry in text.splitlines()]
    numbers = dict.fromkeys(range(lines[0][3]), lines[0][4])
    for entry, after in zip(lines, [*lines[1:], [0, 0, 0, 200]], strict=True):
        numbers |= dict.fromkeys(range(entry[3], after[3]), entry[5])
    assert sorted(numbers) == list(range(200))
    assert policy.phase(0).stages[0].weights.tolist() == [1.0]
    generator = random.Random(1)
    for epoch in (11, 12, 130, 199):
        counts = Counter(slow_apply(numbers[epoch], generator) for _ in range(10_000))
        check_counts(counts, sized_outcomes(text, epoch))
    assert len(policy.table) <= 2000
    assert loads(dumps(policy)).equals(policy)
