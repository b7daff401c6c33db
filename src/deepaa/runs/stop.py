"""SIGTERM and Ctrl-C as a question the work asks between two steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopAskedError(Exception):
    """Somebody asked to stop: leave what is half done."""


class StopRequest:
    """While it is entered, the first SIGTERM or SIGINT only sets `requested`.

    The work looks at `requested` between steps, saves and leaves with `exit_code`. A second signal
    ends the process at once with the same code. Handlers are set in the main thread alone, Python
    allows no other; elsewhere `requested` stays false. A signal that was ignored before (SIGINT
    under nohup) stays ignored.
    """

    def __init__(self, repeat_after: float = 1.0) -> None:
        """Nothing is set before it is entered.

        Args:
            repeat_after: Signals up to this many seconds after the first count as the same one:
                Ctrl-C in a terminal reaches a process of torchrun twice, once through torchrun.
        """
        self.signal: signal.Signals | None = None
        self._repeat_after = repeat_after
        self._first = 0.0
        self._pid = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the process was asked to stop."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The status to leave with: 143 after SIGTERM, 130 after SIGINT, 0 without a request."""
        return 0 if self.signal is None else exit_code(self.signal)

    def __enter__(self) -> Self:
        """Set the handlers."""
        if self._before:
            raise RuntimeError("this StopRequest is entered already")
        if threading.current_thread() is threading.main_thread():
            self._pid = os.getpid()
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            # None is a handler that C code had set: Python cannot put that back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._handle_in_child(number)
        elif self.signal is None:
            self._first = time.monotonic()
            self.signal = signal.Signals(number)
        elif time.monotonic() - self._first >= self._repeat_after:
            os._exit(exit_code(number))  # no clean-up: it may be what hangs

    def _handle_in_child(self, number: int) -> None:
        """A forked worker leaves Ctrl-C to its parent, which still needs it, but can be ended."""
        if number == signal.SIGTERM:
            os._exit(exit_code(number))


def exit_code(number: int) -> int:
    """The status of a process that a signal ended, as shells count: 143 for SIGTERM."""
    return 128 + number
