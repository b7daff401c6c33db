"""`deepaa report` on real runs: finished, stopped, going on; on policies; with what is missing."""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from contest_files import HARMS, HELPS, PROTECTED, contest
from PIL import Image

import deepaa
from deepaa import load_policy
from deepaa.cli import app as cli
from deepaa.data import ClassImages, load_images
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Table
from deepaa.policy.policy import Chains, Layers, Policy
from deepaa.report import page as page_module
from deepaa.report.classes import FoundClasses, find_classes
from deepaa.report.page import MAX_BYTES, Options, make_figures, make_page, originals_of
from deepaa.report.pictures import (
    Originals,
    data_url,
    find_originals,
    layer_rows,
    transformation_rows,
)
from deepaa.report.run_tables import stop_text
from deepaa.report.subject import Subject, read_subject, stamp, status_of
from deepaa.runs import Run, read_config, read_history
from deepaa.runs.process import LOCK
from deepaa.search.settings import ProxyConfig
from deepaa.train.config import TrainConfig
from deepaa.train.results import SeedResult, document

find_policy = partial(deepaa.find_policy, contest=False)
"""A search alone."""
TINY = (
    *("--preset", "demo", "--epochs", "1", "--steps", "3", "--layers", "2"),
    *("--ops", "rotate,flip", "--set", "heldout=8", "--set", "images=2", "--set", "validation=8"),
    *("--set", "chains=16", "--device", "cpu"),
    *("--contest", "off"),
)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(deepaa.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    images, labels = blobs(200, 1)
    np.savez(path, x=images.numpy(), y=labels.numpy())
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """The folder of a search that has ended."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert cli.run(["search", *TINY, "--data", str(data), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["report", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


class Reader(HTMLParser):
    """Tags, attributes and text of a page, without scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words.append(data)

    @property
    def figures(self) -> list[str]:
        return [str(a["data-figure"]) for _, a in self.tags if "data-figure" in a]


def read(path: Path) -> Reader:
    content = path.read_bytes()
    assert len(content) < MAX_BYTES
    return Reader(content.decode())


# Runs


@pytest.fixture(scope="module")
def reported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the run with its page, and what the command printed."""
    folder = Path(shutil.copytree(finished, tmp_path_factory.mktemp("reported") / "run"))
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert cli.run(["report", str(folder)]) == 0
    return folder, printed.getvalue()


def test_a_finished_run(reported: tuple[Path, str]) -> None:
    run, out = reported
    assert re.fullmatch(r"wrote .*report\.html: 0\.\d\d MB\n", out)
    page = read(run / "report.html")
    wanted = {drawing.name for drawing in make_figures(read_subject(str(run)))}
    assert wanted >= {"operations", "magnitudes-rotate", "entropy", "depth-mean", "identity"}
    assert wanted >= {"depth-deviation", "similarity-layer-1", "identity-layer-2"}
    assert sorted(page.figures) == sorted({*wanted, "layer-by-layer", "transformations"})
    for text in (
        *("run, found on blobs", "search finished", "The search stopped after the 2 layers"),
        *("Layer 1", "Layer 2", "Images of the search: blobs.npz.", "DeepAutoAugment("),
        *("checksum of the images", "pre-training", "No training results were given"),
        *("Accuracy by depth needs trainings", "All settings of the search"),
    ):
        assert text in page.text, text


def test_the_page_refers_to_nothing_outside(reported: tuple[Path, str]) -> None:
    page = read(reported[0] / "report.html")
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert str(attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    content = (reported[0] / "report.html").read_text()
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp", content)


def test_looking_leaves_the_run_as_it_is(reported: tuple[Path, str], finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    after = {path.name: path.read_bytes() for path in reported[0].iterdir()}
    assert after.keys() - before.keys() == {"report.html"}
    assert {name: after[name] for name in before} == before


def test_a_stopped_run_shows_what_is_found(command: Command, run: Path) -> None:
    """As a kill in the second layer leaves it: the state before the last."""
    for name in ("policy.json", "found.json"):
        (run / name).unlink()
    with Run(run, read_config(run)) as opened:
        saved = opened.latest()
        assert saved is not None
        tensors = dict(saved.tensors)
        tensors["search.layer"], tensors["search.step"] = torch.tensor(2), torch.tensor(2)
        tensors["search.done"] = torch.tensor(False)
        tensors["search.found"] = tensors["search.found"][:1]
        opened.save(tensors, saved.position)
    subject = read_subject(str(run))
    assert (subject.status, subject.unfinished) == ("stopped", 2)
    assert subject.policy is not None
    assert subject.policy.depth == 2
    code, _, _ = command(run)
    assert code == 0
    page = read(run / "report.html")
    for text in ("search not finished", "(not finished)", f"deepaa search --resume {run}"):
        assert text in page.text
    assert "The policy file is written when the search ends." in page.text


def test_before_the_first_state_there_is_only_the_course(command: Command, run: Path) -> None:
    states = ("state.safetensors", "state.previous.safetensors")
    for name in ("policy.json", "found.json", *states):
        (run / name).unlink(missing_ok=True)
    assert command(run)[0] == 0
    page = read(run / "report.html")
    assert "No layer is found yet" in page.text
    assert "similarity-layer-1" in page.figures
    assert "operations" not in page.figures


def test_damaged_parts_are_named_and_the_rest_is_shown(command: Command, run: Path) -> None:
    (run / "policy.json").write_text("{")
    (run / "provenance.json").write_text("{")
    (run / "history.jsonl").unlink()
    assert command(run)[0] == 0
    page = read(run / "report.html")
    assert "The policy cannot be shown" in page.text
    assert "policy.json" in page.text
    assert "its history is missing" in page.text
    assert "No layer is finished yet." in page.text


def test_a_search_from_python_shows_its_images(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    small = {"layers": 1, "steps": 1, "images": 2, "validation": 8, "heldout": 4, "chains": 8}
    proxy = ProxyConfig(model="small", train=TrainConfig(epochs=1))
    out = tmp_path / "python"
    find_policy(data.name, preset="demo", proxy=proxy, out=out, device="cpu", **small)
    monkeypatch.chdir(tmp_path)
    subject = read_subject(str(out))
    images, origin = originals_of(subject, Options(images=3))
    assert origin == f"Images of the search: {data.name}."
    assert torch.equal(images, load_images(data, 3))
    stopped = stop_text(subject._replace(status="stopped"))
    assert stopped.endswith(f"Go on with: deepaa search --resume {out}")
    given = {**subject.config, "source": {"data": None, "from_python": ["the images"]}}
    assert "given by Python code" in find_originals(given, 3).origin
    stopped = stop_text(subject._replace(status="stopped", config=given))
    assert stopped.endswith("Go on by calling find_policy again.")


def test_no_images_are_read_before_there_is_a_policy(run: Path) -> None:
    subject = read_subject(str(run))._replace(policy=None)
    page = make_page(subject, options=Options(data=Path("nowhere")))
    assert "Layer 1" not in page
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make_page(read_subject(str(run)), options=Options(data=Path("nowhere")))


def test_the_code_of_own_operations() -> None:
    config = {"source": {"operations": ["fading:FADE"]}}
    subject = Subject("p.json", "policy", load_policy("deepta"), config=config)
    page = html.unescape(make_page(subject))
    assert "DeepAutoAugment('p.json', operations=import_operations(['fading:FADE']))" in page


def test_images_that_are_gone_give_way_to_embedded_ones(run: Path, data: Path) -> None:
    config = dict(read_subject(str(run)).config)
    assert "blobs.npz" in find_originals(config, 3).origin
    gone = {**config["source"]["data"], "data": str(data.with_name("gone.npz"))}
    config["source"] = {**config["source"], "data": gone}
    images, origin = find_originals(config, 3)
    assert torch.equal(images, load_images(None, 3))
    assert "cannot be found again" in origin
    assert "gone.npz" in origin
    assert "\n" not in origin


def test_own_images(command: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.new("RGB", (300, 200), (80 * i, 20, 90)).save(tmp_path / "photos" / f"{i}.png")
    assert command(run, "--data", "photos", "--images", 2)[0] == 0
    page = read(run / "report.html")
    assert "Images of photos." in page.text
    sources = [str(a["src"]) for tag, a in page.tags if tag == "img"]
    kinds = {source.split(";")[0] for source in sources}
    assert kinds == {"data:image/jpeg", "data:image/webp"}  # nothing exact, so nothing large
    assert "Images of each class cannot be shown: " in page.text
    assert "3 images but no class folders" in page.text


def test_classes_and_strengths_are_shown(command: Command, run: Path) -> None:
    assert command(run)[0] == 0
    page = read(run / "report.html")
    names = [a["alt"] for tag, a in page.tags if tag == "img" and "original" in str(a["alt"])]
    data = find_classes(read_subject(str(run)).config).images
    assert data is not None
    wanted = [name for name, images in data.groups for _ in images]
    assert [str(name) for name in names if "," in str(name)] == [f"{n}, original" for n in wanted]
    assert "Strength 1, draw 1 of 8" in page.text
    content = (run / "report.html").read_text()
    (text,) = re.findall(r'id="strength-data">(.*?)</script>', content)
    stored = json.loads(text)
    assert len(stored["draws"]) == 8
    assert all(len(shots) == 6 for draw in stored["draws"] for shots in draw)
    first = [stored["pictures"][picture] for picture, _ in stored["draws"][0][-1]]
    shown = [str(a["src"]) for tag, a in page.tags if tag == "img"][: len(first)]
    assert shown == first  # without scripts: the first draw of the policy as it is


def test_classes_by_name(command: Command, tmp_path: Path) -> None:
    assert command("deepta", "--class", "frog", "--class", "cat")[0] == 0
    page = read(tmp_path / "report.html")
    assert "cat frog" in page.text
    assert "Not shown: airplane, automobile, bird," in page.text
    code, _, err = command("deepta", "--class", "frogg")
    assert (code, err.strip().splitlines()) == (
        2,
        [
            "error: --class: no class is called frogg; there are airplane, automobile, bird, cat, "
            "deer, dog, frog, horse, ship, truck"
        ],
    )
    many = [word for i in range(21) for word in ("--class", i)]
    assert "at most 20 names, got 21" in command("deepta", *many)[2]


def test_originals_alone_show_no_classes() -> None:
    subject = Subject("x", "policy", load_policy("deepta"))
    originals = originals_of(subject, Options())
    assert "What happens to each class" not in make_page(subject, originals=originals)
    assert "What happens to each class" in make_page(subject)


def test_a_page_of_large_images_stays_small() -> None:
    images = torch.randint(0, 256, (16, 3, 400, 300), dtype=torch.uint8)
    groups = tuple((f"class {i}", images[:2]) for i in range(12))
    subject = Subject("x", "policy", load_policy("deepta"))
    classes = FoundClasses(ClassImages(groups, ("another",)))
    shown = Originals(images, "Noise, which no format makes small.")
    plain = make_page(subject, (), Options(images=16), shown)
    assert len(plain) < MAX_BYTES
    whole = make_page(subject, (), Options(images=6), shown, classes=classes)
    assert whole.count("<img") > 6 * 4 + 96
    assert "Not shown: another." in whole


# Contests


def with_contest(run: Path, winner: str = "", **how: object) -> dict[str, Any]:
    """Give a run what a contest leaves: the search's policy beside the winner of it."""
    shutil.copy(run / "policy.json", run / "found.json")
    if winner:
        load_policy(winner).save(run / "policy.json")
    document = contest(**how)  # type: ignore[arg-type]
    (run / "contest.json").write_text(json.dumps(document))
    return document


def problems(err: str) -> list[str]:
    """What the command says on stderr, but for the place of its example images."""
    return [line for line in err.splitlines() if not line.startswith("examples are images of ")]


def tabs_of(page: Reader) -> list[str]:
    return [str(a["data-name"]) for tag, a in page.tags if a.get("role") == "tab"]


def test_the_contest_comes_first(command: Command, run: Path) -> None:
    document = with_contest(run, "trivialaugment", protected=PROTECTED)
    _, out, err = command(run)
    assert (out, problems(err)) == (f"wrote {run / 'report.html'}: {size_of(run)} MB\n", [])
    page = read(run / "report.html")
    assert tabs_of(page) == ["contest", "policy", "found", "search", "examples", "accuracy", "use"]
    text = page.text.replace("\xa0", " ")
    said = [document["sentence"], "2 seeds that did not choose the winner", "contest finished"]
    said += ["run, chosen on blobs", "The winner of the contest: found, spread."]
    said += ["What the search itself found. It is in found.json"]
    said += ["flip: 'turn left' becomes 'turn right' (91 % of 60 images)"]
    for words in (*said, "found, spread (winner) 53.0 84.0 +12.0 (7.9 to 16.1)", "reference"):
        assert words in text, words
    wanted = {drawing.name for drawing in make_figures(read_subject(str(run)))}
    assert {"contest", "operations", "found-operations", "found-magnitudes-rotate"} <= wanted
    assert sorted(page.figures) == sorted({*wanted, "layer-by-layer", "transformations"})
    assert len(page.figures) == len(set(page.figures))


def size_of(run: Path) -> str:
    return f"{(run / 'report.html').stat().st_size / 1e6:.2f}"


def test_a_found_policy_that_won_is_shown_once(command: Command, run: Path) -> None:
    with_contest(run)
    subject = read_subject(str(run))
    assert subject.found is None
    assert subject.policy is not None
    assert command(run)[0] == 0
    tabs = tabs_of(read(run / "report.html"))
    assert tabs == ["contest", "policy", "search", "examples", "accuracy", "use"]


def test_no_augmentation_may_win(command: Command, run: Path) -> None:
    document = with_contest(run, "none", contestants=HARMS)
    assert command(run)[0] == 0
    page = read(run / "report.html")
    for words in (
        *(document["sentence"], "The winner of the contest: no augmentation."),
        *("Images stay as they are.", "The winner leaves images as they are; what is shown is"),
        "This policy changes nothing: train without augmentation",
    ):
        assert words in page.text.replace("\xa0", " "), words
    assert "Resize first" not in page.text  # nothing is to be used, and nothing beside it
    assert "operations" not in page.figures
    assert "found-operations" in page.figures


@pytest.mark.parametrize("done", [None, 0, 3, 14])
def test_a_contest_that_is_not_over(command: Command, run: Path, done: int | None) -> None:
    if done is None:  # nothing is written yet
        shutil.copy(run / "policy.json", run / "found.json")
    else:
        with_contest(run, done=done)
    (run / "policy.json").unlink()
    found = load_policy(run / "found.json")
    holder = {"pid": os.getppid(), "host": socket.gethostname(), "since": "now"}
    (run / LOCK).write_text(json.dumps(holder))  # another process works there
    assert status_of(run) == "contest running"
    subject = read_subject(str(run))
    assert subject.is_running
    assert subject.policy is not None
    assert subject.policy.equals(found)
    assert subject.found is None
    assert "The contest goes on" in stop_text(subject)
    assert command(run)[0] == 0
    going = read(run / "report.html").text
    (run / LOCK).unlink()
    assert status_of(run) == "contest stopped"
    assert command(run)[0] == 0
    stopped = read(run / "report.html").text
    assert "contest running" in going
    assert "The contest goes on" in going
    assert "contest not finished" in stopped
    assert f"Go on with: deepaa search --resume {run}" in stopped
    for text in (going, stopped):
        assert "The run's policy is chosen when it ends." in text
        assert "The policy file is written when the contest ends." in text
    if done:
        (words,) = {3: ["3 of 10 candidates"], 14: ["candidates trained for 16 epochs"]}[done]
        assert words in going


def test_a_run_without_a_contest_says_so(reported: tuple[Path, str], data: Path) -> None:
    """A run of --contest off, or of a version that had no contest."""
    page = read(reported[0] / "report.html")
    assert tabs_of(page)[0] == "contest"
    assert "Nothing was proved." in page.text
    assert f"deepaa contest --data {data} --policy {reported[0]}/policy.json" in page.text
    assert tabs_of(Reader(make_page(Subject("x", "policy", load_policy("deepta")))))[0] == "policy"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 1, "candidates": 3}'])
