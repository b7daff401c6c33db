"""Policies side by side: tables by equality, figures by rendering, the command as it is used."""

from __future__ import annotations

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

from deepaa import CIFAR, IMAGENET, Operation, Policy, load_policy
from deepaa.cli import app as cli
from deepaa.ops.space import Space
from deepaa.policy import hidden_share
from deepaa.report.comparison import (
    BAR,
    LEVELS,
    LINE,
    Bar,
    Comparison,
    Entry,
    Pair,
    PolicyBars,
    Range,
    compare_policies,
    comparison_grid,
    level,
    load_entries,
    plot_comparison,
)
from deepaa.report.drawing import Line, Rect, Text, figure_bytes
from deepaa.report.page import comparison_page
from deepaa.report.pictures import preview_grid

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
    return compare_policies([Entry("a", A, ()), Entry("b", B, ())])


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
    found = compare_policies(load_entries(["deepta", "trivialaugment-wide"]))
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
    for bar in compare_policies([entry]).policies[0].bars:
        added = float(bar.operation in defaults)
        assert bar.default == added
        assert bar.total == pytest.approx(uses.get(bar.operation, 0.0) + added)


def test_the_defaults_of_imagenet() -> None:
    (entry,) = load_entries(["trivialaugment"], space="imagenet")
    assert entry.defaults == ("resized_crop", "flip")


def test_published_files(shared: Path) -> None:
    folder = shared / "policies"
    names = "deepaa_cifar_1.npz", "fast_autoaugment_cifar10.json", "dada_cifar10.json"
    found = compare_policies(load_entries([folder / name for name in names]))
    assert [policy.label for policy in found.policies] == list(names)
    assert [bool(policy.defaults) for policy in found.policies] == [False, True, True]
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


def test_labels_tell_policies_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        A.save(tmp_path / name / "policy.json")
    x, y = (str(tmp_path / name / "policy.json") for name in ("x", "y"))
    assert [entry.label for entry in load_entries([x, y])] == ["x/policy.json", "y/policy.json"]
    simple = f"deepaa-simple:{x}"
    found = [entry.label for entry in load_entries([x, simple, "deepta", "deepta"])]
    assert found == ["x/policy.json", "deepaa-simple:x/policy.json", "deepta (1)", "deepta (2)"]


def test_the_folder_of_a_run_means_what_its_search_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    load_policy("trivialaugment").save(run / "policy.json")
    (before,) = load_entries([str(run)])
    assert (before.label, before.policy.depth) == ("run", 1)  # a run of old has one policy alone
    A.save(run / "found.json")
    sources = [str(run), run, str(run / "policy.json"), f"deepaa-simple:{run}"]
    entries = load_entries(sources)
    assert [entry.label for entry in entries] == [
        *(f"{run}/found.json (1)", f"{run}/found.json (2)", "run/policy.json"),
        "deepaa-simple:run/found.json",
    ]
    assert entries[0].policy.equals(A)
    assert entries[1].policy.equals(A)
    assert entries[2].policy.equals(before.policy)
    (simple,) = load_entries([f"deepaa-simple:{run / 'found.json'}"])
    assert entries[3].policy.equals(simple.policy)
    with pytest.raises(ValueError, match="File name too long"):
        load_entries(["x" * 300])


# Figures


def test_bars_are_as_long_as_the_table_says() -> None:
    found = two()
    drawing = plot_comparison(found)
    scale = BAR / 1.0  # the longest: invert of b
    bars = [m for m in drawing.marks if isinstance(m, Rect) and m.title]
    assert {mark.title: mark.width / scale for mark in bars} == pytest.approx(
        {
            "rotate, magnitude -5 of -5 to 5: 0.500": 0.5,
            "rotate, magnitude 5 of -5 to 5: 0.250": 0.25,
            "invert: 0.250": 0.25,
            "rotate, magnitude -3 of -5 to 5: 0.250": 0.25,
            "rotate, magnitude 3 of -5 to 5: 0.500": 0.5,
            "invert: 1.000": 1.0,
            "identity: 0.250": 0.25,
        }
    )
    texts = [mark.text for mark in drawing.marks if isinstance(mark, Text)]
    assert {"a", "b", "1 layer", "2 layers", "0.75", "rotate", "invert"} <= set(texts)
    assert "default augmentation" not in texts
    defaults = plot_comparison(compare_policies(load_entries(["crop-flip", "autoaugment"])))
    assert "default augmentation" in [m.text for m in defaults.marks if isinstance(m, Text)]
    outlines = [m.points for m in defaults.marks if isinstance(m, Line) and len(m.points) == 5]
    assert any(points[1][0] - points[0][0] == pytest.approx(BAR) for points in outlines)


def test_many_policies_go_below_and_long_names_are_cut() -> None:
    entries = [Entry(f"{'folder/' * 9}{i}.json", A, ()) for i in range(4)]
    drawing = plot_comparison(compare_policies(entries))
    names = [m for m in drawing.marks if isinstance(m, Text) and m.text.endswith(".json")]
    assert {m.text[:3] for m in names} == {"..."}
    assert names[3].y > names[0].y + 3 * LINE
    assert names[3].x == names[0].x


