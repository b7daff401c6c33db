"""Every example runs by itself, without arguments, and says what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "01_use_a_policy.py": r"PIL image \(32, 32\) -> tensor \(3, 32, 32\).*twice the same pixels",
    "02_gpu_batches.py": r"epoch 3, loss \d\.\d+.*accuracy on 1000 test images",
    "03_reproducible_workers.py": "the same images every time, and new ones in every epoch",
    "04_search_your_dataset.py": r"layer 1: held-out .*found 1 layer, the same again: True.*augmen",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"Usage: python examples/{path.name}" in text
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,  # an example needs no other file
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if path.name in SAYS:
        assert re.search(SAYS[path.name], done.stdout, re.DOTALL), done.stdout
    assert "Traceback" not in done.stderr


def test_every_example_here_exists() -> None:
    assert set(SAYS) <= {path.name for path in EXAMPLES}
