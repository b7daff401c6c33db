"""The C loops of `kernels.c`, compiled once per machine where there is a C compiler.

A batch on CPU then runs several times faster than through torch's kernels, with the same bytes.
Without a compiler, or with DEEPAA_NATIVE=0, `kernels_torch.py` serves.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.ops.plan import Plan

log = logging.getLogger(__name__)

FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-shared", "-std=c11")
THREAD_BYTES = 1 << 20
"""Work given to a further thread: below this, starting it costs more than it saves."""


class _Plan(ctypes.Structure):
    """`Plan` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("maps_x", "maps_y", "steps", "level", "lookups")),
        *((name, ctypes.c_void_p) for name in ("forms", "fills", "factors", "scales")),
        *((name, ctypes.c_void_p) for name in ("taps_x", "taps_y")),
        *((name, ctypes.c_int64) for name in ("channels", "height", "width")),
    ]


def available() -> bool:
    """Whether the C loops can be used here; the first call compiles them."""
    return os.environ.get("DEEPAA_NATIVE", "1") != "0" and _library() is not None


def run(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """uint8 (N, C, H, W) on CPU under (N, K, 6) lines."""
    library = _library()
    assert library is not None
    out = torch.empty_like(images)
    lines = lines.contiguous()
    constants = _constants(plan)
    n, image_bytes = len(images), images[0].numel()
    threads = min(torch.get_num_threads(), max(1, n * image_bytes // THREAD_BYTES), n)

    def work(part: int) -> None:
        begin, end = n * part // threads, n * (part + 1) // threads
        scratch = np.empty(2 * image_bytes + 4 * plan.width + 4096, np.uint8)
        library.deepaa_apply(
            ctypes.byref(constants),
            images.data_ptr(),
            out.data_ptr(),
            lines.data_ptr(),
            lines.shape[1],
            begin,
            end,
            scratch.ctypes.data,
        )

    if threads == 1:
        work(0)
    else:
        # ctypes lets go of the interpreter lock during the call
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    return out


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
def _library() -> ctypes.CDLL | None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or sys.platform == "win32":
        return None
    try:
        library = _loaded(compiler)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.warning("no compiled CPU kernels, torch's slower ones serve instead: %s", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.deepaa_apply.argtypes = [pointer] * 4 + [number] * 3 + [pointer]
    library.deepaa_apply.restype = None
    return library


def _loaded(compiler: str) -> ctypes.CDLL:
    path = _compiled(compiler)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # damaged, or made for another machine: once more
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(_compiled(compiler)))


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and processor, from the cache or made now."""
    source = files("deepaa.ops").joinpath("kernels.c").read_text()
    machine = f"{platform.machine()} {_processor()} {sys.platform}"
    name = hashlib.sha256(f"{source}{compiler}{FLAGS}{machine}".encode()).hexdigest()[:24]
    folder = _cache_folder()
    library = folder / f"native-{name}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        code, made = Path(scratch, "kernels.c"), Path(scratch, "native.so")
        code.write_text(source)
        for tuned in (["-march=native"], ["-mcpu=native"], []):
            command = [*compiler.split(), *FLAGS, *tuned, str(code), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                made.replace(library)  # whole or not at all, whoever else compiles now
                return library
        raise OSError(f"{compiler} failed: {done.stderr.strip()[-300:]}")


def _processor() -> str:
    """What the processor can do, so that a home folder shared between machines stays safe."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name")
    return str(sorted({line for line in info.splitlines() if line.startswith(wanted)}))


def _cache_folder() -> Path:
    """A folder only this user can write to: compiled code is loaded from it."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    folder = folder / "deepaa"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{folder} belongs to or can be written by others")
    return folder
