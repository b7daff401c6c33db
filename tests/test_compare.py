"""Policies side by side: tables by equality, figures by rendering, the command as it is used."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from pictures import noise
from PIL import Image

from deepaa import CIFAR, Operation, Policy, cli, load_policy
from deepaa.compare import (
    LEVELS,
    Bar,
    Comparison,
    Entry,
    Pair,
    PolicyBars,
    Range,
    comparison,
    layer_distances,
    level,
    load_entries,
    use_distance,
)
from deepaa.gate import policy_distance, reproduction_gate
from deepaa.hidden import hidden_share
from deepaa.report.preview import preview_grid
from deepaa.space import Space

Command = Callable[..., tuple[int, str, str]]
NOTHING = (0.0,) * 11


def turning(*shares: float) -> Policy:
    """Layers of rotate at -30, -15, 15 and 30 of five levels, invert and identity."""
    rotate = Operation("rotate", -30.0, 30.0, neutral=0.0)
    space = Space((rotate, Operation("invert"), Operation("identity")), levels=5)
    return Policy(space, torch.tensor(shares, dtype=torch.float64).view(-1, 6))


A = turning(0.5, 0.0, 0.0, 0.25, 0.25, 0.0)
B = turning(0.0, 0.25, 0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def two() -> Comparison:
    return comparison([Entry("a", A, ()), Entry("b", B, ())])


# Tables


def test_the_table() -> None:
    found = two()
    rotate = Bar("rotate", (0.5, *NOTHING[:9], 0.25), 0.0, 0.0)
    bars = (rotate, Bar("invert", NOTHING, 0.25, 0.0), Bar("identity", NOTHING, 0.0, 0.0))
    hidden = hidden_share(A)
    assert hidden > 0.05
    assert found.policies[0] == PolicyBars("a", 1, (), bars, hidden, 32)
    weak = (0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0)  # 15 of 30 is 2.5, so 3
    assert found.policies[1].bars[0] == Bar("rotate", weak, 0.0, 0.0)
    assert found.policies[1].bars[0].total == 0.75
    assert found.ranges == (Range("rotate", -30.0, 30.0),)
    # layer 1: rotate .75 and .75, invert .25 and 0; layer 2: identity against invert
    by_use = (0.0 + 0.75) / (1.5 + 1.25)
    assert found.pairs == (Pair("a", "b", pytest.approx(by_use), 0.625, (0.25, 1.0)),)
    assert [gate.label for gate in found.gates] == ["a", "b"]
    assert found.gates[0].checks == reproduction_gate(A)


@pytest.mark.parametrize(
    ("magnitude", "want"), [(-30, -5), (-15, -3), (-1, 0), (0, 0), (3, 1), (15, 3), (30, 5)]
)
def test_levels_are_symmetric(magnitude: float, want: int) -> None:
    assert level(magnitude, Range("rotate", -30.0, 30.0)) == want


def test_every_grid_of_the_space_is_spread_over_the_scale() -> None:
    for op in CIFAR.operations:
        if op.low is None or op.high is None:
            continue
        found = [
            level(m, Range(op.name, op.low, op.high)) for m in op.magnitudes(13) if m is not None
        ]
        assert found == sorted(found)
        assert set(found) <= set(LEVELS)
        if op.is_signed or op.name == "color":
            assert found == [-value for value in reversed(found)]


def test_one_level_is_one_magnitude_in_all_policies() -> None:
    found = comparison(load_entries(["deepta", "trivialaugment-wide"]))
    (rotate,) = [item for item in found.ranges if item.operation == "rotate"]
    assert rotate == Range("rotate", -135.0, 135.0)
    (bar,) = [bar for bar in found.policies[0].bars if bar.operation == "rotate"]
    assert {i for i, p in zip(LEVELS, bar.levels, strict=True) if p} == {-1, 0, 1}


@pytest.mark.parametrize(
    ("source", "defaults"),
    [
        ("deepta", ()),
        ("none", ()),
        ("crop-flip-cutout", ()),
        ("autoaugment", ("crop", "flip", "cutout")),
        ("randaugment:n=3", ("crop", "flip", "cutout")),
        ("deepaa-simple:deepta", ("crop", "flip", "cutout")),
    ],
)
def test_one_is_added_for_methods_that_run_on_defaults(source: str, defaults: tuple[str]) -> None:
    (entry,) = load_entries([source])
    assert entry.defaults == defaults
    alone = load_policy(source)
    assert entry.depth == alone.depth
    uses = alone.expected_uses()
    for bar in comparison([entry]).policies[0].bars:
        added = float(bar.operation in defaults)
        assert bar.default == added
        assert bar.total == pytest.approx(uses.get(bar.operation, 0.0) + added)


def test_the_defaults_of_imagenet() -> None:
    (entry,) = load_entries(["trivialaugment"], space="imagenet")
    assert entry.defaults == ("resized_crop", "flip")
    assert not comparison([entry], space="imagenet").gates


def test_published_files(shared: Path) -> None:
    folder = shared / "policies"
    names = "deepaa_cifar_1.npz", "fast_autoaugment_cifar10.json", "dada_cifar10.json"
    found = comparison(load_entries([folder / name for name in names]))
    assert [policy.label for policy in found.policies] == list(names)
    assert [bool(policy.defaults) for policy in found.policies] == [False, True, True]
    assert all(check.passed for check in found.gates[0].checks)
    assert len(found.gates) == 1
    rotate = next(bar.levels for bar in found.policies[1].bars if bar.operation == "rotate")
    assert rotate == pytest.approx(rotate[::-1])  # mirrored, as its evaluation does


def test_a_phase_of_a_schedule(tmp_path: Path) -> None:
    both = A.then(B)
    first = both.first_layers(1).phases[0].stages
    path = tmp_path / "changing.json"
    Policy(both.table, schedule=[(0, first), (5, both.phases[0].stages)]).save(path)
    assert load_entries([path])[0].depth == 1
    assert load_entries([path], epoch=5)[0].depth == 3
    # what is shown belongs to an epoch, which the label says
    labels = [entry.label for entry in load_entries([path, "deepta"], epoch=5)]
    assert labels == ["changing.json in epoch 5", "deepta"]


def test_distances() -> None:
    policies = [load_policy(name) for name in ("deepta", "uniform", "randaugment", "crop-flip")]
    for a in policies:
        for b in policies:
            layers = layer_distances(a, b)
            assert len(layers) == max(a.depth, b.depth)
            assert sum(layers) / len(layers) == pytest.approx(policy_distance(a, b))
            assert use_distance(a, b) == pytest.approx(use_distance(b, a))
        assert use_distance(a, a) == 0
    assert use_distance(load_policy("none"), load_policy("none")) == 0
    assert use_distance(load_policy("none"), policies[0]) == 1
    # the order of layers does not matter to what an image meets
    assert use_distance(A.then(B), B.then(A)) == pytest.approx(0)
    assert policy_distance(A.then(B), B.then(A)) > 0


def test_labels_tell_policies_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        A.save(tmp_path / name / "policy.json")
    x, y = (str(tmp_path / name / "policy.json") for name in ("x", "y"))
    assert [entry.label for entry in load_entries([x, y])] == [x, y]
    simple = f"deepaa-simple:{x}"
    found = [entry.label for entry in load_entries([x, simple, "deepta", "deepta"])]
    assert found == ["policy.json", "deepaa-simple:policy.json", "deepta (1)", "deepta (2)"]


# Figures


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?")])
def test_the_figure_is_drawn(kind: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    from deepaa.report.compare_figure import compare_figure, figure_bytes

    found = comparison(load_entries(["deepta", "autoaugment"]))
    data = figure_bytes(compare_figure(found), kind)
    assert data.startswith(start)
    assert data == figure_bytes(compare_figure(found), kind)


def test_bars_are_as_high_as_the_table_says() -> None:
    pytest.importorskip("matplotlib")
    from deepaa.report.compare_figure import compare_figure

    found = two()
    figure = compare_figure(found)
    for panel, policy in zip(figure.axes, found.policies, strict=False):
        tops: dict[float, float] = {}
        for patch in panel.patches:
            place = round(patch.get_x() + patch.get_width() / 2)
            tops[place] = max(tops.get(place, 0.0), patch.get_y() + patch.get_height())
        assert list(tops.values()) == pytest.approx([bar.total for bar in policy.bars])
        assert policy.label in panel.get_title(loc="left")


def test_samples_are_the_previews_side_by_side() -> None:
    from deepaa.report.compare_figure import samples_picture

    images = noise(2, 3, 16, 16)
    entries = load_entries(["deepta", "crop-flip", "none", "uniform", "deepta:1"])
    sheet = np.asarray(samples_picture(images, entries, draws=2, seed=4))
    for i, entry in enumerate(entries):
        grid = np.asarray(preview_grid(images, entry.policy, 2, 4, title=entry.label))
        height, width = grid.shape[:2]
        y, x = i // 3 * height, i % 3 * width
        assert np.array_equal(sheet[y : y + height, x : x + width], grid)


def test_the_page_needs_nothing_else() -> None:
    pytest.importorskip("matplotlib")
    from deepaa.report.compare_page import compare_page

    odd = comparison([Entry("<script>a & b", A, ()), Entry("b", B, ())])
    page = compare_page(odd, Image.new("RGB", (4, 4)))
    assert "<script" not in page
    assert "&lt;script&gt;a &amp; b" in page
    assert 'src="http' not in page
    assert "@import" not in page
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert 'src="data:image/png;base64,' in page


# The command


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_compare_in_80_columns(command: Command) -> None:
    code, out, err = command("compare", "deepta", "autoaugment", "deepaa-simple:deepta")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "2  autoaugment: 2 layers, then crop, flip, cutout" in lines
    assert "  flip           0.333 1.000* 1.056*" in lines
    assert "  shear_x        0.333      -  0.056" in lines
    at = lines.index("Hidden: cut out, or uncovered by geometry, of 32 x 32 pixels")
    assert re.fullmatch(r"  on average     +3\d % +3\d % +3\d %", lines[at + 2])
    assert "  layer 1 is broad                  yes" in lines
    assert "  1: cutout is used: 0.333 times an image, at least 0.8" in lines


def test_compare_json(command: Command) -> None:
    code, out, _ = command("compare", "deepta", "randaugment", "--json", "--space", "imagenet")
    assert code == 0
    found = json.loads(out)
    assert [policy["label"] for policy in found["policies"]] == ["deepta", "randaugment"]
    assert found["policies"][1]["defaults"] == ["resized_crop", "flip"]
    assert len(found["pairs"][0]["layers"]) == 5
    assert [policy["side"] for policy in found["policies"]] == [224, 224]
    assert 0 < found["policies"][1]["hidden"] < found["policies"][0]["hidden"] < 1
    assert found["gates"] == []


def test_compare_writes_figure_page_and_samples(
    command: Command,
) -> None:
    pytest.importorskip("matplotlib")
    few = ("--images", 2, "--draws", 1)
    code, out, _ = command(
        "compare", "deepta", "none", "--out", "f.svg", "--samples", "s.png", *few
    )
    assert code == 0
    assert out.endswith("\nwrote f.svg and s.png\n")
    assert ElementTree.parse("f.svg").getroot().tag.endswith("svg")
    with Image.open("s.png") as sheet:
        one = preview_grid(noise(2, 3, 32, 32), load_policy("none"), 1)
        assert sheet.size == (2 * one.width, one.height)
    assert command("compare", "deepta", "none", "--out", "p.html", *few)[0] == 0
    assert "data:image/png" in Path("p.html").read_text()


def test_own_operations(command: Command) -> None:
    code = (
        "from deepaa import Operation\nFADE = Operation('fade', 0.0, 1.0, pil=lambda i, m, u: i)\n"
    )
    Path("my_fading.py").write_text(code)
    fade = Operation("fade", 0.0, 1.0, pil=lambda i, m, u: i)
    Policy.trivial(CIFAR.plus(fade), 2).save("mine.json")
    code_, out, _ = command("compare", "mine.json", "deepta", "--operations", "my_fading:FADE")
    assert code_ == 0
    assert "  fade           0.105      -" in [line.rstrip() for line in out.splitlines()]
    simple = load_entries(["deepaa-simple:mine.json"], [fade])[0]
    assert (simple.depth, simple.defaults) == (1, ("crop", "flip", "cutout"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deepta"], "two policies or more, got only deepta"),
        (["deepta", "depta"], "did you mean 'deepta'"),
        (["deepta", "none", "--out", "f.txt"], "--out f.txt: unknown kind of figure; use .png"),
        (["deepta", "none", "--samples", "s.txt"], "--samples s.txt: unknown kind of picture"),
        (["deepta", "none", "--out", "no/f.png"], "the folder no does not exist"),
        (["deepta", "none", "--space", "mnist"], "space should be cifar or imagenet, got 'mnist'"),
        (["deepta", "none", "--samples", "s.png", "--data", "no"], "no: no such file"),
    ],
)
def test_errors_are_one_line(command: Command, words: list[str], message: str) -> None:
    code, out, err = command("compare", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(Path.cwd().iterdir())


def test_a_missing_matplotlib_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = command("compare", "deepta", "none", "--out", "f.png")
    assert code == 2
    assert "figures need matplotlib" in err
    assert command("compare", "deepta", "none")[0] == 0


def test_bytes_of_an_unknown_kind() -> None:
    pytest.importorskip("matplotlib")
    from deepaa.report.compare_figure import compare_figure, figure_bytes

    with pytest.raises(ValueError, match="'gif'; choose from png, svg, pdf"):
        figure_bytes(compare_figure(two()), "gif")
    assert Image.open(io.BytesIO(figure_bytes(compare_figure(two()), "png"))).width > 1000