def test_a_damaged_contest_is_named_and_the_rest_is_shown(
    command: Command, run: Path, content: str
) -> None:
    with_contest(run, "trivialaugment")
    (run / "contest.json").write_text(content)
    (run / "found.json").write_text("{")
    code, _, err = command(run)
    assert code == 0
    contest_line, found_line = problems(err)
    assert contest_line.startswith("the contest is left out: ")
    assert found_line.startswith("what the search found is left out: ")
    page = read(run / "report.html")
    assert "The contest cannot be shown: " in page.text
    assert "What the search itself found cannot be shown: " in page.text
    assert "operations" in page.figures


def test_a_run_of_another_method(command: Command, tmp_path: Path, data: Path) -> None:
    options = "--method random --preset demo --epochs 1 --set trials=3 --set parallel=1 "
    options += "--contest off --no-protect --device cpu --set train.batch=32"
    folder = tmp_path / "random"
    search = ["search", *options.split(), "--data", str(data), "--out", str(folder)]
    assert cli.run(search) == 0
    command(folder)
    text = read(folder / "report.html").text
    scores = [record["score"] for record in read_history(folder)]
    assert "chose this policy by the method random" in text
    assert "The search with the method random has ended." in text
    best = max(range(3), key=lambda unit: scores[unit])
    assert f"± se What {best + 1} {scores[best]:.4f}" in text
    assert f"all {read_history(folder)[-1]['passes']:,}" in text
    for untrue in ("gradients of a network", "history is", "No layer is", "No step is"):
        assert untrue not in text
    subject = read_subject(str(folder))
    for strange in (["no", "method"], {"name": 3}, "random"):  # a folder may come from anybody
        page = make_page(subject._replace(config={**subject.config, "method": strange}))
        assert "by the gradients of a network" in page


