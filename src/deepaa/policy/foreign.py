"""Readers for policies that others published: the DeepAA authors' `.npz`, and sub-policy lists."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepaa.ops import BUILTIN, CIFAR, IMAGENET, Operation, Row, Space, Table
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import IDENTITY, Layers, chains_over, chains_table
from deepaa.policy.strict_json import PolicyFileError, Value, shown

Array = npt.NDArray[Any]

MAX_ARRAY_BYTES = 64 << 20
"""Unpacked size of an array; a small archive may claim more."""
MAX_LEVELS = 10_000
FLOAT32_SUM = 1e-5
"""How far from 1 a layer stored in float32 may sum."""
DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError)
"""How zip, zlib and numpy's header parser complain about a damaged archive."""

# The authors' names where ours differ by more than spelling; their search and files vary a little.
_AUTHORS_NAMES: Mapping[str, str] = {
    "RandFlip": "flip",
    "RandCutout": "cutout",
    "RandCutout60": "cutout",
    "RandCrop": "crop",
    "RandResizeCrop": "resized_crop",
    "RandResizeCrop_imagenet": "resized_crop",
}

# Fast AutoAugment's ranges, which DADA shares, are those of the paper's space, but cutout has a
# magnitude: a fraction of the width.
_SUB_POLICY_OPERATIONS: Mapping[str, Operation] = {
    **{name: Operation(name) for name, spec in BUILTIN.items() if spec.magnitude == ""},
    **{operation.name: operation for operation in CIFAR.operations},
    "cutout": Operation("cutout", 0.0, 0.2),
}


def _plain(name: str) -> str:
    """`ShearX`, `shear_x` and `shear-x` as one spelling."""
    return "".join(c for c in name.lower() if c.isalnum())


_BY_PLAIN_NAME = {_plain(name): name for name in BUILTIN}


# The authors' archives


def is_npz(data: bytes) -> bool:
    """Whether `data` begins like a zip archive."""
    return data.startswith(b"PK\x03\x04")


def read_npz(data: bytes, source: str) -> Policy:
    """The policy in an `.npz` file of the DeepAA authors, over `CIFAR` or `IMAGENET`.

    The archive's `RandCutout` is 16 pixels for CIFAR and 60 for ImageNet, which is recognised by
    its resized crop. Layers were stored in float32; here they sum to 1 in float64.
    """
    arrays = _arrays(data, source)

    def fail(key: str, reason: str) -> PolicyFileError:
        return PolicyFileError(f"{source}: array {key!r}: {reason}")

    if arrays["op_names"].ndim != 1:
        raise fail("op_names", f"has shape {arrays['op_names'].shape}, expected a list of names")
    names = [str(name) for name in arrays["op_names"]]
    levels = arrays["l_mags"]
    if levels.size != 1 or not 2 <= int(levels.item()) <= MAX_LEVELS:
        raise fail("l_mags", f"expected one number of levels, 2 to {MAX_LEVELS}, got {levels}")
    operations = [_authors_operation(name, _space_of(names), source) for name in names]
    for key in ("ops", "mags"):
        if arrays[key].shape not in ((arrays["ops"].size,), (arrays["ops"].size, 1)):
            raise fail(key, f"has shape {arrays[key].shape}, expected (rows, 1), as many in both")
    ops, mags = arrays["ops"].ravel(), arrays["mags"].ravel()
    for key, values, most in (("ops", ops, len(names)), ("mags", mags, int(levels.item()))):
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < most:
            raise fail(key, f"entries should be from 0 to {most - 1}")
    grids = [_grid(operation, int(levels.item())) for operation in operations]
    try:
        table = Table(
            Row(operations[op], grids[op][mag])
            for op, mag in zip(ops.tolist(), mags.tolist(), strict=True)
        )
    except ValueError as error:
        raise fail("ops", str(error)) from error
    layers = _authors_layers(arrays["policy_probs"], len(table), source)
    return Policy(table, layers, info={"imported from": "an .npz file of the DeepAA authors"})


def _arrays(data: bytes, source: str) -> dict[str, Array]:
    """The arrays of the archive, by name; nothing is unpickled."""
    kinds = {"policy_probs": "f", "ops": "iu", "mags": "iu", "l_mags": "iu", "op_names": "U"}
    arrays = {}
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except DAMAGE as error:
        raise PolicyFileError(f"{source}: not an .npz file, or a damaged one ({error})") from None
    with archive:
        for key, kind in kinds.items():
            try:
                arrays[key] = _array(archive, key, kind)
            except KeyError:
                has = ", ".join(name.removesuffix(".npy") for name in archive.namelist()[:10])
                raise PolicyFileError(
                    f"{source}: array {key!r} is missing; the file has {has or 'none'}"
                ) from None
            except DAMAGE as error:
                raise PolicyFileError(f"{source}: array {key!r}: {error}") from None
    return arrays


