"""A contest by training as a table and in words.

contest.json may come from anywhere: every value that is shown is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple

from deepaa.files import plural
from deepaa.report.checked import Part
from deepaa.runs import CONTEST
from deepaa.search.contest import Size
from deepaa.search.left_out import turned_text

FORMAT = 1
DEVIATIONS = 1.96
"""Standard errors to either side of an interval of 95 %."""
BEYOND = 0.4
"""How far a scale goes beyond the candidates of the last rung, in spans of theirs."""
WIDE = 1000.0
"""Errors of very few images may be larger than any difference can be."""
SENTENCE = 2000
"""Characters of a sentence at most, which names two candidates."""
Points = tuple[float, float]
"""Both ends of an interval, in points of accuracy."""


# The table


class Rung(NamedTuple):
    """How a candidate did after whole schedules of one length."""

    length: int
    """What a training cost, in epochs of all images to train on."""
    size: Size
    """Its epochs, and the images that it trained on."""
    seeds: int
    accuracy: float | None
    """On all images that judge; None where a training failed."""
    difference: float | None
    """Accuracy beside the reference, on the images that choose; None while that is not known."""
    error: float | None
    """The standard error of `difference`."""

    @property
    def points(self) -> float | None:
        """The difference in points."""
        return None if self.difference is None else 100 * self.difference

    @property
    def interval(self) -> Points | None:
        """The 95 % interval of the difference in points."""
        if self.difference is None or self.error is None:
            return None
        half = DEVIATIONS * self.error
        low, high = max(-1.0, self.difference - half), min(1.0, self.difference + half)
        return 100 * low, 100 * high


class Candidate(NamedTuple):
    """A policy that took part."""

    name: str
    title: str
    kind: Literal["found", "named", "given"]
    layers: int
    left_after: int | None
    """The length after which it went no further; None if it stayed."""
    rungs: tuple[Rung, ...]
    """By rising length."""
    is_winner: bool = False
    is_reference: bool = False
    """Whether the differences of all others are to this one."""

    @property
    def has_failed(self) -> bool:
        """Whether a training of it failed."""
        return any(rung.accuracy is None for rung in self.rungs)

    @property
    def last(self) -> Rung | None:
        """The longest that it was trained for; None before its first training."""
        return self.rungs[-1] if self.rungs else None

    def at(self, length: int) -> Rung | None:
        """How it did after this length; None if it was not trained for so long."""
        return next((rung for rung in self.rungs if rung.length == length), None)


class Protected(NamedTuple):
    """A transformation that was left out since it turns a class into another."""

    operation: str
    magnitude: float | None
    """The weakest at which that happens; None for an operation without magnitudes."""
    before: float
    """The share of the class's images that are taken for the other class as they are."""
    share: float
    """That share after the transformation."""
    images: int
    source: str
    target: str

    @property
    def what(self) -> str:
        """What happens to the class."""
        return turned_text(repr(self.source), repr(self.target), self.share)


class Proof(NamedTuple):
    """Winner minus reference on images and seeds that did not choose; numbers are points."""

    winner: str
    reference: str
    mean: float
    low: float
    high: float
    images: int
    seeds: int


class Judge(NamedTuple):
    """The images that decide."""

    images: int
    chooses: int
    """Those that chose the winner; the others prove."""
    folds: int | None
    """Parts of a cross-validation over all images; None for images that were set aside."""
    groups: int | None


class ContestView(NamedTuple):
    """All that is shown of a contest."""

    status: Literal["running", "finished"]
    sentence: str
    data: str
    network: str
    judge: Judge
    target_epochs: int | None
    lengths: tuple[int, ...]
    """Those with results, rising."""
    candidates: tuple[Candidate, ...]
    """Those that came furthest first, and among them those that are furthest ahead."""
    proof: Proof | None
    protected: tuple[Protected, ...]
    untestable: tuple[str, ...] = ()
    """Classes of which nobody can tell whether an operation turns them into others."""
    extrapolated: bool = False
    """Whether the winner was chosen for what it will be after more epochs than were trained."""
    left_out: tuple[str, ...] = ()
    """Who took no part as the passes were too few."""
    excluded: tuple[str, ...] = ()
    """Who took no part as class protection left nothing of its own."""

    @property
    def reference(self) -> Candidate | None:
        """What all others are compared with."""
        return next((each for each in self.candidates if each.is_reference), None)

    @property
    def winner(self) -> Candidate | None:
        """The choice, if there is one yet."""
        return next((each for each in self.candidates if each.is_winner), None)

    def size(self, length: int) -> str:
        """The epochs and images of the trainings of a length."""
        found = (each.at(length) for each in self.candidates)
        return str(next((rung.size for rung in found if rung), Size(length)))

    @property
    def digits(self) -> int:
        """After the decimal point of a difference, as many as its intervals give sense to."""
        found = [each.last.interval for each in self.candidates if each.last]
        halves = [(high - low) / 2 for low, high in filter(None, found) if high > low]
        return 2 if halves and min(halves) < 0.5 else 1