def test_a_contest_alone(command: Command, tmp_path: Path) -> None:
    """What `deepaa contest` leaves: nothing was searched."""
    document = contest(HELPS[:4])
    with Run(tmp_path / "run", {"kind": "contest", "source": {}}) as run:
        folder = run.folder
        assert stop_text(read_subject(str(folder))).startswith("Nothing was searched:")
        assert command(folder)[0] == 0
        (folder / "contest.json").write_text(json.dumps(document))
        load_policy("trivialaugment").save(folder / "policy.json")
    assert command(folder)[0] == 0
    page = read(folder / "report.html")
    assert tabs_of(page) == ["contest", "policy", "examples", "accuracy", "use"]
    assert "The winner" not in page.text
    assert document["sentence"] in page.text.replace("\xa0", " ")


# Policies


@pytest.mark.parametrize("name", ["deepta", "deepta-imagenet", "autoaugment-cifar10", "identity"])
def test_a_policy_alone(command: Command, tmp_path: Path, name: str) -> None:
    code, _, _ = command(name)
    assert code == 0
    page = read(tmp_path / "report.html")
    assert "policy without a run" in page.text
    assert "A policy alone does not say how it was found." in page.text
    assert "operations" in page.figures
    assert f"augment = DeepAutoAugment('{name}')" in page.text


