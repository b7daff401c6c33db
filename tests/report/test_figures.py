"""Drawings by rendering: SVG is parsed, PNG and PDF are opened, marks are where numbers say."""

from __future__ import annotations

import builtins
import io
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pytest
import torch
from contest_files import HARMS, contest
from PIL import Image

from deepaa.ops.space import CIFAR, Operation, Table
from deepaa.policy.policy import Layers, Policy
from deepaa.report.comparison import compare_policies, load_entries, plot_comparison
from deepaa.report.contest import contest_table
from deepaa.report.dots import plot_accuracy, plot_contest
from deepaa.report.drawing import (
    COLOURS,
    MARGIN,
    Dot,
    Drawing,
    Line,
    Rect,
    Text,
    figure_bytes,
    inline_svg,
    parse_formats,
    save_figures,
    standalone_svg,
)
from deepaa.report.figures import (
    CELL,
    FULL,
    MOST_POINTS,
    padded,
    plot_accuracy_by_depth,
    plot_depth,
    plot_magnitudes,
    plot_operations,
    plot_steps,
    plot_uncertainty,
    share_text,
    smoothed,
    ticks,
)
from deepaa.report.policy_tables import LayerTable, layer_table, operation_table
from deepaa.report.run_tables import AccuracyRow

TABLE = Table(
    [
        (Operation("identity"), None),
        (Operation("invert"), None),
        (Operation("rotate", -30.0, 30.0, neutral=0.0), -30.0),
        (Operation("rotate", -30.0, 30.0, neutral=0.0), 15.0),
    ]
)
POLICY = Policy(TABLE, Layers(torch.tensor([[0.0, 0.5, 0.125, 0.375], [0.75, 0.0, 0.25, 0.0]])))
NAMES = ("layer", "kept", "improvement_mean", "improvement_std", "deepta_mean", "deepta_std")
DEPTH = (
    dict(zip(NAMES, (1, True, 0.1, 0.05, 0.08, 0.06), strict=True)),
    dict(zip(NAMES, (2, False, 0.1, 0.05, 0.12, 0.09), strict=True)),
)
DROPPED = LayerTable(3, 0.1, 2**0.1, 0.99, (), 0, 0.0)
STEPS = {
    1: [
        {"step": 1, "similarity": 0.1, "identity": 0.9},
        {"step": 2, "similarity": 0.3, "identity": 0.5},
        {"step": 3, "similarity": 0.2, "identity": 0.1},
    ]
}
ROW = AccuracyRow("one", 3, "cifar10", "small", 10, 4, 0.95, 0.002)


def need_matplotlib(*kinds: str) -> None:
    """Skip the test where figures of these kinds cannot be written."""
    if set(kinds) != {"svg"}:
        pytest.importorskip("matplotlib", reason="PNG and PDF figures need matplotlib")


def spread(policy: Policy) -> list[Drawing]:
    return [plot_magnitudes(row) for row in operation_table(policy) if row.is_spread]


def contests() -> list[Drawing | None]:
    """That candidates help, that they harm, and what is there before the end."""
    found = {"helps": contest(), "harms": contest(HARMS), "going": contest(done=14)}
    drawn = {name: plot_contest(contest_table(document)) for name, document in found.items()}
    return [drawing and drawing._replace(name=name) for name, drawing in drawn.items()]


@cache
def drawings() -> list[Drawing]:
    points = (ROW._replace(layers=1), ROW._replace(layers=2, half_width=None))
    return [
        plot_operations(operation_table(POLICY)),
        *spread(POLICY),
        *plot_uncertainty(layer_table(POLICY)),
        *[
            drawing._replace(name=f"{drawing.name}-dropped")
            for drawing in plot_uncertainty(layer_table(POLICY), DROPPED)
        ],
        *plot_depth(DEPTH),
        *plot_steps(STEPS, "similarity"),
        *plot_steps(STEPS, "identity"),
        plot_accuracy([ROW, ROW._replace(method="two", mean=0.9, half_width=None)]),
        plot_accuracy([ROW._replace(half_width=0.9), ROW])._replace(name="wide-intervals"),
        plot_accuracy_by_depth([("p", points), ("deepta", points)]),
        *(drawing for drawing in contests() if drawing),
        plot_comparison(compare_policies(load_entries(["none", "crop-flip", "trivialaugment"]))),
    ]


