"""Dots with intervals: the candidates of a contest, and trained methods.

A dot has a place and no length, so its axis need not start at 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from rich.text import Text as RichText

from deepaa.files import plural
from deepaa.report.contest import (
    Candidate,
    ContestView,
    Points,
    Rung,
    absent_texts,
    interval_text,
    judge_text,
    points_text,
    progress_text,
    protected_texts,
    scale,
    untestable_text,
)
from deepaa.report.drawing import Dot, Drawing, Line, Mark, Text
from deepaa.report.figures import accuracy_interval, padded, ticks
from deepaa.report.run_tables import AccuracyRow

WIDTH, ROW, HEADING = 340.0, 38.0, 20.0
"""Of a drawing, of a row and of the heading of a group."""
EDGE = 8.0
"""Room for half a number of the axis at both ends."""
SHORTER = (("the found policy", "found"), ("first layer,", "1 layer,"), ("first ", ""))
"""What is said shorter where a title is too long."""
LABEL, NAME = 34, 30
"""Characters of a label in a figure and of a name in a terminal; longer ones are cut."""
BAR, LEAST_BAR = 30, 12
"""Columns of a terminal for dots at most, and at least: below that they tell nothing."""


class DotRow(NamedTuple):
    """A dot with its interval, a name above it, and a number."""

    label: str
    text: str
    value: float | None
    interval: Points | None = None
    colour: str = "accent"
    bold: bool = False
    shape: Literal["circle", "square"] = "circle"
    earlier: tuple[float, ...] = ()
    """Where it was before; hollow."""


# Figures


def plot_accuracy(rows: Sequence[AccuracyRow]) -> Drawing:
    """A dot for each method with its 95 % interval, the best on top."""
    ranked = sorted(rows, key=lambda row: -row.mean)
    shown = [
        DotRow(
            row.method,
            f"{100 * row.mean:.2f}",
            100 * row.mean,
            None if row.half_width is None else accuracy_interval(row),
        )
        for row in ranked
    ]
    low, high = padded([end for row in ranked for end in accuracy_interval(row)])
    ends = max(0.0, low), min(100.0, high)
    return dot_plot("accuracy", "Accuracy of each method.", [("", shown)], ends, "accuracy, %")


def plot_contest(view: ContestView) -> Drawing | None:
    """Points beside the reference, which is the line at 0; None while there are no differences.

    The proof is on top, then those that were trained longest, then those that left.
    """
    reference = view.reference
    if reference is None or not view.lengths:
        return None
    groups: list[tuple[str, list[DotRow]]] = []
    if view.proof is not None:
        proof, ends = view.proof, (view.proof.low, view.proof.high)
        text = f"{points_text(proof.mean, view.digits)} ({interval_text(ends, view.digits)})"
        row = DotRow(proof.winner, text, proof.mean, ends, "accent", bold=True, shape="square")
        heading = "on images and seeds that did not choose"
        if proof.reference != reference.title:  # it is itself what the others are compared with
            heading = f"beside {_cut(proof.reference, LABEL)}, by what did not choose"
        groups.append((heading, [row]))
    for heading, candidates in _groups(view):
        if candidates[0].rungs:
            groups.append((heading, [_contest_row(view, each) for each in candidates]))
    description = f"Accuracy of each candidate beside {reference.title}, with 95 % intervals."
    axis = f"points beside {_cut(reference.title, LABEL)}"
    return dot_plot("contest", description, groups, scale(view), axis, zero=True)


def _groups(view: ContestView) -> Iterator[tuple[str, list[Candidate]]]:
    """Candidates that came equally far, and how far that is."""

    def place(candidate: Candidate) -> tuple[int, bool]:
        last = candidate.last
        return (last.length if last else 0), candidate.left_after is not None

    for (length, has_left), group in groupby(view.candidates, key=place):
        size = view.size(length)
        heading = f"no longer than {size}" if has_left else f"after {size}"
        yield (heading if length else "not trained yet"), list(group)


def _contest_row(view: ContestView, candidate: Candidate) -> DotRow:
    last = candidate.rungs[-1]
    earlier = tuple(r.points for r in candidate.rungs[:-1] if r.points is not None)
    bold, label = candidate.is_winner, candidate.title
    if candidate.is_winner:
        label = f"{_cut(label, LABEL - 9)} · winner"
    if candidate.is_reference:
        return DotRow(label, "reference", 0.0, colour="ink", bold=bold)
    interval = last.interval
    text = "" if last.points is None else points_text(last.points, view.digits)
    if interval is None:
        return DotRow(label, text, last.points, None, "second", bold)
    colour = "accent" if interval[0] > 0 else "colour" if interval[1] < 0 else "second"
    return DotRow(label, text, last.points, interval, colour, bold, earlier=earlier)


def dot_plot(
    name: str,
    description: str,
    groups: Sequence[tuple[str, Sequence[DotRow]]],
    ends: Points,
    axis: str,
    *,
    zero: bool = False,
) -> Drawing:
    """Groups of dots over one axis; what lies beyond its ends gets an arrow there.

    Args:
        ends: Of the axis.
        zero: Whether 0 is what all are compared with.
    """
    low, high = ends
    room = (WIDTH - 2 * EDGE) / ((high - low) or 1.0)

    def at(value: float) -> float:
        return EDGE + (min(max(value, low), high) - low) * room

    marks: list[Mark] = []
    numbers = ticks(low, high, 5)
    y = 0.0
    for heading, rows in groups:
        if heading:
            marks.append(Text(0, y + 12, heading, 11))
            y += HEADING
        for row in rows:
            for value in numbers:
                is_zero = zero and value == 0
                line = ((at(value), y + 17), (at(value), y + 31))
                marks.append(Line(line, "faint" if is_zero else "grid", 1.5 if is_zero else 1))
            marks += _dot_row(row, y, at, ends)
            y += ROW
        y += 8 if heading else 0
    y -= 8 if groups and groups[-1][0] else 0
    for value in numbers:
        text = points_text(value, 4).rstrip("0").rstrip(".") if zero else f"{value:.4g}"
        marks.append(Text(at(value), y + 10, text or "0", 10, anchor="middle"))
    marks.append(Text(WIDTH, y + 26, axis, 10, anchor="end"))
    return Drawing(name, description, WIDTH, y + 32, tuple(marks))


def _dot_row(row: DotRow, y: float, at: Callable[[float], float], ends: Points) -> Iterable[Mark]:
    yield Text(0, y + 12, _cut(row.label, LABEL), 12, "ink", bold=row.bold)
    yield Text(WIDTH, y + 12, row.text, 12, "ink", "end", bold=row.bold)
    if row.value is None:
        return
    middle, low, high = y + 24, *(row.interval or (row.value, row.value))
    title = f"{row.label}: {row.text}"
    if row.interval is not None:
        title += f", 95 %: {interval_text(row.interval, 2)}"
        yield Line(((at(low), middle), (at(high), middle)), row.colour, 2)
        for end in (low, high):
            if ends[0] <= end <= ends[1]:
                yield Line(((at(end), middle - 4), (at(end), middle + 4)), row.colour, 2)
    for value in row.earlier:
        if ends[0] <= value <= ends[1]:
            yield Dot(at(value), middle, row.colour, hollow=True)
    if ends[0] <= row.value <= ends[1]:
        yield Dot(at(row.value), middle, row.colour, row.shape, title=title)
    else:
        tip = at(row.value)
        inside = 6 if row.value < ends[0] else -6
        arrow = ((tip + inside, middle - 5), (tip, middle), (tip + inside, middle + 5))
        yield Line(arrow, row.colour, 2)


def _cut(text: str, length: int) -> str:
    """At most so many characters; forms of the found policy differ at their ends, so these stay."""
    for long, short in SHORTER:
        text = text if len(text) <= length else text.replace(long, short)
    return text if len(text) <= length else f"{text[: length - 3].rstrip()}..."


# Lines of a terminal


def contest_lines(
    view: ContestView, width: int = 80, encoding: str = "utf-8"
) -> Iterator[RichText]:
    """The candidates as a table with a bar for each interval, and the sentence last.

    Args:
        width: Columns of the terminal.
        encoding: The terminal's; bars are made of lines where it has them.
    """
    ascii_only = not encoding.lower().startswith("utf")

    def wrapped(text: str, indent: str = "", style: str = "") -> Iterator[RichText]:
        lines = textwrap.wrap(text.replace(" %", "\xa0%"), width, subsequent_indent=indent)
        yield from (RichText(line.replace("\xa0", " "), style=style) for line in lines)

    yield RichText.assemble(("Contest", "bold"), f" on {view.data}, network {view.network}")
    yield from wrapped(judge_text(view), style="dim")
    if view.reference is not None:
        text = "Accuracy in percent on all of them; points beside "
        text += f"{view.reference.title}, with 95 % intervals, on those that chose."
        yield from wrapped(text, style="dim")
    for text in absent_texts(view):
        yield from wrapped(text, style="dim")
    if view.lengths:
        yield RichText()
        yield from _candidate_lines(view, width, ascii_only=ascii_only)
    if waiting := [each.title for each in view.candidates if not each.rungs]:
        yield from wrapped(f"not trained yet: {'; '.join(waiting)}", "  ", "dim")
    if protected := protected_texts(view):
        yield RichText("\nLeft out, for they turn a class into another:")
        for text in protected:
            yield from wrapped(f"  {text}", "    ")
    if view.untestable:
        yield RichText()
        yield from wrapped(untestable_text(view), style="dim")
    yield RichText()
    if view.proof is not None:
        who = f"{plural(view.proof.images, 'image')} and {plural(view.proof.seeds, 'seed')}"
        yield RichText(f"From {who} that did not choose:", style="dim")
    is_running = view.status == "running"
    sentence = f"The contest goes on: {progress_text(view)}" if is_running else view.sentence
    yield from wrapped(sentence, style="bold")


def _candidate_lines(view: ContestView, width: int, *, ascii_only: bool) -> Iterator[RichText]:
    trained = [each for each in view.candidates if each.rungs]
    gaps = {each.name: _gap(view, each, ascii_only=ascii_only) for each in trained}
    columns, gap = 8 * len(view.lengths), max(map(len, gaps.values()))
    most = min(NAME, width - 2 - columns - 2 - gap)
    names = min(max(len(each.title) for each in trained), most)
    room = min(BAR, width - 2 - names - columns - 2 - gap - 2)
    room = room if room >= LEAST_BAR else 0
    for heads in _column_heads(view):
        yield RichText(f"  {heads[0]:{names}}{''.join(f'{head:>8}' for head in heads[1:])}", "dim")
    for number, (heading, candidates) in enumerate(_groups(view)):
        if number and candidates[0].rungs:
            yield RichText(f"  {heading}:", style="dim")
        for each in candidates if candidates[0].rungs else ():
            rungs = [each.at(length) for length in view.lengths]
            accuracies = "".join(f"{accuracy_text(rung):>8}" for rung in rungs)
            bar = text_bar(each, scale(view), room, ascii_only=ascii_only)
            name = f"{_shortened(each, names):<{names}}"
            yield RichText.assemble(
                (f"> {name}", "bold cyan") if each.is_winner else f"  {name}",
                f"{accuracies}  {gaps[each.name]:<{gap}}  {bar}".rstrip(),
            )


def _column_heads(view: ContestView) -> Iterator[list[str]]:
    """Lines of what stands over the names and over each length: epochs, then images if not all."""
    found = ([each.at(length) for each in view.candidates] for length in view.lengths)
    rungs = [next(rung for rung in column if rung) for column in found]
    yield ["", *(f"{rung.size.epochs} ep." for rung in rungs)]
    images = [rung.size.images for rung in rungs]
    if any(count is not None for count in images):
        counts = ("all" if count is None else f"{count:,}" for count in images)
        yield ["images", *counts]


def accuracy_text(rung: Rung | None) -> str:
    """`71.3`, or `failed`; nothing where there was no training."""
    if rung is None:
        return ""
    return "failed" if rung.accuracy is None else f"{100 * rung.accuracy:.1f}"


def _shortened(candidate: Candidate, length: int) -> str:
    """The title, or as much of it as fits; paths keep their end."""
    title = candidate.title
    if candidate.kind == "given" and len(title) > length:
        return f"...{title[3 - length :]}"
    return _cut(title, length)


def _gap(view: ContestView, candidate: Candidate, *, ascii_only: bool) -> str:
    """`+1.8 ± 0.9`."""
    last = candidate.last
    if candidate.is_reference or last is None or last.points is None:
        return "reference" if candidate.is_reference else ""
    text, interval = points_text(last.points, view.digits), last.interval
    if interval is None:
        return text
    half = (interval[1] - interval[0]) / 2
    return f"{text:>5} {'+-' if ascii_only else '±'} {half:.{view.digits}f}"


def text_bar(candidate: Candidate, ends: Points, room: int, *, ascii_only: bool = False) -> str:
    """A dot with whiskers in `room` columns, over a mark at 0."""
    last = candidate.last
    if not room or last is None or last.points is None:
        return ""
    zero, line, crossed, start, end, dot, less, more = ":-+||o<>" if ascii_only else "┊─┼├┤●<>"

    def at(value: float) -> int:
        share = (min(max(value, ends[0]), ends[1]) - ends[0]) / (ends[1] - ends[0])
        return round(share * (room - 1))

    cells, middle = [" "] * room, at(0.0)
    if last.interval is not None and not candidate.is_reference:
        low, high = last.interval
        # an interval without 0 does not touch its mark, however near it comes
        first = at(low) + (low > 0 and at(low) == middle)
        final = at(high) - (high < 0 and at(high) == middle)
        cells[first : final + 1] = line * (final + 1 - first)
        if first <= final:
            cells[final] = end if high <= ends[1] else more
            cells[first] = start if low >= ends[0] else less
        if low > ends[1]:
            cells[-1] = more
    cells[middle] = zero if cells[middle] == " " else crossed
    if ends[0] <= last.points <= ends[1]:
        cells[at(last.points)] = dot
    return "".join(cells).rstrip()