def test_a_policy_that_changes_over_time(command: Command, tmp_path: Path) -> None:
    flip, invert = Operation("flip"), Operation("invert")
    table = Table([(Operation("identity"), None), (flip, None), (invert, None)])
    first = Layers(torch.tensor([[0.0, 1.0, 0.0]]))
    second = Layers(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    Policy(table, schedule=[(0, [first]), (10, [second])]).save(tmp_path / "p.json")
    command("p.json")
    text = read(tmp_path / "report.html").text.replace("\xa0", " ")
    assert "always flip" in text
    assert "almost always" not in text
    command("p.json", "--epoch", 12)
    page = read(tmp_path / "report.html")
    assert "this is epoch 12 (phases: 0, 10)" in page.text
    assert "always invert" in page.text
    assert "always flip" not in page.text
    assert "almost always" not in page.text


def test_a_policy_whose_first_phase_has_no_layers() -> None:
    later = Policy.trivial(CIFAR, 1).phases[0].stages
    subject = Subject("x", "policy", Policy(CIFAR, schedule=[(0, []), (5, later)]))
    assert "The policy has no layers" in make_page(subject)
    page = make_page(subject, (), Options(epoch=5))
    assert "The policy has no layers" not in page
    assert "Operations in each layer" in page


def test_policies_without_layers_and_with_very_many() -> None:
    page = make_page(Subject("x", "policy", Policy.identity(CIFAR, 0)))
    assert "The policy has no layers: images stay as they are." in page
    deep = Reader(make_page(Subject("x", "policy", Policy.identity(CIFAR, 300))))
    assert "The first 40 of 300 layers." in deep.text
    chains = Chains(torch.ones(1), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2))
    assert "Layers 1 to 2" in make_page(Subject("x", "policy", Policy(CIFAR, chains)))


