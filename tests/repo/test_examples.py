"""Every example runs by itself, without arguments, and says what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forks import Program, in_forks

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "01_use_a_policy.py": r"PIL image \(32, 32\) -> tensor \(3, 32, 32\).*twice the same pixels",
    "02_gpu_batches.py": r"epoch 1, loss \d\.\d+.*accuracy on 1000 test images",
    "03_search_an_image_folder.py": r"layer 1: held-out .*found 1 layer, the same again: True.*RGB",
    "04_own_operation.py": r"27 transformations, 12 of them fog.*fog +\d+\.\d%.*loaded: True",
    "05_own_model.py": r"trained first: .*as it is: .*copied, not changed: True",
    "06_compare_policies.py": r"deepta: .*distance of deepta and trivialaugment-wide: 0\.\d+",
    "07_export.py": r"wrote policy_tv\.py: 3 layers.*the pipeline draws by itself",
    "08_reproducible_workers.py": "the same images every time, and new ones in every epoch",
    "09_own_search_method.py": r"found by strengths: .*, [\d,]+ passes",
    "10_detection.py": r"box \[\[.*\]\] -> \[.*epoch 1, loss \d+\.\d+",
    "11_segmentation.py": r"epoch 2, loss \d\.\d+, \d+% from outside",
}


def test_examples_are_numbered() -> None:
    assert sorted(SAYS) == [path.name for path in EXAMPLES]
    assert [path.name[:2] for path in EXAMPLES] == [f"{n:02}" for n in range(1, len(SAYS) + 1)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"Usage: python examples/{path.name}" in text
    assert text.count("\n") < 60


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    programs = []
    for path in EXAMPLES:
        folder = tmp_path / path.stem  # an example needs no other file
        folder.mkdir()
        programs.append(Program(file=str(path), folder=str(folder)))
    for path, done in zip(EXAMPLES, in_forks(programs, timeout=600), strict=True):
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert re.search(SAYS[path.name], done.stdout, re.DOTALL), done.stdout
        assert "Traceback" not in done.stderr
