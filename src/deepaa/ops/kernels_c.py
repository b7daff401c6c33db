"""The C loops of `kernels.c`, which are compiled when the package is built.

A batch on CPU then runs several times faster than through torch's kernels, with the same bytes. The
library is loaded from the folder of the package alone, and only if it is what was built from the
`kernels.c` beside it. Without it, or with DEEPAA_NATIVE=0, `kernels_torch.py` serves.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.ops.plan import Plan

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
LEVELS = ("every processor of its kind", "AVX2", "AVX-512")
"""What a copy of the loops is compiled for, by its LEVEL in kernels.c."""
THREAD_BYTES = 1 << 20
"""Work given to a further thread: below this, starting it costs more than it saves."""


class _Plan(ctypes.Structure):
    """`Plan` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("maps_x", "maps_y", "steps", "level", "lookups")),
        *((name, ctypes.c_void_p) for name in ("forms", "fills", "factors", "scales")),
        *((name, ctypes.c_void_p) for name in ("taps_x", "taps_y")),
        *((name, ctypes.c_int64) for name in ("channels", "height", "width")),
        *((name, ctypes.c_int64) for name in ("rows", "count_x", "count_y", "count_lookups")),
    ]


def available() -> bool:
    """Whether the C loops can be used here."""
    return why_not() is None


def why_not() -> str | None:
    """Why the C loops cannot be used here, and what to do; None if they can."""
    if os.environ.get("DEEPAA_NATIVE", "1") == "0":
        return "the variable DEEPAA_NATIVE is 0; unset it"
    found = _library()
    return found if isinstance(found, str) else None


def level() -> str:
    """What the copy of the loops that is used here was compiled for."""
    return LEVELS[_levels()[-1]]


