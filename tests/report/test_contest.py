"""Contests as tables and in words; a file from anywhere is shown or refused in one line."""

from __future__ import annotations

import copy
import html
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from contest_files import FLIP, HARMS, HELPS, PROTECTED, contest

from deepaa import Policy, hold_contest
from deepaa.report.contest import (
    BEYOND,
    Candidate,
    ContestView,
    Judge,
    Proof,
    Protected,
    Rung,
    absent_texts,
    contest_table,
    interval_text,
    judge_text,
    points_text,
    progress_text,
    protected_texts,
    scale,
    untestable_text,
)
from deepaa.report.dots import contest_lines, plot_contest
from deepaa.report.drawing import inline_svg
from deepaa.report.page import make_page
from deepaa.report.subject import Subject, read_subject
from deepaa.search.contest import Size


def rung(length: int, accuracy: float, difference: float | None, error: float | None) -> Any:
    rest = {"seeds": [0, 1], "loss": 1.0, "train_loss": 1.0}
    return {"length": length, "accuracy": accuracy, "difference": difference, "error": error} | rest


def entry(name: str, *rungs: Any, **more: Any) -> dict[str, Any]:
    about = {"name": name, "title": f"the {name}", "kind": "named", "reference": False}
    about |= {"layers": 1, "left_after": None, "policy_sha256": "", "rungs": list(rungs)}
    return about | more


SMALL: dict[str, Any] = {
    "format": 1,
    "status": "finished",
    "data": {
        "name": "dots",
        "images": 4000,
        "judge": {"how": "part", "images": 800, "folds": None, "chooses": 400, "groups": None},
    },
    "network": "small",
    "device": "cpu",
    "target_epochs": 200,
    "plan": {"lengths": [4, 16], "passes": 1, "fresh_seeds": 2},
    "protected": [FLIP],
    "candidates": [
        entry("weak", rung(4, 0.5, -0.1, 0.01), left_after=4),
        entry("plain", rung(4, 0.6, 0.0, 0.0), rung(16, 0.7, 0.0, 0.0), reference=True),
        # lengths in any order
        entry("best", rung(16, 0.75, 0.05, 0.01), rung(4, 0.59, -0.01, 0.01), kind="found"),
        entry("new"),
        entry("bad", rung(4, 0.4, -0.2, 0.02), left_after=4, kind="given"),
    ],
    "pick": {"winner": "best", "reference": "plain", "reason": "ahead", "extrapolated": False},
    "proof": {"winner": "best", "reference": "plain", "mean": 0.04, "low": 0.01, "high": 0.07}
    | {"images": 400, "seeds": 2},
    "sentence": "On your data the best is 4.0 points better than the plain.",
    "table": {},
}


def changed(*path: Any, to: Any, document: dict[str, Any] = SMALL) -> dict[str, Any]:
    document = copy.deepcopy(document)
    part: Any = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    return document


# The table


def test_the_table() -> None:
    view = contest_table(SMALL)
    weak = Candidate("weak", "the weak", "named", 1, 4, (Rung(4, Size(4), 2, 0.5, -0.1, 0.01),))
    plain = (Rung(4, Size(4), 2, 0.6, 0.0, 0.0), Rung(16, Size(16), 2, 0.7, 0.0, 0.0))
    best = (Rung(4, Size(4), 2, 0.59, -0.01, 0.01), Rung(16, Size(16), 2, 0.75, 0.05, 0.01))
    assert view == ContestView(
        status="finished",
        sentence="On your data the best is 4.0 points better than the plain.",
        data="dots",
        network="small",
        judge=Judge(800, 400, None, None),
        target_epochs=200,
        lengths=(4, 16),
        candidates=(  # who came furthest, then who is ahead
            Candidate("best", "the best", "found", 1, None, best, is_winner=True),
            Candidate("plain", "the plain", "named", 1, None, plain, is_reference=True),
            weak,
            Candidate("bad", "the bad", "given", 1, 4, (Rung(4, Size(4), 2, 0.4, -0.2, 0.02),)),
            Candidate("new", "the new", "named", 1, None, ()),
        ),
        proof=Proof("the best", "the plain", 4.0, 1.0, pytest.approx(7.0), 400, 2),
        protected=(Protected("flip", None, 0.01, 0.91, 60, "turn left", "turn right"),),
    )
    assert (view.winner, view.reference) == view.candidates[:2]
    assert weak.last == weak.at(4) == weak.rungs[0]
    assert weak.at(16) is None
    assert view.candidates[-1].last is None


