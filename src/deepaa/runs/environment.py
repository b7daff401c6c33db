"""Where a result comes from: code, versions, hardware and command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("deepaa", "torch", "torchvision", "numpy", "pillow", "triton")
GIT_SECONDS = 10.0
"""A hanging git (a network disk) must not hang a run."""


def versions(*more: str) -> dict[str, str | None]:
    """The versions of Python and of the packages that matter here, or `more`; None for missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", None)
    return found


def devices() -> tuple[str, ...]:
    """The CPU and each CUDA device, in words."""
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    found = [f"cpu: {cores} cores, torch uses {threads} thread{'s' if threads > 1 else ''}"]
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        memory = about.total_memory / 2**30
        capability = f"compute capability {about.major}.{about.minor}"
        found.append(f"cuda:{i}: {about.name}, {memory:.0f} GiB, {capability}")
    return tuple(found)


def provenance() -> dict[str, object]:
    """The code, versions, hardware, command and time of this process, ready for JSON."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "code": _own_code(),
        "versions": versions(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "devices": list(devices()),
    }


@cache  # later changes of the files do not reach a process that runs
def _own_code() -> dict[str, object] | None:
    return code_version(Path(__file__).parents[1])


def code_version(folder: Path) -> dict[str, object] | None:
    """The git commit of the code in `folder` and whether its files differ from it.

    None when the code is not in a repository, such as a package installed from a wheel, even if
    the environment it is installed in lies inside somebody's repository.
    """
    if not _git(folder, "ls-files", "."):  # not one file of it belongs to the repository
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", ".")
    return {"commit": commit, "changed": bool(changes)} if commit else None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None without git or a repository."""
    # set inside a git hook, these would answer for another repository
    hidden = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},  # asking must not write to the index
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
