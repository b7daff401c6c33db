"""Packages import each other in one direction: these edges, and no others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "deepaa"
PACKAGES = {
    "distributed": "",
    "files": "",
    "runs": "files distributed",
    "ops": "",
    "policy": "files ops runs",
    "transforms": "ops policy",
    "data": "files ops runs distributed",
    "models": "ops",
    "train": "files ops policy data models runs distributed",
    "search": "files ops policy data models train runs distributed",
    "report": "files ops policy data train search runs",
    "export": "ops policy runs",
    "cli": "files ops policy transforms data models train search report export runs distributed",
}
"""Each package, and those that it may import."""
# what a person who only applies policies needs may not pull these in
HEAVY = {"torchvision", "matplotlib", "typer", "rich", "jinja2", "kornia", "timm", "albumentations"}


def imported(path: Path) -> set[str]:
    """The packages of deepaa that a file imports anywhere, also for type checkers alone."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("deepaa.")}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    allowed = {package, *PACKAGES[package].split()}
    for path in (SOURCE / package).rglob("*.py"):
        assert imported(path) & PACKAGES.keys() <= allowed, path


def test_the_page_of_the_architecture_has_these_edges() -> None:
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.M)
    told = {name: set(re.findall(r"`(\w+)`", used)) for name, used in rows if used != "all"}
    assert told == {name: set(PACKAGES[name].split()) for name in PACKAGES if name != "cli"}


def test_there_is_no_cycle() -> None:
    done: list[str] = []
    for package, used in PACKAGES.items():
        assert set(used.split()) <= {*done, "distributed"}, package
        done.append(package)


def test_kernels_do_not_import_pil() -> None:
    for path in (SOURCE / "ops").glob("*.py"):
        if path.stem not in (
            "kernels_pil",
            "apply",
            "space",
            "selfcheck",
            "conversions",
            "own_operations",
            "single",
            "pil_memory",
        ):
            assert "PIL" not in path.read_text(), path


def test_importing_and_using_a_policy_stays_light() -> None:
    code = (
        "import sys, torch, deepaa\n"
        "t = deepaa.DeepAutoAugment('deepta', seed=0)\n"
        "t(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_files_keep_one_subject() -> None:
    long = {path for path in SOURCE.rglob("*.py") if path.read_text().count("\n") > 400}
    assert not long