def test_large_pages_show_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("x", "policy", Policy.trivial(IMAGENET, 3))
    whole = make_page(subject, (), Options(images=9))
    monkeypatch.setattr(page_module, "MAX_BYTES", len(whole.encode()) - 1)
    fewer = make_page(subject, (), Options(images=9))
    classes = 10 * 2 * 4
    assert whole.count("<img") == 9 * 4 + 4 * 8 + 9 + classes
    assert fewer.count("<img") == 3 * 4 + 3 * 8 + 3 + classes


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    policy = Policy(CIFAR, Layers(torch.full((1, 139), 1 / 139)), info={evil: f"{evil}&'\""})
    text = make_page(Subject(evil, "policy", policy))
    assert "<script>alert" not in text
    assert evil in Reader(text).text


OWN = """
from deepaa import Operation

def fade(image, magnitude, uniforms):
    return image.point(lambda value: value // 2)

FADE = Operation("fade", pil=fade)
"""
OTHERS = "--data takes others\n"


def test_own_operations_are_imported_only_when_asked_for(
    command: Command, tmp_path: Path, data: Path
) -> None:
    (tmp_path / "my_fade.py").write_text(OWN)
    search = ["search", *TINY, "--data", str(data), "--out", "run", "--layers", "1"]
    search += ["--ops", "rotate,fade", "--operations", "my_fade:FADE"]
    assert cli.run(search) == 0
    sys.modules.pop("my_fade")
    code, _, err = command("run")
    assert code == 0
    assert "\nthe policy is left out: " in err
    assert err.endswith("; here: --operations my_fade:FADE\n")
    assert "my_fade" not in sys.modules
    code, _, err = command("run", "--operations", "my_fade:FADE")
    assert (code, err) == (0, f"examples are images of {data}, as the run says; {OTHERS}")
    page = read(tmp_path / "run" / "report.html")
    assert "your own" in page.text
    code, _, err = command("run/policy.json")
    assert (code, err.count("; here: --operations MODULE:NAME")) == (2, 1)