@pytest.mark.parametrize("drawing", drawings(), ids=lambda drawing: drawing.name)
def test_svg_is_well_formed(drawing: Drawing) -> None:
    for text in (inline_svg(drawing), standalone_svg(drawing)):
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label") == drawing.description != ""
        assert len(list(root)) >= len(drawing.marks)
        assert "nan" not in text


@pytest.mark.parametrize("drawing", drawings(), ids=lambda drawing: drawing.name)
def test_renders_as_png_and_pdf(drawing: Drawing) -> None:
    need_matplotlib("png", "pdf")
    size = (round(3 * (side + 2 * MARGIN)) for side in (drawing.width, drawing.height))
    with Image.open(io.BytesIO(figure_bytes(drawing, "png"))) as picture:
        assert picture.size == pytest.approx(tuple(size), abs=1)
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 5  # something is drawn
    assert figure_bytes(drawing, "pdf").startswith(b"%PDF-")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_equal_drawings_are_equal_files(kind: str) -> None:
    need_matplotlib(kind)
    assert figure_bytes(drawings()[0], kind) == figure_bytes(drawings()[0], kind)


def test_a_dropped_layer_is_hollow() -> None:
    for drawing in plot_uncertainty(layer_table(POLICY), DROPPED):
        assert [mark.hollow for mark in drawing.marks if isinstance(mark, Dot)] == [0, 0, 1]


def test_a_thinned_curve_keeps_its_ends() -> None:
    steps = range(1, 2 * MOST_POINTS + 1)
    records = [{"step": step, "identity": step / 1000} for step in steps]
    (drawing,) = plot_steps({1: records}, "identity")
    (line,) = [m for m in drawing.marks if isinstance(m, Line) and len(m.points) > 2]
    assert len(line.points) == MOST_POINTS + 1
    assert {"1", str(2 * MOST_POINTS)} <= {m.text for m in drawing.marks if isinstance(m, Text)}


@pytest.mark.parametrize("drawing", drawings(), ids=lambda drawing: drawing.name)
def test_marks_stay_on_the_canvas(drawing: Drawing) -> None:
    for mark in drawing.marks:
        if isinstance(mark, Rect):
            corners = [(mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height)]
        elif isinstance(mark, Line):
            corners = list(mark.points)
        else:
            corners = [(mark.x, mark.y)]
        for x, y in corners:
            assert -0.01 <= x <= drawing.width + 0.01, mark
            assert -0.01 <= y <= drawing.height + 0.01, mark


def test_bars_are_as_long_as_the_probabilities() -> None:
    drawing = plot_operations(operation_table(POLICY))
    bars = {mark.title: mark.width / CELL for mark in drawing.marks if isinstance(mark, Rect)}
    del bars[""]  # the darker edges
    assert bars == {
        "layer 1: invert 50.00%": 0.5,
        "layer 1: rotate 50.00%": 0.5,
        "layer 2: rotate 25.00%": 0.25,
        "layer 2: identity 75.00%": 0.75,
    }


def test_magnitudes_share_a_scale_within_their_operation() -> None:
    (drawing,) = spread(POLICY)
    tall = {mark.title: mark.height for mark in drawing.marks if isinstance(mark, Rect)}
    whole = tall["layer 2: rotate -30 in 100% of uses"]
    assert tall["layer 1: rotate -30 in 25% of uses"] == pytest.approx(0.25 * whole)
    assert tall["layer 1: rotate 15 in 75% of uses"] == pytest.approx(0.75 * whole)
    even = spread(Policy.trivial(CIFAR, 1))[0]
    heights = {round(mark.height, 9) for mark in even.marks if isinstance(mark, Rect)}
    assert heights == {
        round(whole / 12 / FULL, 9)
    }  # an even spread does not look like a strong one


