"""What an installation brings: few packages, the C kernels, and extras that errors name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import build_kernels

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHOSEN = ("torch", "torchvision", "safetensors", "typer")
"""What the package is built on."""
BROUGHT = {"numpy": "torchvision", "pillow": "torchvision", "rich": "typer"}
"""What it imports besides, and which of those brings it."""


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return found[0].lower().replace("_", "-")


def needs(package: str) -> set[str]:
    """The packages that an installed one asks for, extras aside."""
    lines = metadata.requires(package) or []
    return {name_of(line) for line in lines if not re.search(r"\bextra\s*==", line)}


def everything_below(packages: tuple[str, ...]) -> set[str]:
    """These packages, and all that are installed for them."""
    found: set[str] = set()
    todo = set(packages)
    while todo:
        package = todo.pop()
        found.add(package)
        try:
            todo |= needs(package) - found
        except metadata.PackageNotFoundError:
            continue  # for another system
    return found


def test_an_installation_brings_no_more_than_torch_torchvision_typer_and_safetensors() -> None:
    named = {name_of(line) for line in PROJECT["dependencies"]}
    assert named == {*CHOSEN, *BROUGHT}
    for package, by in BROUGHT.items():
        assert package in needs(by), f"{by} does not bring {package} any more"
    below = everything_below(tuple(named))
    assert below == everything_below(CHOSEN)
    assert not below & {"matplotlib", "pandas", "scipy", "opencv-python", "lightning"}


def test_extras_are_few_and_each_is_asked_for_by_name() -> None:
    for_users = {"report": 2, "tensorboard": 1, "bench": 3, "parquet": 1, "hf": 1}
    for_developers = {"test", "dev", "docs"}
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == set(for_users) | for_developers
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for extra, size in for_users.items():
        assert len(extras[extra]) == size
        assert f"deepaa[{extra}]" in code  # in the error of what needs it
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"installed-{extra}" in makefile for extra in for_developers)


def pip(*words: str, cwd: Path) -> str:
    """What pip prints; the test is skipped where it reaches no index."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no network: pip cannot fetch packages")
    assert done.returncode == 0, done.stderr
    return done.stdout


def planned(*packages: str, folder: Path) -> set[str]:
    """The packages that pip would install into an empty environment."""
    report = folder / "report.json"
    words = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report))
    pip(*words, *packages, cwd=folder)
    plan: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return {name_of(item["metadata"]["name"]) for item in plan}


@pytest.mark.slow
def test_the_source_archive_installs_into_an_empty_environment(tmp_path: Path) -> None:
    """Archive, wheel of it, installation: with the C kernels, and nothing that nobody asked for."""
    pytest.importorskip("build", reason="build is not installed: pip install 'deepaa[dev]'")
    words = [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stdout + done.stderr:
        pytest.skip("no network: hatchling cannot be fetched")
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
    assert {"src/deepaa/ops/kernels.c", "build_kernels.py", "LICENSE", "README.md"} <= inside
    assert not [name for name in inside if ".so" in name]  # built on the machine that installs
    pip("wheel", "--no-deps", "--wheel-dir", ".", archive.name, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    pip("install", "--no-deps", "--no-index", "--target", "installed", wheel.name, cwd=tmp_path)
    told = subprocess.run(
        [sys.executable, "-m", "deepaa", "doctor", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    kernels = json.loads(told.stdout)["kernels"]["cpu"]
    assert kernels.startswith("C, for " if compiles() else "torch (slower; no C kernels: they were")
    assert planned(wheel.name, folder=tmp_path) - {"deepaa"} == planned(*CHOSEN, folder=tmp_path)


def compiles() -> bool:
    try:
        return bool(build_kernels._compiler())
    except build_kernels.BuildError:
        return False
