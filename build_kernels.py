"""Compile the C kernels of this source tree: `python build_kernels.py`.

The library goes beside its source, where the package looks for it and nowhere else. Installing the
package does the same through `hatch_build.py`. Needs a C compiler, and nothing but Python.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "src/deepaa/ops"
SOURCE, LIBRARY, CHECKSUM = "kernels.c", "libdeepaa.so", "libdeepaa.so.sha256"
REASON = "libdeepaa.so.missing"
"""Why a build has no library, for `deepaa doctor`."""
FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-std=c11")
_AVX2 = ("-mavx2", "-mbmi", "-mbmi2")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
LEVELS = {"x86_64": ((), _AVX2, (*_AVX2, *_AVX512))}
"""Flags of the copies for newer processors, by machine; `deepaa_level` of kernels.c asks for the
same instructions."""


class BuildError(Exception):
    """Why there is no library."""


def build(folder: Path = FOLDER) -> Path:
    """Compile and link the kernels in `folder`, whole or not at all."""
    compiler = _compiler()
    source = (folder / SOURCE).read_bytes()
    machine = _run([*compiler, "-dumpmachine"]).partition("-")[0]
    stamp = f'-DSOURCE="{hashlib.sha256(source).hexdigest()}"'
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        code, made, parts = Path(scratch, SOURCE), Path(scratch, LIBRARY), []
        code.write_bytes(source)  # what was hashed, whatever is written to the file meanwhile
        for level, tuned in enumerate(LEVELS.get(machine, ((),))):
            parts.append(f"{scratch}/{level}.o")
            defined = (stamp, f"-DLEVEL={level}")
            _run([*compiler, *FLAGS, *tuned, *defined, "-c", str(code), "-o", parts[-1]])
        _run([*compiler, "-shared", *parts, "-o", str(made)])
        checksum = Path(scratch, CHECKSUM)
        checksum.write_text(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {LIBRARY}\n")
        for path in (made, checksum):
            path.chmod(0o644)
            path.replace(folder / path.name)
    (folder / REASON).unlink(missing_ok=True)
    return folder / LIBRARY


def note_reason(error: Exception, folder: Path = FOLDER) -> Path:
    """Write why there is no library, and return the file that says so."""
    path = folder / REASON
    path.write_text(" ".join(str(error).split()) + "\n")
    return path


def _compiler() -> list[str]:
    if sys.platform == "win32":
        raise BuildError("the C kernels are not built on Windows")
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    found = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if found is None:
        raise BuildError("there is no C compiler (cc, gcc or clang, or the variable CC)")
    return [found]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        words = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
        raise BuildError(f"{command[0]} failed: {words}")
    return done.stdout.strip()


def main() -> int:
    """Build in place, and say so in one line."""
    try:
        print(f"built {build()}")
    except (BuildError, OSError) as error:
        print(f"error: no C kernels, torch's slower ones will serve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
