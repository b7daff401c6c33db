"""Dots with intervals are where the numbers say, in figures and in terminals."""

from __future__ import annotations

import pytest
from contest_files import HARMS, HELPS, PROTECTED, Contestant, contest

from deepaa.report import dots
from deepaa.report.contest import Candidate, ContestView, Rung, contest_table, scale
from deepaa.report.dots import (
    EDGE,
    WIDTH,
    DotRow,
    contest_lines,
    dot_plot,
    plot_accuracy,
    plot_contest,
    text_bar,
)
from deepaa.report.drawing import Dot, Drawing, Line, Rect, Text
from deepaa.report.run_tables import AccuracyRow
from deepaa.search.contest import Size

SEEN = contest_table(contest(protected=PROTECTED))

FORMS = ("", ", spread", ", half strength")


def texts(drawing: Drawing, size: float) -> list[str]:
    return [m.text for m in drawing.marks if isinstance(m, Text) and m.size == size]


def at(value: float, ends: tuple[float, float]) -> float:
    return EDGE + (value - ends[0]) / (ends[1] - ends[0]) * (WIDTH - 2 * EDGE)


# Figures


def test_dots_and_whiskers_are_where_the_numbers_say() -> None:
    rows = [DotRow("a", "+1", 1.0, (0.5, 2.0), earlier=(-1.0, -9.0)), DotRow("b", "", None)]
    ends = (-2.0, 3.0)
    drawing = dot_plot("x", "x", [("group", rows)], ends, "points", zero=True)
    dots = [m for m in drawing.marks if isinstance(m, Dot)]
    assert [(d.x, d.hollow) for d in dots] == [
        *((pytest.approx(at(-1, ends)), True), (pytest.approx(at(1, ends)), False)),
    ]  # what was before and lies outside has no dot
    whisker = next(m for m in drawing.marks if isinstance(m, Line) and m.colour == "accent")
    assert [x for x, _ in whisker.points] == [
        *(pytest.approx(at(0.5, ends)), pytest.approx(at(2, ends)))
    ]
    zeros = [m for m in drawing.marks if isinstance(m, Line) and m.colour == "faint"]
    assert {round(m.points[0][0], 6) for m in zeros} == {round(at(0, ends), 6)}
    assert len(zeros) == 2  # one piece for each row
    assert texts(drawing, 10) == ["-2", "-1", "0", "+1", "+2", "+3", "points"]


def test_what_lies_beyond_the_axis_gets_an_arrow() -> None:
    row = DotRow("far", "-40", -40.0, (-45.0, -35.0), "colour")
    drawing = dot_plot("x", "x", [("", [row])], (-2.0, 3.0), "points")
    assert not [m for m in drawing.marks if isinstance(m, Dot)]
    lines = [m for m in drawing.marks if isinstance(m, Line) and m.colour == "colour"]
    assert lines[-1].points[1][0] == EDGE  # its tip
    assert all(0 <= x <= WIDTH for line in lines for x, _ in line.points)


def test_a_contest_is_drawn_around_its_reference() -> None:
    drawing = plot_contest(SEEN)
    assert drawing is not None
    ends = scale(SEEN)
    winner = SEEN.winner
    assert winner is not None
    assert SEEN.proof is not None
    found = {m.title.split(":")[0]: m for m in drawing.marks if isinstance(m, Dot) and m.title}
    assert found["crop + flip + cutout"].x == pytest.approx(at(0, ends))
    assert found["found, spread"].x == pytest.approx(at(SEEN.proof.mean, ends))
    assert found["found, spread"].shape == "square"
    assert found["found, spread · winner"].x == pytest.approx(
        at(winner.rungs[-1].points or 0.0, ends)
    )
    for each in SEEN.candidates:
        dot = found.get(each.title)
        interval = each.rungs[-1].interval
        if dot and interval and not each.is_reference and each is not winner:
            side = "accent" if interval[0] > 0 else "colour" if interval[1] < 0 else "second"
            assert dot.colour == side, each.title
    assert {found[name].colour for name in ("found", "found, strength 0.5")} == {"accent", "colour"}
    assert texts(drawing, 11) == [
        *("on images and seeds that did not choose", "after 16 epochs"),
        "no longer than 4 epochs",
    ]
    assert not [m for m in drawing.marks if isinstance(m, Rect)]  # no bars


def test_a_contest_that_goes_on_is_drawn_as_far_as_it_is() -> None:
    going = plot_contest(contest_table(contest(done=14)))
    assert going is not None
    assert texts(going, 11) == ["after 16 epochs", "after 4 epochs", "no longer than 4 epochs"]
    first = plot_contest(contest_table(contest(done=2)))
    assert first is not None
    assert len([m for m in first.marks if isinstance(m, Dot)]) == 2
    assert plot_contest(contest_table(contest(done=0))) is None