# Pictures


def test_pictures_are_what_the_policy_makes() -> None:
    images = load_images(None, 3)
    policy = Policy.always(Operation("invert"), Operation("flip"))
    original, inverted, _ = layer_rows(images, policy)
    assert [source for source, _ in original.pictures] == [data_url(image) for image in images]
    assert [source for source, _ in inverted.pictures] == [
        data_url(255 - image) for image in images
    ]
    assert {caption for _, caption in inverted.pictures} == {"invert"}
    rows = transformation_rows(images, policy)
    assert [(row.name, row.uses) for row in rows] == [("invert", 1.0), ("flip", 1.0)]
    assert rows[0].pictures[0][0] == data_url(255 - images[0])


# Results


def write_results(folder: Path, name: str, layers: int, accuracies: list[float]) -> Path:
    folder.mkdir()
    seeds = [
        SeedResult(i, a, 0.5, 10, 60.0, 1e4, 1, "cpu", "2.15.0") for i, a in enumerate(accuracies)
    ]
    policy = {"name": name, "layers": layers, "defaults": None, "first_layers": None}
    facts = {"policy": policy, "model": "small", "images": {"data": "cifar10"}}
    (folder / "results.json").write_text(json.dumps(document(seeds, facts)))
    return folder


def test_trainings_beside_the_policy(command: Command, run: Path, tmp_path: Path) -> None:
    one = write_results(tmp_path / "a", "deepta:1", 1, [0.90, 0.91, 0.92, 0.91])
    two = write_results(tmp_path / "b", "deepta:2", 2, [0.93])
    code, _, _ = command(run, "--results", one, "--results", two / "results.json")
    assert code == 0
    page = read(run / "report.html")
    assert {"accuracy-1", "depth-accuracy"} <= set(page.figures)
    assert "cifar10, small, 10 epochs" in page.text
    assert "deepta:2 93.00 one seed 1 2 deepta:1 91.00 ± 1.30 4 1" in page.text
    assert "fewer than four seeds" in page.text
    together = read(run / "report.html").text
    assert command(run, "--results", tmp_path)[0] == 0  # the folder of both
    assert read(run / "report.html").text.split("Made by")[0] == together.split("Made by")[0]
    write_results(tmp_path / "c", "none", 0, [])
    code, _, err = command(run, "--results", "c")
    assert (code, err) == (2, "error: c: no seed is finished yet\n")


def test_a_real_training(command: Command, run: Path, data: Path) -> None:
    train = ["train", "--policy", str(run / "policy.json"), "--data", str(data), "--out", "t"]
    train += ["--model", "small", "--epochs", "1", "--seeds", "2", "--first-layers", "1"]
    assert cli.run([*train, "--device", "cpu"]) == 0
    assert command(run, "--results", "t")[0] == 0
    page = read(run / "report.html")
    assert "accuracy-1" in page.figures
    assert "blobs, small, 1 epoch" in page.text
    assert re.search(r"run/policy\.json, first 1 [\d.]+ ± [\d.]+ 2 1 ", page.text)


