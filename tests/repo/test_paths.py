"""docs/architecture.md names the files that a search and a training run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deepaa.ops import batch_kernels

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
MOST = {"search": 51, "train": 35}


def listed(command: str) -> set[str]:
    """The files in the table behind the command on the page."""
    table = PAGE.split(f"paths.py {command} ", 1)[1].split("|---|---|", 1)[1].split("\n\n", 1)[0]
    names = set()
    for package, files in re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.M):
        folder = "" if package == "the top" else f"{package.strip('`')}/"
        for file in files.split(", "):
            if "gradient_matching/: " in file:
                folder, file = f"{folder}gradient_matching/", file.rpartition(": ")[2]
            names.add(f"{folder}{file}.py")
    return names


@pytest.mark.slow
@pytest.mark.parametrize("command", MOST)
def test_the_page_lists_the_files_of_a_command(command: str, tmp_path: Path) -> None:
    if next(batch_kernels())[0] != "CPU compiled":
        pytest.skip("no C compiler: other kernels run")
    (line,) = re.findall(rf"^python (tests/helpers/paths.py {command} .*)$", PAGE, re.M)
    words = [str(tmp_path / word) if word in ("run", "trained") else word for word in line.split()]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    found = re.findall(r"^ *\d+ ([\w/]+\.py)( \(shows the policy\))?$", done.stdout, re.M)
    assert {name for name, shows in found if not shows} == listed(command)
    assert len(listed(command)) <= MOST[command]
