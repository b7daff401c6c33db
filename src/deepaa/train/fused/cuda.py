"""Compiles CUDA C++ while the program runs, by the compiler that torch brings; starts kernels.

Only this module calls CUDA's own libraries: NVRTC, which compiles, and the driver.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SHARED_MEMORY = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class CudaError(RuntimeError):
    """What CUDA's compiler or driver says."""


# The compiler


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of torch's version of CUDA: of the packages beside torch, or of the system."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    folders = [Path(each) / "nvidia" for each in sys.path]
    beside = [path for folder in folders for path in sorted(folder.glob(f"*/lib/{name}"))]
    own = sorted((Path(torch.__file__).parent / "lib").glob("libnvrtc[-.]*.so*"))
    beside += [path for path in own if "builtins" not in path.name]
    for path in [*map(str, beside), str(Path(sys.prefix) / "lib" / name), name]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaError(f"{name} was not found")


def compile_source(source: str, architecture: str) -> bytes:
    """The machine code of a source for GPUs of an architecture; no GPU is needed.

    Raises:
        CudaError: With the compiler's words.
    """
    nvrtc, program = _compiler(), ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CudaError(nvrtc.nvrtcGetErrorString(code).decode())

    make = nvrtc.nvrtcCreateProgram
    check(make(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        words = (ctypes.c_char_p * len(options))(*options)
        failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
        size = ctypes.c_size_t()
        if failed:
            check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise CudaError(log.value.decode(errors="replace")[:2000])
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


# Kernels on a device

Argument = Tensor | int | float | None
"""Of a kernel; None is a pointer to nothing."""


def addresses(arguments: Sequence[Argument]) -> tuple[ctypes.Array[ctypes.c_void_p], list[Any]]:
    """Pointers to a kernel's arguments, and what has to live as long as they are used."""
    held: list[Any] = []
    for each in arguments:
        if isinstance(each, float):
            held.append(ctypes.c_float(each))
        elif isinstance(each, int):
            held.append(ctypes.c_int(each))
        else:
            held.append(ctypes.c_void_p(0 if each is None else each.data_ptr()))
    return (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), held


class CudaKernels:
    """Compiled kernels on one device, by name."""

    def __init__(self, device: torch.device) -> None:
        """There are no kernels yet."""
        self._driver, self._device = ctypes.CDLL("libcuda.so.1"), device
        self._functions: dict[str, ctypes.c_void_p] = {}

    def add(self, library: str, sources: Mapping[str, str], common: Sequence[str]) -> None:
        """Compile kernels side by side and load them.

        Args:
            library: The source that all of them begin with.
            sources: By name, the source of a kernel.
            common: Names of the kernels that the library itself has.
        """
        names = [[*common], *([name] for name in sources)]
        texts = [library, *(f"#define NO_COMMON\n{library}{each}" for each in sources.values())]
        major, minor = torch.cuda.get_device_capability(self._device)
        compile_one = partial(compile_source, architecture=f"sm_{major}{minor}")
        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(compile_one, texts))
        with torch.cuda.device(self._device):
            torch.empty(1, device=self._device)  # torch makes the context
            for code, mine in zip(codes, names, strict=True):
                self._load(code, mine)

    def _load(self, code: bytes, names: Sequence[str]) -> None:
        module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code))
        for name in names:
            function, found = ctypes.c_void_p(), self._driver.cuModuleGetFunction
            self._check(found(ctypes.byref(function), module, name.encode()))
            self._functions[name] = function

    def _check(self, code: int) -> None:
        if code:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(words))
            raise CudaError((words.value or b"unknown error").decode())

    def reserve(self, shared: Mapping[str, int]) -> None:
        """Let kernels have so many bytes of shared memory."""
        with torch.cuda.device(self._device):
            for name, size in shared.items():
                function = self._functions[name]
                self._check(self._driver.cuFuncSetAttribute(function, _SHARED_MEMORY, size))

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Argument],
        shared: int = 0,
    ) -> None:
        """Start a kernel on torch's current stream of the device."""
        pointers, _held = addresses(arguments)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        sizes = (*grid, 1, threads, 1, 1, shared)
        with torch.cuda.device(self._device):
            start = self._driver.cuLaunchKernel
            self._check(start(self._functions[name], *sizes, stream, pointers, None))