def contest_table(document: Mapping[str, Any]) -> ContestView:
    """The table of a `contest.json`; ValueError in one line where that is damaged."""
    whole = Part(document, CONTEST)
    if (found := whole.part("format").whole()) != FORMAT:
        raise ValueError(f"{CONTEST}: format {found}; this version of deepaa reads {FORMAT} only")
    about = whole.part("data")
    judge = about.part("judge")
    pick, proof = whole.optional("pick"), whole.optional("proof")
    candidates = [_candidate(part) for part in whole.part("candidates").items()]
    names = [each.name for each in candidates]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{CONTEST}: candidates: {twice!r} appears twice")
    winner, reference = (None if pick is None else pick.part(n) for n in ("winner", "reference"))
    is_over = whole.part("status").one_of("running", "finished") == "finished"
    chosen = winner.one_of(*names) if winner and is_over else None
    compared = reference.one_of(*names) if reference else None
    marked = [
        each._replace(is_winner=each.name == chosen, is_reference=each.name == compared)
        for each in candidates
    ]
    target = whole.optional("target_epochs")
    untestable, left_out, excluded = (
        tuple(each.text() for each in whole.part(name).items()) if name in document else ()
        for name in ("untestable", "left_out", "excluded")
    )
    said = whole.optional("sentence")
    return ContestView(
        "finished" if is_over else "running",
        said.text(SENTENCE) if said else "",
        about.part("name").text(),
        whole.part("network").text(),
        Judge(
            judge.part("images").whole(),
            judge.part("chooses").whole(),
            _whole_or_none(judge, "folds"),
            _whole_or_none(judge, "groups"),
        ),
        target.whole() if target else None,
        tuple(sorted({rung.length for each in marked for rung in each.rungs})),
        tuple(sorted(marked, key=_rank)),
        None if proof is None else _proof(proof, {each.name: each.title for each in candidates}),
        tuple(_protected(part) for part in whole.part("protected").items()),
        untestable,
        pick is not None and pick.part("extrapolated").flag(),
        left_out,
        excluded,
    )


def _rank(candidate: Candidate) -> tuple[float, ...]:
    last = candidate.last
    if last is None:
        return (0.0,)
    ahead = -2.0 if last.difference is None else last.difference
    ahead = 0.0 if candidate.is_reference else ahead
    accuracy = last.accuracy or 0.0
    return -last.length, candidate.left_after is not None, candidate.has_failed, -ahead, -accuracy


def _candidate(part: Part) -> Candidate:
    left = part.optional("left_after")
    rungs = sorted(map(_rung, part.part("rungs").items()))
    lengths = [rung.length for rung in rungs]
    if len(set(lengths)) < len(lengths):
        raise part.part("rungs").wrong("a length once")
    kind: Any = part.part("kind").one_of("found", "named", "given")
    return Candidate(
        part.part("name").text(),
        part.part("title").text(),
        kind,
        part.part("layers").whole(),
        left.whole() if left else None,
        tuple(rungs),
    )


def _rung(part: Part) -> Rung:
    difference, error = part.optional("difference"), part.optional("error")
    accuracy, length = part.optional("accuracy"), part.part("length").whole()
    size = Size(length)
    if "epochs" in part.value:  # before trainings could have fewer images, lengths were epochs
        size = Size(part.part("epochs").whole(), _whole_or_none(part, "images"))
    return Rung(
        length,
        size,
        len(part.part("seeds").items()),
        accuracy.number(0, 1) if accuracy else None,
        difference.number(-1, 1) if difference else None,
        error.number(0, WIDE) if error else None,
    )


def _protected(part: Part) -> Protected:
    magnitude = part.optional("magnitude")
    return Protected(
        part.part("operation").text(),
        magnitude.number(-1e6, 1e6) if magnitude else None,
        part.part("before").number(0, 1),
        part.part("share").number(0, 1),
        part.part("images").whole(),
        part.part("from").text(),
        part.part("to").text(),
    )


