"""The notebooks: readable, without outputs, and every cell runs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SAYS = {
    "01_first_policy.ipynb": [
        r"\(4000, 3, 32, 32\) torch\.uint8",
        r"Policy\(2 layers over \d+ rows\)",
        r"epoch 2: loss \d\.\d{3}",
        r"\d\d\.\d% of 1000 test images",
    ],
    "02_your_data.ipynb": [
        r"1,000 images of 32 x 32\n +100  airplane\n +100  automobile",
        r"after \d+ epochs|over |ahead|helped",
        r"[Cc]rop, flip",
    ],
}
"""What the cells print."""
PICTURES = {"01_first_policy.ipynb": 4, "02_your_data.ipynb": 5}
"""Pictures and figures that they show."""
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_all_notebooks_are_known() -> None:
    assert [path.name for path in NOTEBOOKS] == sorted(SAYS) == sorted(PICTURES)


@each
def test_notebooks_are_stored_without_what_running_leaves(path: Path) -> None:
    content = read(path)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert path.stat().st_size < 10_000


@each
def test_notebooks_read_well(path: Path) -> None:
    cells = read(path)["cells"]
    first = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown"
    assert re.match(r"# .+\n\nAfter this notebook you ", first)
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            ast.parse(text)
            assert len(text.splitlines()) < 30
        for target in re.findall(r"\]\(([^)#\s]+)\)", text):
            assert (path.parent / target).exists(), target
        for page in re.findall(r"`(docs/[\w./-]+)`", text):
            assert (ROOT / page).exists(), page


@pytest.mark.slow
@each
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    for words in SAYS[path.name]:
        assert re.search(words, said), f"{words!r} is not in {said}"
    kinds = {"image/png", "image/svg+xml"}
    shown = [output for output in outputs if kinds & set(output.get("data", {}))]
    assert len(shown) == PICTURES[path.name]
    assert not [output for output in outputs if "Warning" in output.get("text", "")]