# The command


@pytest.mark.parametrize("formats", ["svg", "svg,png"])
def test_figures_on_request(command: Command, run: Path, tmp_path: Path, formats: str) -> None:
    if "png" in formats:
        pytest.importorskip("matplotlib", reason="PNG figures need matplotlib")
    code, out, _ = command(run, "--figures", "figures", "--format", formats)
    assert code == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stems = ("operations", "depth-mean")
    assert {f"{stem}.{kind}" for stem in stems for kind in formats.split(",")} <= names
    assert f"wrote {len(names)} figures to figures" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "error: nothing: no such file, and no policy has this name"),
        (["."], "error: .: holds no run (config.json is missing), no contest.json"),
        (["deepta", "--format", "gif"], "error: --format takes png, svg, pdf with commas"),
        (["deepta", "--out", "no/x.html"], "error: --out no/x.html: the folder no does not exist"),
        (["deepta", "--out", "."], "error: --out .: a folder; give a name like report.html"),
        (["deepta", "--results", "no"], "error: no: cannot be read"),
    ],
)
def test_errors_are_one_line(command: Command, arguments: list[str], message: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_only_reports_are_replaced_unasked(command: Command, tmp_path: Path) -> None:
    assert command("deepta")[0] == 0
    assert command("identity")[0] == 0
    (tmp_path / "mine.html").write_text("my page")
    code, _, err = command("deepta", "--out", "mine.html")
    assert (code, err.count("add --force")) == (2, 1)
    assert (tmp_path / "mine.html").read_text() == "my page"
    assert command("deepta", "--out", "mine.html", "--force")[0] == 0


def test_a_training_is_refused_with_advice(command: Command, tmp_path: Path) -> None:
    with Run(tmp_path / "t", {"kind": "train"}):
        pass
    code, _, err = command("t")
    assert (code, err) == (
        2,
        "error: t: this run is a training; show it beside a policy: "
        "deepaa report POLICY --results t\n",
    )


# Watching


def test_watching_what_does_not_run_ends_at_once(command: Command, run: Path) -> None:
    code, out, err = command(run, "--watch")
    assert code == 0
    assert "wrote" in out
    assert err.endswith(f"{OTHERS}nothing to watch: no search is running there\n")


def test_the_stamp_changes_with_the_history(run: Path) -> None:
    before = stamp(run)
    assert stamp(run) == before
    with (run / "history.jsonl").open("a") as file:
        file.write("{}\n")
    after = stamp(run)
    assert after != before
    (run / "contest.json").write_text("{}")
    assert stamp(run) != after


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_page_follows_a_search_to_its_end(
    tmp_path: Path, data: Path, started: list[subprocess.Popen[str]]
) -> None:
    def start(*arguments: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-m", "deepaa", *map(str, arguments)],
            env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    def wait(condition: Callable[[], object], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "waited too long"
            time.sleep(0.05)

    folder, page = tmp_path / "run", tmp_path / "run" / "report.html"
    search = start(
        "search", *TINY, "--steps", 100_000, "--checkpoint-seconds", 0.5, "--data", data,
        "--out", folder,
    )  # fmt: skip
    wait(lambda: any(r["kind"] == "step" for r in read_history(folder)))
    assert status_of(folder) == "running"
    watcher = start("report", folder, "--watch")
    wait(lambda: page.exists() and 'data-reload="5"' in page.read_text())
    first = page.read_text()
    assert "The search is running: layer 1, step " in first
    wait(lambda: page.read_text() != first)
    assert watcher.poll() is None
    search.send_signal(signal.SIGTERM)
    search.wait(60)
    out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    assert "the search is stopped; the page is up to date" in err
    assert out.count("wrote") == 1
    last = page.read_text()
    assert 'data-reload="0"' in last
    assert f"deepaa search --resume {folder}" in Reader(last).text


def test_reading_a_page_of_a_named_policy_needs_no_search() -> None:
    """A bare policy shows what the policy says: the same numbers as `deepaa show`."""
    policy = load_policy("deepta")
    page = Reader(make_page(Subject("deepta", "policy", policy)))
    assert "any of 18 operations, all equally often (6 %)" in page.text.replace("\xa0", " ")
    assert "6.36" in page.text  # bits
