"""What the README promises: it is short, its commands are there, its numbers were measured."""

from __future__ import annotations

import re

from pages import ROOT, commands

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.S | re.M)
    return found


def test_it_is_short_and_begins_with_what_it_is() -> None:
    assert TEXT.count("\n") < 130
    first = TEXT.split("\n\n")[1]
    assert first.count(". ") + first.endswith(".") == 2  # sentences
    assert "![" in TEXT.split("## ")[0]


def test_it_names_the_two_commands_and_those_that_exist() -> None:
    words = [words for _, words in commands(README)]
    assert ["make", "demo"] in words
    assert ["make", "test"] in words


def test_its_sections() -> None:
    titles = re.findall(r"^## (.+)$", TEXT, re.M)
    assert titles[0] == "Two commands"
    assert {"Results", "Beside other tools", "When not to use it"} <= set(titles)
    assert "Accuracies are of one or two seeds so far" in section("Results")


def values(text: str) -> set[str]:
    """The numbers of two digits or more, in units, to three digits."""
    found = re.findall(r"(\d[\d,]*\d(?:\.\d+)?|\d+\.\d+)(\**\s+million)?", text)
    numbers = (float(n.replace(",", "")) * (1e6 if million else 1) for n, million in found)
    return {f"{number:.3g}" for number in numbers}


def test_its_results_are_those_of_the_pages() -> None:
    """They stand, rounded, in the pages that say how they were measured."""
    pages = [f"docs/{name}.md" for name in ("search-cost", "benchmarks", "train", "contest")]
    train = (ROOT / "docs/train.md").read_text()
    measured = values("\n".join((ROOT / page).read_text() for page in pages))
    rows = [row.split("|") for row in section("Results").split("\n") if row.startswith("|")]
    rows = [row for row in rows if "139" not in row[2]]  # of 139: tests/ops/test_ops.py
    assert values("\n".join(row[2] for row in rows)) >= {
        "204",
        "284",
        "96.1",
        "97.4",
        "4.7e+07",
        "5.65e+05",
    }
    for row in rows:
        beside = [part.split(":")[0] for part in row[3].split(";")]
        assert values(row[2] + " ".join(beside)) <= measured, row
        for accuracy in re.findall(r"\d\d\.\d\d", row[2] + row[3]):
            assert f" {accuracy} |" in train, row


def test_operations_of_ones_own_are_shown_somewhere() -> None:
    assert "batched=" in (ROOT / "examples/04_own_operation.py").read_text()


def test_no_page_has_people_remove_what_the_policy_may_not_have() -> None:
    """Which of crop, flip and cutout to remove depends on the policy, see `own_advice`."""
    wrong = re.compile(r"(replaces|in place of|instead of) your (own )?crop|[Rr]emove those")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    assert len(pages) > 20
    assert not [page.name for page in pages if wrong.search(" ".join(page.read_text().split()))]
