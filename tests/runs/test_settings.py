"""One reader of settings: dataclasses from JSON and from NAME=VALUE, by their annotations."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from deepaa.runs import ADDED, apply_changes, from_plain, parse_changes, to_plain, to_record


@dataclass(frozen=True)
class Inner:
    lr: float = 0.1
    milestones: tuple[float, ...] = ()
    colour: tuple[int, int, int] = (255, 255, 255)


@dataclass(frozen=True)
class Outer:
    steps: int = 10
    draws: int | None = 16
    word: str = "a"
    schedule: Literal["cosine", "step"] = "cosine"
    compile: bool | None = None
    train: Inner = field(default_factory=Inner)
    low: int = 0

    def __post_init__(self) -> None:
        if self.low > self.steps:
            raise ValueError("low is above steps")


def changed(*changes: str) -> Outer:
    return apply_changes(Outer(), parse_changes(changes, Outer))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("steps=3", Outer(steps=3)),
        ("draws=null", Outer(draws=None)),
        ("draws=auto", Outer(draws=None)),
        ("word=bfloat16", Outer(word="bfloat16")),
        ("word=auto", Outer(word="auto")),
        ("word=a=b", Outer(word="a=b")),
        ("schedule=step", Outer(schedule="step")),
        ("compile=false", Outer(compile=False)),
        ("train.lr=1", Outer(train=Inner(lr=1.0))),
        ("train.lr=5e-2", Outer(train=Inner(lr=0.05))),
        ("train.milestones=[3, 6]", Outer(train=Inner(milestones=(3.0, 6.0)))),
        ("train.milestones=3,6", Outer(train=Inner(milestones=(3.0, 6.0)))),
        ("train.milestones=3", Outer(train=Inner(milestones=(3.0,)))),
        ("train.milestones=[]", Outer()),
        ("train.colour=0,0,9", Outer(train=Inner(colour=(0, 0, 9)))),
    ],
)
def test_a_change_sets_what_its_annotation_says(change: str, expected: Outer) -> None:
    found = changed(change)
    assert found == expected
    assert to_plain(found) == to_plain(expected)  # 1 and 1.0 are equal, but not in a file
    assert json.dumps(to_plain(found)) == json.dumps(to_plain(expected))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps", "a setting is given as NAME=VALUE, got 'steps'"),
        ("held=3", "no setting 'held'; there are steps, draws, word, schedule, compile, train.lr"),
        ("train.rate=3", "no setting 'train.rate'; there are steps"),
        ("train=3", "no setting 'train'; there are"),
        ("steps=many", "steps should be a whole number, got 'many'"),
        ("steps=1.5", "steps should be a whole number, got 1.5"),
        ("steps=true", "steps should be a whole number, got True"),
        ("steps=", "steps should be a whole number, got ''"),
        ("steps=auto", "steps should be a whole number, got 'auto'"),
        ("draws=x", "draws should be a whole number or null, got 'x'"),
        ("schedule=line", "schedule should be cosine or step, got 'line'"),
        ("compile=1", "compile should be true or false or null, got 1"),
        ("word=3", "word should be text, got 3"),
        ("train.lr=fast", "train.lr should be a number, got 'fast'"),
        ("train.milestones=x", "train.milestones should be a list, each a number, got 'x'"),
        ("train.milestones=[true]", "train.milestones should be a number, got True"),
        ("train.colour=0,0", "train.colour should be a list of 3, each a whole number"),
    ],
)
def test_errors_name_setting_value_and_choices(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        changed(change)
    assert message in str(error.value)


def test_changes_are_checked_together_and_the_last_one_counts() -> None:
    assert changed("low=20", "steps=30").low == 20
    assert changed("steps=30", "low=20").low == 20
    assert changed("steps=3", "steps=4").steps == 4
    with pytest.raises(ValueError, match="low is above steps"):
        changed("low=20")


def test_changes_of_several_dataclasses_and_names_that_may_not_change() -> None:
    found = parse_changes(["steps=3", "lr=2"], Outer, Inner)
    assert apply_changes(Outer(), found) == Outer(steps=3)
    assert apply_changes(Inner(), found) == Inner(lr=2.0)
    with pytest.raises(ValueError, match="no setting 'steps'; there are draws"):
        parse_changes(["steps=3"], Outer, without=("steps",))


def test_settings_come_back_from_json() -> None:
    settings = Outer(draws=None, schedule="step", train=Inner(milestones=(2.0,)))
    plain = json.loads(json.dumps(to_plain(settings)))
    assert from_plain(Outer, plain) == settings


@dataclass(frozen=True)
class Newer:
    steps: int = 10
    ending: int = field(default=0, metadata=ADDED)


@dataclass(frozen=True)
class Around:
    inner: Newer
    word: str = field(default="a", metadata=ADDED)


def test_a_setting_that_was_added_is_recorded_where_it_says_something() -> None:
    """What an older version wrote is then what this one writes for the same settings."""
    usual = Around(Newer())
    assert to_record(usual) == {"inner": {"steps": 10}}
    assert to_plain(usual) == {"inner": {"steps": 10, "ending": 0}, "word": "a"}
    for settings in (usual, Around(Newer(ending=3)), Around(Newer(3), word="b")):
        for plain in (to_record(settings), to_plain(settings)):
            assert from_plain(Around, plain) == settings
    with pytest.raises(ValueError, match=r"^no value for inner.steps$"):
        from_plain(Around, {"inner": {"ending": 1}})


def test_settings_from_json_are_checked() -> None:
    plain = to_plain(Outer())
    bad: list[tuple[dict[str, Any], str]] = [
        ({**plain, "more": 1}, "no setting 'more'; there are steps"),
        ({**plain, "train": {**plain["train"], "rate": 1}}, "no setting 'train.rate'; there are"),
        ({**plain, "train": 3}, "train should be an object, got 3"),
        ({**plain, "steps": "3"}, "steps should be a whole number, got '3'"),
        ({"steps": 3, "train": {"lr": 1}}, "no value for draws, word"),
    ]
    for each, message in bad:
        with pytest.raises(ValueError, match=r".") as error:
            from_plain(Outer, each)
        assert message in str(error.value)
    given = {"steps": 3, "train": {"lr": 1}}
    assert from_plain(Outer, given, defaults=True) == Outer(steps=3, train=Inner(lr=1.0))