def test_trainings_of_a_part_of_the_images_are_told_of() -> None:
    """A file from before has lengths alone, which were epochs of all images."""
    document = copy.deepcopy(SMALL)
    sizes = {4: {"epochs": 37, "images": 1280}, 16: {"epochs": 16, "images": None}}
    for each in document["candidates"]:
        for found in each["rungs"]:
            found |= sizes[found["length"]]
    view = contest_table(document)
    assert view.size(4) == "37 epochs of 1,280 images"
    assert view.size(16) == contest_table(SMALL).size(16) == "16 epochs"
    assert contest_table(SMALL).size(4) == "4 epochs"
    lines = [line.plain for line in contest_lines(view, 80)]
    head = next(i for i, line in enumerate(lines) if line.split() == ["37", "ep.", "16", "ep."])
    assert lines[head + 1].split() == ["images", "1,280", "all"]
    assert any("left after 37 epochs of 1,280 images:" in line for line in lines)
    page = make_page(Subject("x", "finished", None, contest=view))
    assert ">37 epochs of 1,280 images<" in page
    said = "whole schedules of 37 epochs of 1,280 images, and those that stayed for 16 epochs."
    assert said in page
    for name, bad in (("epochs", -1), ("images", "many"), ("epochs", None)):
        with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
            contest_table(changed("candidates", 0, "rungs", 0, name, to=bad, document=document))


def test_a_reference_that_won_is_shown_beside_whom_it_was_proved_against() -> None:
    """The axis is that of differences to the reference, and its own proof is to another one."""
    proof = {**SMALL["proof"], "winner": "plain", "reference": "weak"}
    drawing = plot_contest(contest_table(changed("proof", to=proof)))
    assert drawing is not None
    assert "beside the weak, by what did not choose" in inline_svg(drawing)
    usual = plot_contest(contest_table(SMALL))
    assert usual is not None
    assert ">on images and seeds that did not choose<" in inline_svg(usual)


def test_who_took_no_part_and_who_failed_is_told() -> None:
    bare = changed("left_out", to=["TrivialAugment"])
    document = changed("excluded", to=["flip.json", "b"], document=bare)
    failed = rung(4, 0.5, None, None) | {"accuracy": None, "loss": None}
    document["candidates"][4]["rungs"] = [failed]
    view = contest_table(document)
    assert view.candidates[3].has_failed
    texts = [
        "Took no part, as the passes are too few: TrivialAugment.",
        "Took no part, as without what changes classes nothing of its own is left: flip.json; b.",
        "Failed, as the loss of a training was not a number: the bad.",
    ]
    assert absent_texts(view) == texts
    assert absent_texts(contest_table(SMALL)) == []
    lines = [line.plain for line in contest_lines(view, 200)]
    assert [line for line in lines if line in texts] == texts
    (row,) = (line for line in lines if line.strip().startswith("the bad"))
    assert row.split() == ["the", "bad", "failed"]
    page = make_page(Subject("x", "finished", None, contest=view))
    assert ">failed<" in page
    assert ">Candidates beside the plain<" in page
    assert all(html.escape(text) in page for text in texts)


def test_a_sentence_with_two_long_names_is_shown() -> None:
    sentence = f"On your data {'a' * 390} is 1.0 points better than {'b' * 390}."
    assert contest_table(changed("sentence", to=sentence)).sentence == sentence


def test_intervals_are_two_sided_95_percent_in_points() -> None:
    found = Rung(4, Size(4), 1, 0.5, 0.02, 0.01)
    assert found.points == 2.0
    assert found.interval == pytest.approx((2 - 1.96, 2 + 1.96))
    assert found._replace(error=0.9).interval == (-100.0, 100.0)  # no accuracy differs by more
    assert found._replace(error=None).interval is None
    assert found._replace(difference=None).interval is None
    assert found._replace(difference=None).points is None


