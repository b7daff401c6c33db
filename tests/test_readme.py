"""What the README promises: its files exist and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_own_operation_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (code,) = (block for block in blocks if "def fade" in block)
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    names = {"images": images}
    exec(code, names)
    assert names["images"].shape == images.shape
    assert "fade" in {op.name for op in names["policy"].table.operations}
    assert not torch.equal(names["images"], images)


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    from deepaa.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"^deepaa (\w+)", text, re.M)) <= known
