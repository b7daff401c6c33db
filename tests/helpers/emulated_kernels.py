"""Runs CUDA kernels on a CPU, thread by thread: their arithmetic is tested without a GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deepaa.train.fused.cuda import Argument, addresses

HEADER = Path(__file__).parent / "cuda_emulator.h"
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)')


def compiler() -> str | None:
    """A C++ compiler, where there is one."""
    return shutil.which("g++") or shutil.which("clang++")


class EmulatedKernels:
    """Kernels of a source, with the interface of `CudaKernels`; tensors lie on the CPU."""

    def __init__(self, source: str, folder: Path, *, early: bool = False) -> None:
        """Compile the source with a C++ compiler.

        Args:
            early: Whether what a kernel fetches arrives at once, and not when it is waited for.
        """
        source = source.replace("extern __shared__ __align__(16) unsigned char shared[];", "")
        source = source.replace("__shared__", "static")
        calls = []
        for name, parameters in _KERNEL.findall(source):
            types = [parameter.strip().rpartition(" ")[0] for parameter in parameters.split(",")]
            given = ", ".join(f"*({each}*)a[{i}]" for i, each in enumerate(types))
            calls.append(
                f"static void start_{name}(void** a) {{ {name}({given}); }}\n"
                f'extern "C" void launch_{name}(int x, int y, int threads, void** a) '
                f"{{ launch(start_{name}, x, y, threads, a); }}\n"
            )
        text = f'#include "{HEADER}"\n{source}\n{"".join(calls)}'
        path, library = folder / "kernels.cpp", folder / "kernels.so"
        path.write_text(text)
        command = [str(compiler()), "-O2", "-std=c++17", "-w", "-fPIC", "-shared"]
        command += ["-DEARLY"] if early else []
        done = subprocess.run(
            [*command, str(path), "-o", str(library)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        self._library = ctypes.CDLL(str(library))

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Argument],
        shared: int = 0,
    ) -> None:
        """Run a kernel to its end."""
        pointers, _held = addresses(arguments)
        getattr(self._library, f"launch_{name}")(*grid, threads, pointers)
