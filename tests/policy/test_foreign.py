"""policy_import.py: the authors' .npz and sub-policy lists, made here and as published."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepaa.ops.space import BUILTIN, CIFAR, IMAGENET, Operation, Row, Space
from deepaa.policy import PolicyFileError, dumps, load_policy
from deepaa.policy.foreign import read_npz
from deepaa.policy.load import loads
from deepaa.policy.policy import Policy
from deepaa.policy.published import compared_policy

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
    data = repacked("policy_probs", b"\0" * (65 << 20), zipfile.ZIP_DEFLATED)
    assert len(data) < 1 << 20
    with pytest.raises(PolicyFileError, match="68,157,440 bytes; at most 67,108,864 are read"):
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
