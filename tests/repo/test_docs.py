"""The documentation: every link leads somewhere, every Python block runs, every command is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import typer
from forks import Program, in_forks
from pages import (
    OPTIONAL,
    PAGES,
    ROOT,
    blocks,
    commands,
    is_commands,
    is_installed,
    make_world,
)

from deepaa.cli.app import app, run

LANGUAGES = {"", "python", "console", "text", "json"}
PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks(page))]
COMMANDS = [page for page in PAGES if commands(page)]
CHEAP = {"show", "policies", "preview", "convert", "compare", "report"}
"""Commands that are run as they stand, in the small world of `pages.make_world`."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


# Pages


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if heading:
            assert heading in headings(file), target


def headings(page: Path) -> set[str]:
    """Anchors as the site makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h.lower())).strip("-") for h in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_have_a_known_language(page: Path) -> None:
    assert page.read_text().count("\n```") == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def test_tests_and_code_that_pages_name_exist() -> None:
    """Also in the decisions, which outlive the files they speak of."""
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`(tests/[\w/]+\.py|tests/\w+)`", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        for name in re.findall(r"`(?:src/)?(deepaa/[\w/]+(?:\.py)?)`", text):
            assert (ROOT / "src" / name).exists(), f"{page.name}: {name}"


def test_every_package_has_a_page_of_reference() -> None:
    packages = {path.parent.name for path in (ROOT / "src/deepaa").glob("*/__init__.py")}
    pages = {page.stem for page in (ROOT / "docs/reference").glob("*.md")}
    assert pages == (packages - {"cli"}) | {"deepaa", "distributed"}


def test_promises_name_tests_that_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs/reliability.md").read_text()))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'deepaa[docs]'")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search/search_index.js").exists()  # read by pages opened from a folder
    for page in (ROOT / "docs").rglob("*.md"):
        built = tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")
        html = built.read_text()
        assert 'data-md-component="search"' in html
        outside = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', html)
        assert not outside  # a reader asks no other server


# Python


@pytest.mark.slow
def test_python_runs(world: Path, tmp_path: Path) -> None:
    """Each page in a process of its own, because pages change presets, folders and imports."""
    programs = []
    for number, page in enumerate(PYTHON):
        folder = shutil.copytree(world, tmp_path / str(number))
        if 'out="run"' in page.read_text():  # a page that makes this run, and not one that reads it
            shutil.rmtree(folder / "run")
        own = Program(
            file=str(ROOT / "tests/helpers/pages.py"), arguments=(str(page),), folder=str(folder)
        )
        programs.append(own)
    found = in_forks(programs, timeout=600)
    failed = [
        f"{page.name}: {done.stderr}"
        for page, done in zip(PYTHON, found, strict=True)
        if done.returncode
    ]
    assert not failed, "\n".join(failed)
    if left_out := re.findall(r"left out: (.*)", "".join(done.stdout for done in found)):
        pytest.skip(f"the rest ran; {'; '.join(left_out)}")


# Commands


@pytest.mark.parametrize("page", COMMANDS, ids=name_of)
def test_commands_are_known(page: Path) -> None:
    """Programs, commands, options, values, recipes and presets; nothing is run."""
    for line, words in commands(page):
        problem = problem_with(words)
        assert problem is None, f"{page.name}:{line}: {' '.join(words)}: {problem}"


def problem_with(words: list[str]) -> str | None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        return None if set(words[1:]) <= set(targets) else f"the Makefile has {targets}"
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = set(re.findall(r"\[([\w,]+)\]", " ".join(words)))
        return None if wanted <= set(extras["optional-dependencies"]) else f"no extra {wanted}"
    if words[0] == "python":
        return None if (ROOT / words[1]).exists() else "no such file"
    return problem_of_deepaa(deepaa_words(words))


def deepaa_words(words: list[str]) -> list[str]:
    """What follows `deepaa`, also under torchrun."""
    return words[words.index("deepaa") + 1 :]


def problem_of_deepaa(words: list[str]) -> str | None:
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    if rest and rest[-1] in ("--help", "--version", "-h"):
        return None
    try:
        values = command.make_context("deepaa", rest).params
        check_settings(words[0], values)
    except Exception as error:
        return str(error)
    return None


def check_settings(command: str, values: dict[str, object]) -> None:
    """What the command itself would look at first."""
    from deepaa.search.methods import base_preset, opened_method
    from deepaa.search.settings import SettingsRequest
    from deepaa.train.config import find_recipe

    if command == "search" and values["resume"] is None:
        given = {name: values[name] for name in ("ops", "exclude", "model")}
        for method in str(values["methods"] or values["method"] or "deepaa").split(","):
            found, changes = opened_method(
                method, values["preset"], values["settings"], values["epochs"]
            )
            preset = values["preset"] if found is None else base_preset(values["preset"])
            SettingsRequest(preset, changes=changes, **given).resolve()
    if command == "train" and values["recipe"] is not None:
        recipes = ("cifar10", "cifar100", "imagenet")
        data = str(values["data"]).rstrip("/")
        find_recipe(values["recipe"], data if data in recipes else None)


@pytest.mark.slow
@pytest.mark.parametrize("page", COMMANDS, ids=name_of)
def test_cheap_commands_run(page: Path, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that only look, and searches as far as `--dry-run` takes them."""
    absent = [name for name in OPTIONAL if not is_installed(name)]
    ran, missing = 0, []
    with chdir(world):
        for line, words in runnable(page):
            code, said = run(words), capsys.readouterr().err
            if code and (package := next(filter(said.__contains__, absent), None)):
                missing.append(f"line {line} needs the package {package}")
                continue
            assert code == 0, f"{page.name}:{line}: {words}\n{said}"
            ran += 1
    if missing:
        pytest.skip(f"the rest ran; {'; '.join(missing)}")
    if not ran:
        pytest.skip("all commands of this page take long, or need data that is not here")


def runnable(page: Path) -> Iterator[tuple[int, list[str]]]:
    for line, words in commands(page):
        if words[0] not in ("deepaa", "torchrun"):
            continue
        words = deepaa_words(words)
        if words[0] in CHEAP:
            yield line, [*words, *(["--force"] if words[0] == "convert" else [])]
        elif words[0] == "search" and "--resume" in words:
            yield line, words
        elif words[0] == "search":
            # any data will do to see whether the settings work; embedded images are many
            data = words.index("--data") if "--data" in words else None
            here = data is not None and Path(words[data + 1]).exists()
            if data is not None and not here:
                words = [*words[:data], "--data", "my_images", *words[data + 2 :]]
            if "--operations" in words or "--preset" not in words:
                words = [*words, "--model", "small"] if "--model" not in words else words
            yield line, [*words, *([] if "--dry-run" in words else ["--dry-run"])]


def test_a_block_of_output_is_no_command() -> None:
    found = [block for page in PAGES for block in blocks(page) if is_commands(block)]
    assert len(found) > 10
    assert all(block.language in ("", "console", "bash", "sh") for block in found)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["deepaa", "serch"], "no command 'serch'"),
        (["deepaa", "search", "--dataa", "x"], "--dataa"),
        (["deepaa", "search", "--preset", "quick"], "quick"),
        (["deepaa", "search", "--set", "step=3"], "step"),
        (["deepaa", "train", "--recipe", "wrn-1-1"], "wrn-1-1"),
        (["torchrun", "-m", "deepaa", "show"], "policy"),
        (["make", "tea"], "Makefile"),
        (["pip", "install", "deepaa[tea]"], "tea"),
    ],
)
def test_a_wrong_command_is_seen(words: list[str], problem: str) -> None:
    assert problem in str(problem_with(words))