def _proof(part: Part, titles: Mapping[str, str]) -> Proof:
    winner, reference = (titles[part.part(n).one_of(*titles)] for n in ("winner", "reference"))
    ends = (part.part(name).number(-WIDE, WIDE) for name in ("low", "high"))
    low, high = (100 * min(max(end, -1.0), 1.0) for end in ends)
    mean = 100 * part.part("mean").number(-1, 1)
    images, seeds = (part.part(name).whole() for name in ("images", "seeds"))
    return Proof(winner, reference, mean, low, high, images, seeds)


def _whole_or_none(part: Part, name: str) -> int | None:
    found = part.optional(name)
    return found.whole() if found else None


# Words


def points_text(value: float, digits: int = 1) -> str:
    """`+1.1`; without a sign for what would be rounded to 0."""
    text = f"{value:+.{digits}f}"
    return text[1:] if not float(text) else text


def interval_text(ends: Points, digits: int = 1) -> str:
    """`0.4 to 1.8`."""
    low, high = (f"{end:.{digits}f}" for end in ends)
    return f"{low} to {high}"


def progress_text(view: ContestView) -> str:
    """How far a contest has come that is not over."""
    if not view.lengths:
        return "no candidate has been trained yet."
    length = view.lengths[-1]
    there = [c for c in view.candidates if c.left_after is None or c.left_after >= length]
    done = sum(each.at(length) is not None for each in there)
    return f"{done} of {plural(len(there), 'candidate')} trained for {view.size(length)}."


def judge_text(view: ContestView) -> str:
    """Which images judged, and how many of them chose."""
    images, chooses, folds, groups = view.judge
    how = f"on {plural(images, 'image')} that took part in nothing else"
    how = f"in {folds} folds on all {plural(images, 'image')}" if folds else how
    if folds and any(each.kind == "found" for each in view.candidates):
        how += ", which the search has seen too"
    whole = f" {plural(groups, 'group')} of images were kept whole." if groups else ""
    return f"Judged {how}; {chooses:,} of them chose.{whole}"


def absent_texts(view: ContestView) -> list[str]:
    """A line for each reason why somebody is not among the candidates, or failed."""
    failed = tuple(each.title for each in view.candidates if each.has_failed)
    reasons = (
        ("Took no part, as the passes are too few", view.left_out),
        ("Took no part, as without what changes classes nothing of its own is left", view.excluded),
        ("Failed, as the loss of a training was not a number", failed),
    )
    return [f"{reason}: {'; '.join(titles)}." for reason, titles in reasons if titles]


def protected_texts(view: ContestView) -> list[str]:
    """`flip: 'left' becomes 'right' (91 % of 60 images)` for each operation that was left out."""
    found = []
    rows = sorted(view.protected, key=lambda row: row.operation)  # stable
    for operation, group in groupby(rows, key=lambda row: row.operation):
        same = sorted(group, key=lambda row: -row.share)
        worst, others = same[0], len({(row.source, row.target) for row in same}) - 1
        weakest = "" if worst.magnitude is None else f" from {worst.magnitude:.4g} on"
        more = f"; and {plural(others, 'other pair')} of classes" if others else ""
        found.append(
            f"{operation}{weakest}: {worst.what} "
            f"({100 * worst.share:.0f} % of {plural(worst.images, 'image')}){more}"
        )
    return found


def untestable_text(view: ContestView) -> str:
    """The classes that could not be protected, if there are any."""
    names, more = view.untestable, len(view.untestable) - 5
    listed = ", ".join(map(repr, names[:5])) + (f" and {more:,} more" if more > 0 else "")
    few = "Whether operations change these classes cannot be tested, as their images are too few"
    few += " or the network knows too little of them"
    return f"{few}: {listed}." if names else ""


def scale(view: ContestView) -> Points:
    """The ends of an axis of points: all of the last rung, and not everybody who left before."""
    shown = [(c.last.length, c.last.interval) for c in view.candidates if c.last]
    ends = {length: [0.0] for length, _ in shown} or {0: [0.0]}
    for length, interval in shown:
        ends[length] += interval or ()
    last = ends.pop(max(ends))
    if view.proof is not None:
        last += [view.proof.low, view.proof.high]
    low, high = min(last), max(last)
    room = BEYOND * ((high - low) or 1.0)
    early = [0.0, *(end for others in ends.values() for end in others)]
    low, high = min(low, max(min(early), low - room)), max(high, min(max(early), high + room))
    return (low, high) if high > low else (-1.0, 1.0)
