"""The progress display in a terminal, in a notebook, and in a log file."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from deepaa.runs.progress import ProgressLine, duration, in_notebook, is_interactive


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    line = ProgressLine()
    line.update("step 1 of several that are long")
    line.update("step 2")
    line.message("a layer is found")
    line.update("step 3", always=True)
    line.clear()
    return stream.getvalue()


def test_a_terminal_gets_one_line_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert shown(monkeypatch, Terminal()).split("\r\x1b[2K") == [
        "",
        "step 1 of several t",
        "step 2",
        "a layer is found\n",
        "step 3",
        "",
    ]
    assert is_interactive()


def test_a_log_file_gets_few_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    text = shown(monkeypatch, io.StringIO())
    assert text == "step 1 of several that are long\na layer is found\nstep 3\n"
    assert not is_interactive()


def test_a_notebook_gets_one_line_without_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(get_ipython=object)
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    text = shown(monkeypatch, io.StringIO())
    assert "\x1b" not in text
    rest = " " * len(" of several that are long")
    assert text.startswith(f"\rstep 1 of several that are long\rstep 2{rest}\r")
    assert in_notebook()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (7200, "2.0 h"),
        (864_000, "10 days"),
        (359_999, "100.0 h"),
        (360_000, "4 days"),
        (9_000_000, "104 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