def run(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """uint8 (N, C, H, W) on CPU under (N, K, 6) lines."""
    apply = _function(_levels()[-1], "apply")
    out = torch.empty_like(images)
    lines = lines.contiguous()
    constants = _constants(plan)
    n, image_bytes = len(images), images[0].numel()
    threads = min(torch.get_num_threads(), max(1, n * image_bytes // THREAD_BYTES), n)

    def work(part: int) -> int:
        begin, end = n * part // threads, n * (part + 1) // threads
        scratch = np.empty(scratch_bytes(plan), np.uint8)
        refused: int = apply(
            ctypes.byref(constants),
            images.data_ptr(),
            out.data_ptr(),
            lines.data_ptr(),
            lines.shape[1],
            begin,
            end,
            scratch.ctypes.data,
        )
        return refused

    if threads == 1:
        refused = [work(0)]
    else:
        # ctypes lets go of the interpreter lock during the call
        with ThreadPoolExecutor(threads) as pool:
            refused = list(pool.map(work, range(threads)))
    if max(refused) >= 0:  # `resolve` gives no such line, but memory hangs on it
        raise ValueError(f"image {max(refused)} has a line that does not fit its plan")
    return out


class Single:
    """The C loops for one image after another of a plan's size."""

    def __init__(self, plan: Plan) -> None:
        """Find the loops and the addresses of the plan, once for all images."""
        self.plan = plan
        self._apply, self._constants = _function(_levels()[-1], "single"), _constants(plan)
        self._address = ctypes.addressof(self._constants)

    def run(self, source: Any, target: Any, lines: bytes, depth: int, pixel: int) -> None:
        """The uint8 image at `source` under `depth` lines, written to `target`: both addresses.

        Args:
            pixel: 1 for planes one after the other; 3 or 4 for RGB, pixels so many bytes apart.
        """
        refused = self._apply(self._address, source, target, lines, depth, pixel)
        if refused == -2:
            size = f"{self.plan.height} x {self.plan.width}"
            raise MemoryError(f"no memory to augment an image of {size}")
        if refused >= 0:  # memory hangs on it, as in `run`
            raise ValueError("the image has a line that does not fit its plan")


def scratch_bytes(plan: Plan) -> int:
    """Memory that a thread works in: an image, then a plane or a line of indices."""
    pixels = plan.height * plan.width
    return (plan.channels + 1) * pixels + 4 * plan.width + 64


def _constants(plan: Plan) -> _Plan:
    """Addresses of the plan's tensors, with what the C loops want to know of its maps."""
    if "native" not in plan.cache:
        width = plan.width
        maps_x, maps_y, lookups = plan.maps_x.numpy(), plan.maps_y.numpy(), plan.lookups.numpy()
        columns = np.diff(maps_x[:, :width].astype(np.int64), axis=1)
        rising, falling = (columns == 65536).all(1), (columns == -65536).all(1)
        extra = {
            "steps": rising.astype(np.int8) - (falling & ~rising).astype(np.int8),
            "level": (maps_y[:, :width] == maps_y[:, :1]).all(1).astype(np.int8),
            "forms": np.array([_form(table) for table in lookups], np.int32),
        }
        _mark_brightness(plan, extra["forms"])
        address = {name: array.ctypes.data for name, array in extra.items()}
        address["rows"], address["count_lookups"] = len(plan.fills), len(lookups)
        address["count_x"], address["count_y"] = len(maps_x), len(maps_y)
        for name in (field[0] for field in _Plan._fields_):
            if name not in address:
                value = getattr(plan, name)
                address[name] = value.data_ptr() if isinstance(value, Tensor) else value
        made = _Plan(**address)
        made.arrays = extra  # they must live as long as their addresses
        plan.cache["native"] = made
    structure = plan.cache["native"]
    assert isinstance(structure, _Plan)
    return structure


def _form(table: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[int, int]:
    """How kernels.c may compute a table: 1 mask, 2 invert above a limit, 3 invert; 0 look it up."""
    values = np.arange(256)
    if np.array_equal(table, 255 - values):
        return 3, 0
    if np.array_equal(table, values & int(table[255])):
        return 1, int(table[255])
    kept = int((table == values).sum())
    if np.array_equal(table, np.where(values < kept, values, 255 - values)):
        return 2, kept - 1
    return 0, 0


def _mark_brightness(plan: Plan, forms: np.ndarray[Any, np.dtype[np.int32]]) -> None:
    lines = plan.lines.numpy()
    for i, row in enumerate(plan.table.rows):
        if row.operation.name == "brightness":
            forms[lines[i, 1]] = (4, 0)


@cache
def _library() -> ctypes.CDLL | str:
    """The library of this package, or why it cannot be used."""
    path = FOLDER / "libdeepaa.so"
    if not path.exists():
        return f"they were not built{_why_not_built()}; {_advice()}"
    try:
        content = path.read_bytes()
        source = hashlib.sha256((FOLDER / "kernels.c").read_bytes()).hexdigest()
        # before it is loaded: the system maps a damaged file without a look, and crashes later
        checksum = (FOLDER / "libdeepaa.so.sha256").read_text().split()[:1]
        if checksum != [hashlib.sha256(content).hexdigest()]:
            raise OSError(f"{path.name} is damaged, its checksum differs")
        if f"deepaa kernels.c {source}".encode() not in content:
            raise OSError(f"{path.name} was built from another kernels.c")
        library = ctypes.CDLL(str(path))
        library.deepaa_level.restype = ctypes.c_int
    except (OSError, AttributeError, ValueError) as error:
        reason = f"{error}; {_advice()}"
        log.warning("no compiled CPU kernels, torch's slower ones serve instead: %s", reason)
        return reason
    return library


def _why_not_built() -> str:
    """What the build of the package noted, in one line."""
    note = FOLDER / "libdeepaa.so.missing"
    if not note.exists():
        return ""
    words = note.read_text(encoding="utf-8", errors="replace").split()
    return f" with this package: {' '.join(words)[:300]}"


def _advice() -> str:
    if (FOLDER.parents[2] / "build_kernels.py").exists():
        return "run python build_kernels.py, which needs a C compiler"
    return "install deepaa from its source where there is a C compiler"


@cache
def _levels() -> tuple[int, ...]:
    """The copies of the loops that run on this processor."""
    library = _library()
    assert not isinstance(library, str), library
    most = library.deepaa_level()
    return tuple(n for n in range(most + 1) if hasattr(library, f"deepaa_apply_{n}"))


@cache
def _function(level: int, name: str) -> Callable[..., int]:
    """The loops compiled for a level: "apply" for batches, "single" for one image."""
    found: Any = getattr(_library(), f"deepaa_{name}_{level}")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    numbers = [number] * 3 + [pointer] if name == "apply" else [number] * 2
    found.argtypes, found.restype = [pointer] * 4 + numbers, number
    function: Callable[..., int] = found
    return function