def test_samples_are_the_previews_side_by_side() -> None:
    images = noise(2, 3, 16, 16)
    entries = load_entries(["deepta", "crop-flip", "none", "uniform", "deepta:1"])
    sheet = np.asarray(comparison_grid(images, entries, draws=2, seed=4))
    for i, entry in enumerate(entries):
        grid = np.asarray(preview_grid(images, entry.policy, 2, 4, title=entry.label))
        height, width = grid.shape[:2]
        y, x = i // 3 * height, i % 3 * width
        assert np.array_equal(sheet[y : y + height, x : x + width], grid)


def test_the_page_needs_nothing_else() -> None:
    odd = compare_policies([Entry("<script>a & b", A, ()), Entry("b", B, ())])
    page = comparison_page(odd, Image.new("RGB", (4, 4)))
    assert page.count("<script") == 1  # that of the base
    assert "&lt;script&gt;a &amp; b" in page
    assert not re.search(r'src="http|@import|url\(', page)
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert ElementTree.fromstring(svg).get("data-figure") == "comparison"
    assert 'src="data:image/png;base64,' in page
    assert 'data-table="distances"' in page
    assert "<img" not in comparison_page(odd)


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
    assert "  flip           0.333  1.000* 1.056*" in lines, "the points are in one column"
    assert "  shear_x        0.333      -  0.056" in lines
    assert "  * 1.00 of it by the default augmentation, that of CIFAR (--space)" in lines
    assert "  flip is a coin toss: half of the images that meet it change" in lines
    at = lines.index("Hidden: cut out, or uncovered by geometry, of 32 x 32 pixels")
    assert re.fullmatch(r"  on average     +3\d % +3\d % +3\d %", lines[at + 2])


def test_files_of_large_images_are_compared_as_large_images_are(command: Command) -> None:
    Policy.uniform(IMAGENET.only("rotate", "resized_crop"), 1).save("large.json")
    code, out, _ = command("compare", "large.json", "randaugment:n=1")
    assert code == 0
    assert "2  randaugment:n=1: 1 layer, then resized_crop, flip" in out
    assert "of 224 x 224 pixels" in out
    assert "that of ImageNet" in out
    code, out, _ = command("compare", "large.json", "randaugment:n=1", "--space", "cifar")
    assert code == 0
    assert "2  randaugment:n=1: 1 layer, then crop, flip, cutout" in out


def test_compare_json(command: Command) -> None:
    two = ("deepta:2", "randaugment:n=1")  # larger images take longer
    code, out, _ = command("compare", *two, "--json", "--space", "imagenet")
    assert code == 0
    found = json.loads(out)
    assert [policy["label"] for policy in found["policies"]] == list(two)
    assert found["policies"][1]["defaults"] == ["resized_crop", "flip"]
    assert len(found["pairs"][0]["layers"]) == 2
    assert [policy["side"] for policy in found["policies"]] == [224, 224]
    assert 0 < found["policies"][1]["hidden"] < found["policies"][0]["hidden"] < 1


def test_compare_writes_figure_page_and_samples(command: Command) -> None:
    few = ("--images", 2, "--draws", 1)
    code, out, _ = command(
        "compare", "deepta", "none", "--out", "f.svg", "--samples", "s.png", *few
    )
    assert code == 0
    origin = "Images of CIFAR-10 that come with the package."
    assert out.endswith(f"\nwrote f.svg and s.png\n{origin}\n")
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
        (["deepta", "none", "--space", "mnist"], "'mnist' is not one of 'cifar', 'imagenet'"),
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
    assert "figures need matplotlib: pip install 'deepaa[report]'" in err
    assert command("compare", "deepta", "none", "--out", "f.svg")[0] == 0
    pytest.importorskip("jinja2", reason="pages need jinja2")
    assert command("compare", "deepta", "none", "--out", "f.html")[0] == 0


def test_a_missing_jinja2_is_told_before_anything_is_drawn(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    words = ("--samples", "s.png", "--out", "f.html")
    code, out, err = command("compare", "deepta", "none", "--data", "missing", *words)
    assert (code, out) == (2, "")
    assert "pages need jinja2: pip install 'deepaa[report]'" in err
    code, out, err = command("report", "missing")
    assert (code, out) == (2, "")
    assert "pages need jinja2: pip install 'deepaa[report]'" in err


def test_help_and_documentation_name_the_extra_of_figures(command: Command) -> None:
    for name in ("compare", "report"):
        code, out, _ = command(name, "--help")
        words = " ".join(re.sub(r"[\u2500-\u257f]", " ", out).split())
        assert code == 0
        assert "PNG and PDF need deepaa[report]" in words, name
    for page in ("compare.md", "reading-a-report.md"):
        text = Path(__file__).parents[2].joinpath("docs", page).read_text(encoding="utf-8")
        assert "pip install 'deepaa[report]'" in text, page


def test_bytes_of_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="'gif'; choose from png, svg, pdf"):
        figure_bytes(plot_comparison(two()), "gif")
