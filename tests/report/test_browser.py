"""The page in real Chromium: no errors, no network, every figure, tabs and sorting by keyboard."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from contest_files import HARMS, HELPS, PROTECTED, contest
from PIL import Image

from deepaa import load_policy
from deepaa.data import load_images
from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Layers, Policy
from deepaa.report.comparison import compare_policies, load_entries
from deepaa.report.contest import contest_table
from deepaa.report.page import Options, comparison_page, make_figures, make_page
from deepaa.report.pictures import transformation_rows
from deepaa.report.subject import Subject
from deepaa.runs import write_file
from deepaa.train.results import SeedResult

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} found"),
]


class Browser:
    """Headless Chromium, driven by its DevTools protocol over a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        ends = [os.dup(theirs_in), os.dup(theirs_out)]

        def pipes() -> None:  # the protocol wants them as 3 and 4
            os.dup2(os.dup(ends[0]) if ends[0] == 4 else ends[0], 3)
            os.dup2(ends[1], 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--remote-debugging-pipe", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdout=quiet, stderr=quiet, preexec_fn=pipes, close_fds=False,
            start_new_session=True,
        )  # fmt: skip
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._number, self._buffer, self.events = 0, b"", []  # type: ignore[var-annotated]
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(30.0)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], seconds)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path, fragment: str = "") -> None:
        self.call("Page.navigate", url="about:blank")  # else another fragment is no new page
        self.wait(lambda: self.js("location.href") == "about:blank")
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri() + fragment)
        is_there = "location.protocol == 'file:' && document.readyState == 'complete'"
        self.wait(lambda: self.js(is_there))

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        until = time.monotonic() + seconds
        while True:
            with suppress(AssertionError):  # the page may just be loading
                if condition():
                    return
            assert time.monotonic() < until, "waited too long"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        # Enter needs its character, or no click follows
        extra = {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
        both = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **both, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    def window(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def complaints(self) -> list[str]:
        """Errors, warnings and messages of the console since the page was opened."""
        self.js("0")  # everything before has arrived then
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [str(event) for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Addresses that were asked for, but for data in the page."""
        self.js("0")
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def _policy() -> Policy:
    weights = torch.ones(3, len(CIFAR), dtype=torch.float64)
    weights[1, -2] = 2000.0
    weights[2, 0] = 3000.0
    return Policy(CIFAR, Layers(weights / weights.sum(1, keepdim=True)), info={"seed": "0"})


def _records() -> tuple[dict[str, Any], ...]:
    epoch = {"kind": "epoch", "epoch": 0, "loss": 2.0, "accuracy": 0.2, "lr": 0.1}
    found: list[dict[str, Any]] = [{**epoch, "seconds": 1.5, "images": 100}]
    for layer in (1, 2, 3):
        for step in range(1, 31):
            place = {"kind": "step", "layer": layer, "step": step, "similarity": 0.1 + 0.001 * step}
            rest = {"identity": 1 - step / 40, "perplexity": 2.0, "top": [["flip", 0.2]]}
            cost = {"passes": 1000 * layer, "skipped": 0, "seconds": 0.1}
            found.append({**place, **rest, **cost})
        ended = {"kind": "layer", "layer": layer, "kept": True, "reason": "asked for", "gain": 0.02}
        means = {"improvement_mean": 0.05 * layer, "improvement_std": 0.04, "deepta_mean": 0.03}
        found.append({**ended, **means, "deepta_std": 0.06, "passes": 1000 * layer, "seconds": 1.0})
    return tuple(found)


def _results() -> list[tuple[list[SeedResult], dict[str, Any]]]:
    results = []
    for name, layers, accuracy in (
        *(("run/policy.json", 1, 0.91), ("run/policy.json", 3, 0.93)),
        *(("deepta:1", 1, 0.90), ("deepta:3", 3, 0.915)),
    ):
        seeds = [
            SeedResult(s, accuracy + 0.001 * s, 0.3, 10, 60.0, 1e4, 1, "cpu", "2.15.0")
            for s in range(4)
        ]
        policy = {"name": name, "layers": layers, "defaults": None, "first_layers": None}
        results.append((seeds, {"policy": policy, "model": "small", "images": {"data": "cifar10"}}))
    return results


def _subject() -> Subject:
    provenance = {"data": "embedded", "device": "cpu", "starts": [{"devices": ["cpu: 2 cores"]}]}
    config = {"search": {"layers": 3, "steps": 30}, "source": {"data": {"data": None}}}
    return Subject(
        "run", "finished", _policy(), folder=Path("run"), config=config, records=_records(),
        provenance=provenance,
    )  # fmt: skip


def _contest(how: str = "helps") -> Subject:
    """A run whose contest was won by another policy than was found, or is not over."""
    subject = _subject()
    if how == "going":
        view = contest_table(contest(done=14))
        return subject._replace(status="contest running", contest=view)
    harms = how == "harms"
    view = contest_table(contest(HARMS if harms else HELPS, protected=PROTECTED))
    winner = load_policy("none" if harms else "trivialaugment")
    return subject._replace(contest=view, policy=winner, found=subject.policy)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report with space.html"
    path.write_text(make_page(_contest(), _results()), "utf-8")
    return path


def test_opens_without_complaints_and_without_network(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_every_figure_is_there_and_has_a_size(browser: Browser, page: Path) -> None:
    wanted = [drawing.name for drawing in make_figures(_contest(), _results())]
    assert len(wanted) == len(set(wanted)) > 15
    seen: set[str] = set()
    for tab in ("contest", "policy", "found", "search", "examples", "accuracy", "use"):
        browser.open(page, f"#{tab}")
        seen |= set(
            browser.js(
                "[...document.querySelectorAll('[data-figure]')].filter(e => {"
                " const b = e.getBoundingClientRect(); return b.width > 90 && b.height > 40 })"
                ".map(e => e.dataset.figure)"
            )
        )
    assert seen == {*wanted, "layer-by-layer", "transformations"}
    broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert browser.js(broken) == 0
    winner = load_policy("trivialaugment")
    rows = 1 + winner.depth, len(transformation_rows(load_images(None, 1), winner))
    in_tables = "document.querySelectorAll('.pictures img').length"
    assert browser.js(in_tables) == 6 * rows[0] + 4 * rows[1]


def test_a_comparison_opens_and_sorts_too(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "compared.html"
    found = compare_policies(load_entries(["none", "crop-flip"]))
    path.write_text(comparison_page(found, Image.new("RGB", (64, 32))), "utf-8")
    browser.window(390, 844)
    browser.open(path)
    assert browser.js("document.documentElement.scrollWidth") <= 390
    head = "document.querySelector('[data-table=policies]').tHead.rows[0].cells[2]"
    browser.js(f"{head}.querySelector('button').click()")
    assert browser.js(f"{head}.ariaSort") == "descending"
    assert browser.js("document.querySelectorAll('[data-figure=comparison]').length") == 1
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    browser.window(1000)


def _open_panels(browser: Browser) -> list[str]:
    return browser.js(
        "[...document.querySelectorAll('[role=tabpanel]')]"
        ".filter(p => getComputedStyle(p).display != 'none').map(p => p.id.replace('panel-', ''))"
    )


def test_tabs_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")  # the switch of colours
    assert browser.js("document.activeElement.id") == "theme"
    browser.press("Tab")
    assert browser.js("document.activeElement.id") == "tab-contest"
    visited = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        browser.press(key)
        (panel,) = _open_panels(browser)
        assert browser.js("document.activeElement.id") == f"tab-{panel}"
        assert browser.js("location.hash") == f"#{panel}"
        visited.append(panel)
    assert visited == ["policy", "found", "use", "contest", "use", "contest"]
    selected = "[...document.querySelectorAll('[aria-selected=true]')].map(t => t.id)"
    assert browser.js(selected) == ["tab-contest"]
    browser.press("Tab")  # one stop for all tabs, then the open part
    assert browser.js("document.activeElement.id") == "panel-contest"


def test_sorting_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page, "#found")
    table = "document.querySelector('#panel-found [data-table=uses]')"
    column = f"[...{table}.tBodies[0].rows].map(r => r.cells[2].dataset.value * 1)"
    heads = f"[...{table}.tHead.rows[0].cells].map(c => c.ariaSort)"
    assert browser.js(heads) == ["none"] * 4
    browser.js(f"{table}.tHead.rows[0].cells[2].querySelector('button').focus()")
    browser.press("Enter")
    falling = browser.js(column)
    assert browser.js(heads) == ["none", "none", "descending", "none"]
    assert falling == sorted(falling, reverse=True)
    browser.press("Enter")
    assert browser.js(heads) == ["none", "none", "ascending", "none"]
    assert browser.js(column) == sorted(falling)
    assert len(set(falling)) > 2
    browser.js(f"{table}.tHead.rows[0].cells[0].querySelector('button').focus()")
    browser.press("Enter")
    names = browser.js(f"[...{table}.tBodies[0].rows].map(r => r.cells[0].textContent)")
    assert names == sorted(op.name for op in CIFAR.operations)
    assert browser.complaints() == []


def test_colours_follow_the_system_and_the_switch(browser: Browser, page: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    browser.js("localStorage.clear()")
    browser.window(1000)
    light = browser.js(colour)
    browser.window(1000, dark=True)
    dark = browser.js(colour)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(21, 24, 27)")
    browser.js("document.getElementById('theme').focus()")
    browser.press("Enter")  # light, although the system is dark
    assert browser.js(colour) == light
    browser.press("Enter")  # dark
    browser.window(1000)
    assert browser.js(colour) == dark
    browser.press("Enter")
    assert browser.js(colour) == light


def test_the_contest_is_what_a_reader_sees_first(browser: Browser, page: Path) -> None:
    browser.window(390, 844)
    browser.open(page)
    assert _open_panels(browser) == ["contest"]
    bottom = "document.querySelector('{}').getBoundingClientRect().{}"
    assert browser.js(bottom.format(".open .headline", "bottom")) < 400
    assert browser.js(bottom.format("[data-figure=contest]", "top")) < 700  # without scrolling
    size = "parseFloat(getComputedStyle(document.querySelector('.headline')).fontSize)"
    assert browser.js(size) > 19
    browser.window(1280)
    table = "document.querySelector('[data-table=contest]')"
    assert browser.js(f"{table}.getBoundingClientRect().right <= innerWidth")
    scroll = f"{table}.parentElement"
    assert browser.js(f"{scroll}.scrollWidth <= {scroll}.clientWidth")  # nothing is hidden
    head = f"{table}.tHead.rows[0].cells[3]"
    browser.js(f"{head}.querySelector('button').click()")
    gaps = browser.js(f"[...{table}.tBodies[0].rows].map(r => r.cells[3].dataset.value * 1)")
    assert gaps == sorted(gaps, reverse=True)
    assert len(gaps) == len(HELPS)
    browser.window(1000)


@pytest.mark.parametrize("dark", [False, True])
def test_dots_of_a_contest_can_be_told_from_the_paper(
    browser: Browser, page: Path, dark: bool
) -> None:
    browser.open(page)
    browser.js("localStorage.clear()")
    browser.window(1000, dark=dark)
    colours = browser.js(
        "[...document.querySelectorAll('[data-figure=contest] circle')]"
        ".map(e => getComputedStyle(e).stroke)"
    )
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    assert len(set(colours)) == 4  # ahead, behind, neither, the reference
    for colour in colours:
        assert _contrast(colour, paper) > 3, (colour, paper)
    browser.window(1000)


def _contrast(one: str, other: str) -> float:
    """The ratio of WCAG: at least 3 for parts of figures."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    low, high = sorted((light(one), light(other)))
    return high / low


@pytest.mark.parametrize("how", ["going", "harms"])
def test_other_contests_fit_a_phone_too(browser: Browser, tmp_path: Path, how: str) -> None:
    path = tmp_path / f"{how}.html"
    path.write_text(make_page(_contest(how)), "utf-8")
    browser.window(390, 844)
    for tab in ("contest", "policy"):
        browser.open(path, f"#{tab}")
        assert _open_panels(browser) == [tab]
        assert browser.js("document.documentElement.scrollWidth") <= 390
        assert browser.complaints() == []
    browser.window(1000)


def test_a_table_that_a_phone_cuts_has_a_shadow_on_that_side(browser: Browser, page: Path) -> None:
    browser.window(360, 844)
    browser.open(page, "#found")
    box = "document.querySelector('#panel-found [data-table=uses]').parentElement"
    assert browser.js(f"{box}.scrollWidth > {box}.clientWidth"), "all of it would fit"
    shade = f"getComputedStyle({box})"
    attached = browser.js(f"{shade}.backgroundAttachment").split(", ")
    # covers move with the table and hide the shadow of an end that is reached
    assert attached[:4] == ["local", "local", "scroll", "scroll"]
    assert browser.js(f"{shade}.backgroundImage").count("linear-gradient") == 4
    tabs = "document.querySelector('[role=tablist]')"
    assert "linear-gradient" in browser.js(f"getComputedStyle({tabs}).backgroundImage")
    # the figure of a contest shrinks instead
    browser.open(page, "#contest")
    figure = "document.querySelector('[data-figure=contest]').closest('.scroll')"
    assert browser.js(f"{figure}.scrollWidth <= {figure}.clientWidth")
    browser.window(1000)


@pytest.mark.parametrize(
    "tab", ["contest", "policy", "found", "search", "examples", "accuracy", "use"]
)
def test_a_phone_need_not_scroll_sideways(browser: Browser, page: Path, tab: str) -> None:
    browser.window(390, 844)
    browser.open(page, f"#{tab}")
    assert _open_panels(browser) == [tab]
    assert browser.js("document.documentElement.scrollWidth") <= 390
    smallest = (
        "Math.min(...[...document.querySelectorAll('.open svg text')].map(t =>"
        " parseFloat(t.style.fontSize) * t.ownerSVGElement.getBoundingClientRect().width"
        " / t.ownerSVGElement.viewBox.baseVal.width), 99)"
    )
    assert browser.js(smallest) >= 7.5
    browser.window(1000)


SAID = "document.getElementById('said').textContent"
SHOWN = "[...document.querySelectorAll('.shots img')].map(image => image.src)"
STORED = "JSON.parse(document.getElementById('strength-data').textContent)"


def _stored(browser: Browser, draw: int, place: int) -> list[str]:
    pictures = f"{STORED}.draws[{draw}][{place}].map(shot => {STORED}.pictures[shot[0]])"
    return browser.js(pictures)


def test_strength_and_draw_by_keyboard(browser: Browser, page: Path) -> None:
    browser.window(1000)
    browser.open(page, "#examples")
    slider = "document.getElementById('strength')"
    browser.press("Tab")  # the switch of colours
    browser.press("Tab")  # the tabs
    browser.press("Tab")  # the part
    browser.press("Tab")
    assert browser.js("document.activeElement.id") == "strength"
    assert browser.js(f"getComputedStyle({slider}).outlineStyle") == "solid"  # the focus is seen
    assert browser.js(f"{slider}.labels[0].textContent") == "Strength"
    assert browser.js(SAID) == "Strength 1, draw 1 of 8"
    assert browser.js(SHOWN) == _stored(browser, 0, 4)
    live = "document.getElementById('said').getAttribute('aria-live')"
    assert browser.js(live) == "polite"
    seen = [tuple(browser.js(SHOWN))]
    for place, said in ((3, "0.75"), (2, "0.5"), (1, "0.25"), (0, "0"), (0, "0")):
        browser.press("ArrowLeft")
        assert browser.js(SAID) == f"Strength {said}, draw 1 of 8"
        assert browser.js(SHOWN) == _stored(browser, 0, place)
        seen.append(tuple(browser.js(SHOWN)))
    assert len(set(seen)) == 5
    captions = "[...document.querySelectorAll('.shots span')].map(e => e.textContent)"
    assert set(browser.js(captions)) == {"as it is"}
    browser.press("End")
    assert browser.js(SAID) == "Strength 1, draw 1 of 8"
    browser.press("Tab")
    assert browser.js("document.activeElement.id") == "another"
    for draw in (2, 3, 4, 5, 6, 7, 8, 1):
        browser.press("Enter")
        assert browser.js(SAID) == f"Strength 1, draw {draw} of 8"
        assert browser.js(SHOWN) == _stored(browser, draw - 1, 4)
        alt = browser.js("document.querySelector('.shots img').alt")
        caption = browser.js("document.querySelector('.shots span').textContent")
        assert alt == f"image 1: {caption}"
    done = "[...document.querySelectorAll('.shots img, .four img')].every(i => i.naturalWidth > 0)"
    browser.wait(lambda: browser.js(done))
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_strength_fits_and_stays_in_place(browser: Browser, page: Path, width: int) -> None:
    browser.window(width, 844)
    browser.open(page, "#examples")
    assert browser.js("document.documentElement.scrollWidth") <= width
    boxes = "[...document.querySelectorAll('.shots img, .four img, .controls > *')]"
    edge = f"Math.max(...{boxes}.map(e => e.getBoundingClientRect().right))"
    assert browser.js(edge) <= width
    assert browser.js(f"Math.min(...{boxes}.map(e => e.getBoundingClientRect().width))") > 40
    tall = "document.getElementById('another').getBoundingClientRect().height"
    assert browser.js(tall) >= 24  # enough for a finger
    top = "document.getElementById('classes').getBoundingClientRect().top"
    before = browser.js(top)
    for _ in range(3):
        browser.js("document.getElementById('another').click()")
        assert browser.js(top) == before  # what stands below does not jump
    browser.window(1000)


def test_without_scripts_there_is_the_first_draw(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert browser.js(SHOWN) == _stored(browser, 0, 4)
        assert browser.js("getComputedStyle(document.querySelector('.controls')).display") == "none"
        assert "With scripts switched on" in browser.js("document.body.innerText")
        assert browser.js(SAID) == "Strength 1, draw 1 of 8"
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_live_page_reloads_and_keeps_its_place(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "live.html"
    live = Options(live=True)

    def write(options: Options, now: str) -> None:
        # a second between two reloads
        write_file(
            path, make_page(_subject(), (), options, now=now).replace("1000 *", "200 *").encode()
        )

    write(live, "first")
    browser.open(path, "#search")
    head = "document.querySelector('[data-table=costs]').tHead.rows[0].cells[3]"
    is_sorted = f"{head}.ariaSort == 'descending'"
    browser.wait(lambda: browser.js(f"{is_sorted} || {head}.querySelector('button').click()"))
    weaker = "const s = document.getElementById('strength'); s.value = 0.25;"
    weaker += "s.dispatchEvent(new Event('input')); document.getElementById('another').click()"
    browser.wait(lambda: browser.js(f"{{{weaker}}} true"))
    chosen = browser.js(SAID)
    assert chosen.startswith("Strength 0.25, draw ")
    write(live, "second")
    footer = "(document.querySelector('footer') || {textContent: ''}).textContent"
    browser.wait(lambda: "second" in browser.js(footer))
    browser.wait(lambda: _open_panels(browser) == ["search"] and browser.js(is_sorted), 5.0)
    browser.wait(lambda: browser.js(SAID) == chosen)
    # the last page of a search stays
    write(Options(), "last")
    browser.wait(lambda: "last" in browser.js(footer))
    browser.wait(lambda: browser.js("document.readyState") == "complete")
    assert _open_panels(browser) == ["search"]
    path.write_text("gone")
    time.sleep(2.0)
    assert "last" in browser.js(footer)
    assert browser.complaints() == []
