"""`deepaa convert --to`: files of other libraries, and how it fails."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepaa import CIFAR, Policy, load_policy
from deepaa.cli import app as cli
from deepaa.export import TARGETS, pipeline_source

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_its_own_json_is_written_as_before(command: Command) -> None:
    code, out, err = command("convert", "deepta:2", "a.json")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "read deepta:2: 2 layers over 139 transformations",
        "wrote a.json: 2 layers over 139 transformations",
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_a_python_file_for_each_library(command: Command, target: str) -> None:
    code, out, _ = command("convert", "deepta", "a.py", "--to", target)
    assert code == 0
    assert out.splitlines()[1] == f"wrote a.py: {target}, 6 layers, 834 transformations in all"
    head = ast.get_docstring(ast.parse(Path("a.py").read_text())) or ""
    assert head.startswith(f"Augmentation policy deepta for {target}")
    assert "none is left out" in head


def test_without_a_file_it_is_printed(command: Command) -> None:
    code, out, err = command("convert", "deepta", "--to", "torchvision")
    assert (code, err) == (0, "")
    assert out == pipeline_source(load_policy("deepta"), "torchvision", name="deepta")
    assert not list(Path.cwd().iterdir())


def test_what_is_left_out_is_told(command: Command) -> None:
    space = CIFAR.only("identity", "invert", "flip")
    layer = torch.tensor([[0.5, 0.49995, 0.00005]], dtype=torch.float64)
    Policy(space, layer).save("mine.json")
    _, out, _ = command("convert", "mine.json", "a.py", "--to", "kornia")
    wrote = "wrote a.py: kornia, 1 layer, 2 transformations in all; 1 of at most 0.0001 left out"
    assert out.splitlines()[1] == wrote
    assert "flip" not in Path("a.py").read_text().split("OPERATIONS = ")[1].split("}\n")[0]


@pytest.mark.parametrize(
    ("words", "made", "said"),
    [
        (["--strength", "0.5"], lambda p: p.strength(0.5), "129 transformations, strength 0.5"),
        (["--strength", "1"], lambda p: p, "139 transformations"),
        (["--spread"], lambda p: p.spread(), "239 transformations, spread"),
        (
            ["--strength", ".25", "--spread", "--symmetric"],
            lambda p: p.symmetric().spread().strength(0.25),
            "236 transformations, symmetric, spread, strength 0.25",
        ),
    ],
)
def test_weaker_and_spread_policies(
    command: Command, words: list[str], made: Callable[[Policy], Policy], said: str
) -> None:
    code, out, err = command("convert", "cifar10", "a.json", *words)
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == f"wrote a.json: 5 layers over {said}"
    found, expected = load_policy("a.json"), made(load_policy("cifar10"))
    assert found.equals(expected)
    assert found.info == expected.info


def test_strength_goes_with_an_export(command: Command) -> None:
    layer = torch.zeros(1, 12, dtype=torch.float64)
    layer[0, 0] = 1
    Policy(CIFAR.only("rotate"), layer).save("mine.json")
    command("convert", "mine.json", "a.py", "--to", "torchvision", "--strength", "0.5")
    assert '"rotate": {-15.0: 1}' in Path("a.py").read_text()


def test_symmetric_goes_with_an_export(command: Command) -> None:
    layer = torch.zeros(1, 12, dtype=torch.float64)
    layer[0, 0] = 1
    Policy(CIFAR.only("rotate"), layer).save("mine.json")
    command("convert", "mine.json", "a.py", "--to", "torchvision", "--symmetric")
    assert '"rotate": {-30.0: 0.5, 30.0: 0.5}' in Path("a.py").read_text()


def test_albumentations_own_file(command: Command) -> None:
    A = pytest.importorskip("albumentations")
    words = ("convert", "deepta-imagenet:1", "a.yaml", "--to", "albumentations", "--size", 64)
    code, out, _ = command(*words)
    assert code == 0
    assert out.startswith("pixels beside Pillow's:\n- equal: identity, ")
    (layer,) = A.load("a.yaml", data_format="yaml").transforms
    assert len(layer.transforms) == 139
    assert layer.transforms[-1].size == (64, 64)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deepta", "a.py", "--to", "imgaug"], "'imgaug'; choose from albumentations, kornia"),
        (["deepta", "a.json", "--to", "kornia"], "a.json: kornia pipelines are written as .py"),
        (["deepta", "a.txt", "--to", "albumentations"], "written as .py, .json, .yaml, .yml"),
        (["autoaugment", "a.py", "--to", "kornia"], "autoaugment has sub-policies"),
        (["deepta-imagenet", "a.py", "--to", "albumentations"], "add --size, such as 224"),
        (["deepta", "a.py", "--to", "kornia", "--size", "32"], "--size goes with"),
        (["deepta", "no/a.py", "--to", "kornia"], "the folder no does not exist"),
        (["deepta", "there.py", "--to", "kornia"], "there.py exists; add --force"),
        (["deepta", "a.json", "--strength", "1.5"], "--strength should be in 0..1, got 1.5"),
        (["deepta", "a.json", "--strength", "-1"], "--strength should be in 0..1, got -1"),
        (["deepta", "a.json", "--strength", "nan"], "--strength should be in 0..1, got nan"),
        (["deepta", "a.json", "--strength", "half"], "Invalid value for '--strength'"),
    ],
)
def test_errors_are_one_line(command: Command, words: list[str], message: str) -> None:
    Path("there.py").write_text("precious")
    code, out, err = command("convert", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert Path("there.py").read_text() == "precious"
    assert [path.name for path in Path.cwd().iterdir()] == ["there.py"]


def test_a_missing_library_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "albumentations", None)
    code, _, err = command("convert", "deepta", "a.json", "--to", "albumentations")
    assert code == 2
    assert "albumentations cannot be imported" in err
    assert command("convert", "deepta", "a.py", "--to", "albumentations")[0] == 0