def test_dropped_layers_are_hollow_and_deepta_is_dashed() -> None:
    drawing, _ = plot_depth(DEPTH)
    found = [mark for mark in drawing.marks if isinstance(mark, Dot) and mark.title]
    assert [(dot.shape, dot.hollow) for dot in found] == [
        *(("circle", False), ("circle", True)),
        *(("square", False), ("square", False)),
    ]
    assert any(isinstance(mark, Line) and mark.dash for mark in drawing.marks)
    labels = {mark.text for mark in drawing.marks if isinstance(mark, Text)}
    assert {"found policy", "DeepTA", "1", "2"} <= labels


def test_higher_values_are_drawn_higher() -> None:
    (drawing,) = plot_steps(STEPS, "identity")
    lines = [m for m in drawing.marks if isinstance(m, Line) and len(m.points) == 3]
    (points,) = (line.points for line in lines)
    assert points[0][0] < points[1][0] < points[2][0]
    assert points[0][1] < points[1][1] < points[2][1]  # 0.9, 0.5, 0.1; y grows downwards


def test_long_curves_are_thinned() -> None:
    records = [{"step": step, "similarity": 0.5} for step in range(5000)]
    (drawing,) = plot_steps({1: records}, "similarity")
    assert max(len(m.points) for m in drawing.marks if isinstance(m, Line)) <= 300


def test_the_best_method_is_on_top() -> None:
    rows = [ROW, ROW._replace(method="best", mean=0.97), ROW._replace(method="worst", mean=0.2)]
    texts = [m.text for m in plot_accuracy(rows).marks if isinstance(m, Text) and m.size == 12]
    assert texts == ["best", "97.00", "one", "95.00", "worst", "20.00"]


def test_text_is_escaped() -> None:
    drawing = Drawing("x", 'a "quote" & <tag>', 9, 9, (Text(0, 0, "<script>&"),))
    root = ET.fromstring(inline_svg(drawing))
    assert root.get("aria-label") == 'a "quote" & <tag>'
    assert root[0].text == "<script>&"
    # a page colours its drawings itself; a file brings the colours
    assert "var(--faint)" in inline_svg(drawing)
    assert COLOURS["faint"] in standalone_svg(drawing)
    assert "var(" not in standalone_svg(drawing)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(0.013, 0.19, 4) == [0.05, 0.1, 0.15]
    assert ticks(-0.3, 0.3, 3) == [-0.2, 0, 0.2]
    assert ticks(93.1, 97.9, 4) == [94, 96]
    assert ticks(5, 5) == [5]
    assert padded([1.0, 2.0], 0.1) == (0.9, 2.1)
    assert padded([0.0]) == (-1.0, 1.0)


def test_numbers_in_words() -> None:
    assert [share_text(p) for p in (0, 0.0004, 0.0006, 0.05, 0.0994, 0.0996, 1)] == [
        *("·", "·", "0.1", "5.0", "9.9", "10", "100")
    ]
    assert smoothed([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]


# Files


@pytest.mark.parametrize("kinds", [("svg",), ("png", "svg", "pdf")], ids=",".join)
def test_figures_as_files(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    need_matplotlib(*kinds)
    written = save_figures(drawings()[:2], tmp_path / "new", kinds)
    names = [f"{name}.{kind}" for name in ("operations", "magnitudes-rotate") for kind in kinds]
    assert [path.name for path in written] == names
    assert all(path.stat().st_size > 500 for path in written)


def test_formats() -> None:
    assert parse_formats("png, SVG,png") == ("png", "svg")
    with pytest.raises(ValueError, match="png, svg, pdf with commas between, got 'gif'"):
        parse_formats("gif")


def test_without_matplotlib_svg_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert len(save_figures(drawings()[:1], tmp_path, ("svg",))) == 1
    with pytest.raises(ValueError, match=r"pip install 'deepaa\[report\]', or write SVG"):
        save_figures(drawings()[:1], tmp_path / "other", ("svg", "png"))
    assert not (tmp_path / "other").exists()
