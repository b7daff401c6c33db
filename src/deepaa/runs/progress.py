"""The progress display of every long job: one line that is rewritten, or plain lines now and then.

It shows texts and knows nothing of the job. Only the main process of several shows anything.
"""

from __future__ import annotations

import shutil
import sys
import time

from deepaa import distributed

PLAIN_SECONDS = 10.0
"""Seconds between two lines where the line cannot be rewritten."""
CLEAR_LINE = "\r\x1b[2K"


class ProgressLine:
    """The newest state of a job on stderr.

    A terminal or a notebook shows one line that changes; a log file gets a line every ten seconds.
    """

    def __init__(self) -> None:
        """Nothing is shown before the first `update`."""
        self._is_main = distributed.is_main()
        self._is_terminal, self._is_notebook = sys.stderr.isatty(), in_notebook()
        self._last = float("-inf")
        self._width = 0  # of the text that a notebook shows

    def update(self, text: str, *, always: bool = False) -> None:
        """Replace the line by `text`.

        Args:
            always: Print it also where lines are plain and the last one is not yet old.
        """
        if not self._is_main:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"{CLEAR_LINE}{text[:width]}")
        elif self._is_notebook:  # which knows the carriage return but not how to clear a line
            self._write(f"\r{text:{self._width}}")
            self._width = len(text)
        elif always or time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            self._write(f"{text}\n")

    def message(self, text: str) -> None:
        """Print a line that stays above the one that is rewritten."""
        self.clear()
        notify(text)

    def clear(self) -> None:
        """Remove the line that is rewritten."""
        if self._is_main and self._is_terminal:
            self._write(CLEAR_LINE)
        elif self._is_main and self._width:
            self._write(f"\r{'':{self._width}}\r")
            self._width = 0

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def notify(text: str) -> None:
    """Print one line on stderr, from the main process alone."""
    if distributed.is_main():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, or another session of IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def is_interactive() -> bool:
    """Whether somebody looks at stderr, in a terminal or in a notebook."""
    return sys.stderr.isatty() or in_notebook()


def duration(seconds: float) -> str:
    """A time in the unit that people would use: 42 s, 12 min, 3.5 h or 9 days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} days"
