"""A lock that a forked worker can take, even if a thread held it at the time of the fork."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ForkSafeLock:
    """`threading.Lock` that is free again in a child process."""

    def __init__(self) -> None:
        """Make the lock, and a new one in every child."""
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it."""
        self._lock.release()