@pytest.mark.parametrize("contestants", [HELPS, HARMS])
def test_the_table_says_what_the_outcomes_say(contestants: Any) -> None:
    """Counted again, image by image, from the outcomes in the file."""
    document = contest(contestants, images=200)
    view, table = contest_table(document), document["table"]
    chooses = [i for i, bit in enumerate(table["chooses"]) if bit == "1"]
    others = [i for i, bit in enumerate(table["chooses"]) if bit == "0"]
    seeds: dict[tuple[str, int], list[str]] = {}
    for one in table["entries"]:
        if one["seed"] < 100:
            seeds.setdefault((one["candidate"], one["length"]), []).append(one["correct"])
    assert view.reference is not None
    for candidate in view.candidates:
        for found in candidate.rungs:
            own = seeds[candidate.name, found.length][0]
            other = seeds[view.reference.name, found.length][0]
            gaps = [int(own[i]) - int(other[i]) for i in chooses]
            mean = sum(gaps) / len(gaps)
            spread = math.sqrt(sum((g - mean) ** 2 for g in gaps) / (len(gaps) - 1) / len(gaps))
            assert found.accuracy == pytest.approx(sum(own[i] == "1" for i in chooses) / 100)
            assert (found.difference, found.error) == pytest.approx((mean, spread))
    if view.proof is not None:
        assert view.proof.images == len(others)


def test_before_it_ends_nobody_has_won() -> None:
    view = contest_table(contest(done=12))
    assert (view.status, view.winner) == ("running", None)
    assert view.reference is not None
    assert contest_table(contest(done=0)).lengths == ()
    alone = contest_table(changed("pick", to=None))
    assert (alone.winner, alone.reference, alone.extrapolated) == (None, None, False)
    assert plot_contest(alone) is None


def test_candidates_that_left_stand_behind_those_that_go_on() -> None:
    names = [each.name for each in contest_table(contest(done=14)).candidates]
    view = contest_table(contest(done=14))
    fates = [(-each.rungs[-1].length, each.left_after is not None) for each in view.candidates]
    assert fates == sorted(fates)
    assert len(set(fates)) == 3
    assert len(names) == len(HELPS)


