"""The files of deepaa whose functions one command runs: python tests/helpers/paths.py COMMAND ...

    python tests/helpers/paths.py search --preset demo --epochs 1 --steps 2 --device cpu --out run

Prints each file with the number of its functions that ran, in the order of their first call. Files
of which functions ran only after the policy of a search was written are marked: they show it. What
runs while modules are imported is left out, and so are functions in worker processes.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import deepaa
from deepaa.cli import app

ROOT = str(Path(deepaa.__file__).parent)


def is_import(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported by what runs here."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(ROOT):
            return True
        frame = frame.f_back
    return False


def files_of(arguments: list[str]) -> tuple[Counter[str], set[str]]:
    """How many functions of each file the command runs, and the files that show its result."""
    seen: dict[CodeType, bool] = {}
    policy = Path(arguments[arguments.index("--out") + 1], "policy.json")

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(ROOT):
            return
        if not is_import(frame):
            seen[code] = arguments[0] == "search" and policy.exists()

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        code = app.run(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(code)
    files = {code: str(Path(code.co_filename).relative_to(ROOT)) for code in seen}
    before = {name for code, name in files.items() if not seen[code]}
    return Counter(files.values()), set(files.values()) - before


if __name__ == "__main__":
    found, showing = files_of(sys.argv[1:])
    for name, count in found.items():
        sys.stdout.write(f"{count:4} {name}{' (shows the policy)' * (name in showing)}\n")
    sys.stdout.write(f"{len(found) - len(showing):4} files, {len(showing)} more show the policy\n")