def test_accuracies_are_dots() -> None:
    row = AccuracyRow("one", 3, "cifar10", "small", 10, 4, 0.95, 0.002)
    drawing = plot_accuracy([row, row._replace(method="two", mean=0.9, half_width=None)])
    dots = [m for m in drawing.marks if isinstance(m, Dot)]
    assert dots[0].x > dots[1].x
    assert not [m for m in drawing.marks if isinstance(m, Rect)]
    assert texts(drawing, 12) == ["one", "95.00", "two", "90.00"]


# Terminals


def plain(view: ContestView, width: int = 80, encoding: str = "utf-8") -> list[str]:
    return "\n".join(line.plain for line in contest_lines(view, width, encoding)).split("\n")


VIEWS = {
    "helps": SEEN,
    "harms": contest_table(contest(HARMS, lengths=(20, 60))),
    "folds": contest_table(contest(images=50)),
    "many": contest_table(contest(images=4000)),
    "going": contest_table(contest(done=14)),
    "first": contest_table(contest(done=3)),
    "nothing": contest_table(contest(done=0)),
}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("name", VIEWS)
def test_lines_fit_into_a_terminal(name: str, encoding: str) -> None:
    view = VIEWS[name]
    lines = plain(view, 80, encoding)
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    "\n".join(lines).encode(encoding)
    for each in view.candidates:
        if each.rungs:  # a name is whole, and on one line with its last accuracy
            (line,) = (text for text in lines if text[2:].startswith(f"{each.title}  "))
            assert f" {100 * each.rungs[-1].accuracy:.1f}" in line
        else:
            assert each.title.split()[0] in "\n".join(lines)


def test_the_sentence_stands_last() -> None:
    lines = plain(SEEN)
    assert " ".join(lines[-2:]) == SEEN.sentence
    assert lines[-3] == "From 400 images and 2 seeds that did not choose:"
    assert any(line.startswith("> found, spread ") for line in lines)
    assert "  flip: 'turn left' becomes 'turn right' (91 % of 60 images); and 1 other pair" in lines
    assert plain(VIEWS["harms"])[-1] == VIEWS["harms"].sentence
    assert plain(VIEWS["nothing"])[-1].endswith("no candidate has been trained yet.")
    assert plain(VIEWS["first"])[-1] == (
        "The contest goes on: 3 of 10 candidates trained for 4 epochs."
    )


def test_a_narrow_terminal_has_no_bars_and_a_long_name_is_cut() -> None:
    assert "●" in "".join(plain(SEEN, 80))
    assert "●" not in "".join(plain(SEEN, 60))
    assert max(map(len, plain(SEEN, 60))) <= 60
    long = Contestant("mine", f"{'folder/' * 12}policy.json", (0.1, 0.2), "given")
    long_named = Contestant("other", "a title of very many words that nobody needs", (0.1, 0.2))
    view = contest_table(contest((*HELPS[:2], long, long_named), (4, 16)))
    lines = plain(view)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"  ...{long.title[-27:]} ") for line in lines)  # its end tells
    assert any(line.startswith("  a title of very many words... ") for line in lines)


def candidate(difference: float, error: float | None, **more: bool) -> Candidate:
    rung = Rung(4, Size(4), 1, 0.5, difference / 100, None if error is None else error / 100 / 1.96)
    return Candidate("x", "x", "named", 1, None, (rung,), **more)


@pytest.mark.parametrize(
    ("difference", "error", "bar"),
    [
        (3.0, 2.0, "     :|-o-|"),  # the interval begins beside 0
        (3.0, 1.0, "     : |o|"),
        (1.0, 3.0, "   |-+o--|"),  # it holds 0
        (-2.0, 1.9, " |-o|:"),  # and ends beside it, however near
        (0.0, None, "     o"),
        (-4.0, 3.9, "<o--|:"),
        (-9.0, 1.0, "<    :"),
        (9.0, 5.0, "     :   |>"),
        (19.0, 5.0, "     :    >"),
    ],
)
def test_bars(difference: float, error: float | None, bar: str) -> None:
    """Eleven columns from -5 to 5: a point a column."""
    assert text_bar(candidate(difference, error), (-5.0, 5.0), 11, ascii_only=True) == bar


def test_the_reference_is_a_dot_at_0() -> None:
    bar = text_bar(candidate(0.0, 0.0, is_reference=True), (-10.0, 10.0), 21)
    assert bar == f"{' ' * 10}●"


@pytest.mark.parametrize("length", [dots.LABEL, dots.LABEL - 9, dots.NAME])
def test_forms_of_the_found_policy_can_be_told_apart(length: int) -> None:
    stems = ["the found policy", *(f"the found policy, first {n} layers" for n in (2, 3, 12))]
    titles = [f"{s}{f}" for s in (*stems, "the found policy, first layer") for f in FORMS]
    cut = [dots._cut(title, length) for title in titles]
    assert len(set(cut)) == len(cut)
    assert max(map(len, cut)) <= length
    assert dots._cut("the found policy", length) == "the found policy"