# Strangers' files


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], 2, "contest.json: format 2; this version of deepaa reads 1 only"),
        (["status"], "off", "contest.json: status: expected one of running, finished, got 'off'"),
        (["data"], None, "contest.json: data: expected an object, got null"),
        (["data", "judge", "images"], -1, "data, judge, images: expected a whole number from 0"),
        (["network"], 3, "network: expected text of at most 400 characters, got 3"),
        (["sentence"], "x" * 2001, "sentence: expected text of at most 2000 characters, got 'x"),
        (["candidates"], {}, "candidates: expected a list, got an object"),
        (["candidates"], [0] * 2001, "candidates: 2,001 entries; at most 2,000"),
        (["candidates", 1], [], "candidates 2: expected an object, got a list"),
        (["candidates", 1, "name"], "best", "candidates: 'best' appears twice"),
        (["candidates", 1, "kind"], "x", "candidates 2, kind: expected one of found, named, given"),
        (["candidates", 0, "rungs", 0, "accuracy"], 1.5, "rungs 1, accuracy: expected a number"),
        (["candidates", 0, "rungs", 0, "accuracy"], math.nan, "a number from 0 to 1, got nan"),
        (["candidates", 0, "rungs", 0, "accuracy"], True, "a number from 0 to 1, got True"),
        (
            ["candidates", 0, "rungs", 0, "error"],
            10**400,
            "error: expected a number from 0",
        ),
        (["candidates", 1, "rungs", 1, "length"], 4, "candidates 2, rungs: expected a length once"),
        (["pick", "winner"], "who", "pick, winner: expected the name of a candidate, got 'who'"),
        (["pick", "extrapolated"], 1, "pick, extrapolated: expected true or false, got 1"),
        (["proof", "low"], "0", "proof, low: expected a number from -1000 to 1000, got '0'"),
        (["protected", 0, "share"], None, "protected 1, share: expected a number from 0 to 1"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        contest_table(changed(*path, to=value))
    text = str(caught.value)
    assert message in text
    assert text.startswith("contest.json: ")
    assert "\n" not in text
    assert len(text) < 160


def test_a_missing_key_is_named() -> None:
    document = copy.deepcopy(SMALL)
    del document["candidates"][2]["rungs"][0]["accuracy"]
    with pytest.raises(ValueError, match=r"^contest\.json: candidates 3, rungs 1: accuracy is mis"):
        contest_table(document)
    with pytest.raises(ValueError, match="format is missing"):
        contest_table({})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document."""
    yield path
    parts: Any = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else parts:
        yield from places(part, (*path, key))


EVIL = "<script>alert(1)</script>\x1b[2J\u202e\ud800"


def refusal(document: dict[str, Any]) -> str | None:
    """Why a document is not shown; None if it is."""
    try:
        contest_table(document)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [None, [], {}, [[]], "", EVIL, -1, 0, 1, 0.5, 10**400, True])
def test_any_value_anywhere_is_shown_or_refused(value: Any) -> None:
    together = SMALL
    for path in filter(None, places(SMALL)):
        document = changed(*path, to=value)
        if (reason := refusal(document)) is not None:
            assert "\n" not in reason
            continue
        view = contest_table(document)
        lines = "\n".join(line.plain for line in contest_lines(view))
        assert "\x1b" not in lines
        assert "\u202e" not in lines
        drawing = plot_contest(view)
        assert drawing is None or "<script>" not in inline_svg(drawing)
        with suppress(LookupError, TypeError):  # a place in what is gone by now
            more = changed(*path, to=value, document=together)
            together = more if refusal(more) is None else together
    assert together != SMALL  # what is not shown is not read either
    page = make_page(Subject("x", "finished", None, contest=contest_table(together)))
    assert "<script>alert" not in page


def test_hostile_names_stay_text_on_the_page() -> None:
    document = json.loads(json.dumps(SMALL).replace("the ", "<script>alert(1)</script>"))
    document |= {"sentence": EVIL, "network": EVIL}
    document["data"]["name"] = document["protected"][0]["from"] = EVIL
    view = contest_table(document)
    assert view.sentence == "<script>alert(1)</script> [2J"
    page = make_page(Subject("x", "finished", None, contest=view))
    assert "<script>alert" not in page
    page.encode()


def test_keys_that_are_not_known_are_left_alone() -> None:
    assert contest_table({**SMALL, "new": {"deep": [1]}}) == contest_table(SMALL)


# Words


def test_numbers_in_words() -> None:
    assert [points_text(v) for v in (1.14, -0.26, 0.04, -0.04, 0.0)] == [
        *("+1.1", "-0.3", "0.0", "0.0", "0.0")
    ]
    assert points_text(0.125, 2) == "+0.12"
    assert interval_text((0.4, 1.8)) == "0.4 to 1.8"
    view = contest_table(SMALL)
    assert view.digits == 1
    close = changed("candidates", 2, "rungs", 0, "error", to=0.002)  # +- 0.39 points
    assert contest_table(close).digits == 2


@pytest.mark.parametrize(
    ("judge", "text"),
    [
        ({}, "Judged on 800 images that took part in nothing else; 400 of them chose."),
        (
            {"how": "folds", "folds": 5, "images": 300, "chooses": 150},
            "Judged in 5 folds on all 300 images, which the search has seen too; 150 of them "
            "chose.",
        ),
        (
            {"groups": 37},
            "Judged on 800 images that took part in nothing else; 400 of them chose. "
            "37 groups of images were kept whole.",
        ),
    ],
)
def test_who_judged(judge: dict[str, Any], text: str) -> None:
    whole = {**SMALL["data"]["judge"], **judge}
    assert judge_text(contest_table(changed("data", "judge", to=whole))) == text


def test_progress() -> None:
    assert progress_text(contest_table(contest(done=0))) == "no candidate has been trained yet."
    assert (
        progress_text(contest_table(contest(done=3))) == "3 of 10 candidates trained for 4 epochs."
    )
    going = contest_table(contest(done=12))
    left = sum(each.left_after is not None for each in going.candidates)
    assert 0 < left < 8
    assert progress_text(going) == f"2 of {10 - left} candidates trained for 16 epochs."


def test_protected_classes() -> None:
    turned = {"operation": "rotate", "from": "6", "to": "9", "share": 0.5, "before": 0.0}
    turned |= {"images": 1}
    rows = [{**turned, "magnitude": m} for m in (150.0, -150.0)]  # both sides, one pair
    view = contest_table(changed("protected", to=[*PROTECTED, *rows]))
    assert protected_texts(view) == [
        "flip: 'turn left' becomes 'turn right' (91 % of 60 images); and 1 other pair of classes",
        "rotate from 150 on: '6' becomes '9' (50 % of 1 image)",
    ]
    mostly = {**FLIP, "share": 0.45}  # of a mirror image that several classes are taken for
    (text,) = protected_texts(contest_table(changed("protected", to=[mostly])))
    said = "flip: 'turn left' is taken for others, most often for 'turn right' (45 % of 60 images)"
    assert text == said
    few = {**SMALL, "protected": [], "untestable": list("abcdefg")}
    view = contest_table(few)
    assert untestable_text(view) == (
        "Whether operations change these classes cannot be tested, as their images are too few or "
        "the network knows too little of them: 'a', 'b', 'c', 'd', 'e' and 2 more."
    )
    assert "their images are too few" in make_page(Subject("x", "finished", None, contest=view))
    lines = " ".join(line.plain for line in contest_lines(view))
    assert "'d', 'e' and 2 more." in lines
    assert untestable_text(contest_table(SMALL)) == ""


def test_a_contest_that_nobody_left_has_no_column_for_it() -> None:
    assert ">Left after<" in make_page(Subject("x", "finished", None, contest=contest_table(SMALL)))
    stayed = copy.deepcopy(SMALL)
    for each in stayed["candidates"]:
        each["left_after"] = None
    page = make_page(Subject("x", "finished", None, contest=contest_table(stayed)))
    assert ">Left after<" not in page
    (rows,) = re.findall(r'data-table="contest">.*?<tbody>(.*?)</tbody>', page, re.S)
    assert {row.count("<td") for row in rows.split("</tr>") if "<td" in row} == {4}


def test_the_folder_of_an_own_loop_is_shown(tmp_path: Path) -> None:
    def train(policy: Policy, seed: int) -> tuple[list[float], list[bool]]:
        return [1.0] * 60, [(place + seed) % 3 > 0 for place in range(60)]

    result = hold_contest(train, {"mine": "deepta:2"}, usual=False, out=tmp_path)
    for name in ("policy.json", "contest.json"):
        subject = read_subject(str(tmp_path))
        assert subject.status == "finished"
        page = make_page(subject)
        assert html.unescape(result.sentence) in html.unescape(page)
        assert "deepaa search --resume" not in page
        if name == "policy.json":
            (tmp_path / name).unlink()  # as older versions have left it
    content = json.loads((tmp_path / "contest.json").read_text())
    running = content | {"status": "running", "pick": None, "proof": None, "sentence": None}
    (tmp_path / "contest.json").write_text(json.dumps(running))
    page = make_page(read_subject(str(tmp_path)))
    assert "by calling hold_contest again." in page


def test_the_scale_holds_the_last_rung_and_not_every_failure() -> None:
    low, high = scale(contest_table(SMALL))
    assert high == pytest.approx(7.0)  # of the proof
    reach = BEYOND * (high - 0.0)  # the last rung goes from the reference to there
    assert low == pytest.approx(-reach)  # the weak one is at -10
    near = changed("candidates", 0, "rungs", 0, "difference", to=-0.005)
    near["candidates"].pop()
    assert scale(contest_table(near))[0] == pytest.approx(-0.5 - 1.96)
    assert scale(contest_table(changed("candidates", to=[entry("plain"), entry("best")]))) == (
        *(0.0, pytest.approx(7.0)),  # the proof alone
    )
    empty = contest_table(contest(done=0))
    assert scale(empty) == (-1.0, 1.0)