def _array(archive: zipfile.ZipFile, key: str, kinds: str) -> Array:
    entry = archive.getinfo(f"{key}.npy")
    if entry.file_size > MAX_ARRAY_BYTES:
        raise ValueError(f"{entry.file_size:,} bytes; at most {MAX_ARRAY_BYTES:,} are read")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("is packed in a way that numpy does not use")
    data = archive.read(entry)
    stream = io.BytesIO(data)
    shape, dtype = _header(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never unpickled")
    if dtype.kind not in kinds:
        raise ValueError(f"has type {dtype}")
    # numpy would allocate what the header claims before it finds the data missing
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise ValueError(f"its header promises shape {shape}, which its data do not fill")
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _header(stream: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type an array's header states."""
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    # the header is a Python literal, and numpy lets tokeniser, parser and its own errors through
    except Exception as error:
        raise ValueError("its header cannot be read") from error
    return shape, dtype


def _space_of(names: list[str]) -> Space:
    return IMAGENET if any("RandResizeCrop" in name for name in names) else CIFAR


def _authors_operation(text: str, space: Space, source: str) -> Operation:
    """The operation of `'ShearX:(-0.3,,0.3)'`; a range, where given, must be the space's."""
    name, _, limits = text.partition(":")
    ours = _AUTHORS_NAMES.get(name) or _BY_PLAIN_NAME.get(_plain(name))
    operations = {operation.name: operation for operation in space.operations}
    if ours not in operations:
        raise PolicyFileError(
            f"{source}: array 'op_names': unknown operation {shown(text)}; known are "
            f"{', '.join(operations)}"
        )
    operation = operations[ours]
    if operation.low is not None and limits:
        try:
            found = [float(part) for part in limits.strip("()").split(",") if part.strip()]
        except ValueError:
            found = []
        if found != [operation.low, operation.high]:
            raise PolicyFileError(
                f"{source}: array 'op_names': {shown(text)} has a range other than "
                f"{operation.low:g} to {operation.high:g}, that of the authors' code"
            )
    return operation


def _grid(operation: Operation, levels: int) -> tuple[float | None, ...]:
    """The magnitude of each level, the neutral one included."""
    if operation.low is None:
        return (None,) * levels
    return replace(operation, neutral=None).magnitudes(levels)


def _authors_layers(probabilities: Array, rows: int, source: str) -> Layers:
    what = f"{source}: array 'policy_probs'"
    if probabilities.ndim != 2 or probabilities.shape[1] != rows:
        raise PolicyFileError(
            f"{what}: has shape {probabilities.shape}, expected (layers, {rows}) as 'ops' has rows"
        )
    if len(probabilities) > MAX_DEPTH:
        raise PolicyFileError(
            f"{what}: {len(probabilities):,} layers; a policy has at most {MAX_DEPTH:,}"
        )
    table = probabilities.astype(np.float64)
    for k, layer in enumerate(table, start=1):
        if not ((layer >= 0) & (layer <= 1 + FLOAT32_SUM)).all():  # NaN is neither
            raise PolicyFileError(f"{what}: layer {k}: holds a value that is no probability")
        if abs((total := math.fsum(layer)) - 1) > FLOAT32_SUM:
            raise PolicyFileError(f"{what}: layer {k}: sums to {total:.6f}, expected 1")
        layer /= total
    return Layers(torch.from_numpy(table))


# Sub-policy lists


def is_sub_policy_list(document: Value, own_format: str) -> bool:
    """Whether a document is a list of sub-policies, and not of this package's own format."""
    found = document.value
    if isinstance(found, dict):
        return "sub_policies" in found and found.get("format") != own_format
    return isinstance(found, list)


def read_sub_policies(document: Value) -> Policy:
    """Chains of equal weight from `[[[operation, probability, level], ...], ...]`.

    The document is the list, or an object with the list under "sub_policies" and texts that become
    `info`. Levels run from 0 to 1 over Fast AutoAugment's ranges.
    """
    listed, info = document, {}
    if isinstance(document.value, dict):
        fields = dict(document.entries())
        listed = fields.pop("sub_policies")
        info = {key: value.text() for key, value in fields.items()}
    policies = listed.items("sub-policy", first=1)
    if not policies:
        raise listed.error("no sub-policies")
    chains = [_chain(policy) for policy in policies]
    depth = max(map(len, chains))
    if depth == 0:
        raise listed.error("every sub-policy is empty")
    padded = [chain + [(IDENTITY, 0.0)] * (depth - len(chain)) for chain in chains]
    table = chains_table(padded)
    stage = chains_over(table, padded, [1 / len(chains)] * len(chains))
    return Policy(table, stage, info=info)


def _chain(policy: Value) -> list[tuple[Row, float]]:
    steps = policy.items("operation", first=1)
    if len(steps) > MAX_DEPTH:
        raise policy.error(f"{len(steps):,} operations; a policy has at most {MAX_DEPTH:,}")
    return [_step(step) for step in steps]


def _step(step: Value) -> tuple[Row, float]:
    name, probability, level = step.parts("operation", "probability", "level")
    ours = _BY_PLAIN_NAME.get(_plain(name.text()))
    if ours is None:
        raise step.error(f"unknown operation {shown(name.value)}; known are {', '.join(BUILTIN)}")
    operation = _SUB_POLICY_OPERATIONS[ours]
    gate = probability.number(0.0, 1.0)
    if operation.low is None or operation.high is None:
        if level.value is not None:  # written by habit, without a meaning
            level.number(0.0, 1.0)
        return Row(operation, None), gate
    magnitude = level.number(0.0, 1.0) * (operation.high - operation.low) + operation.low
    return Row(operation, min(max(magnitude, operation.low), operation.high)), gate
