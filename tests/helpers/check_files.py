"""Files that should not be committed: large ones, and YAML, TOML or JSON that cannot be read.

`python tests/helpers/check_files.py FILE...` prints a line for each, and ends with 1 if there is
one.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

LIMIT = 200_000
"""Bytes; larger files are named below."""
LARGE = {
    "src/deepaa/data/cifar10/cifar10_test.webp",
    "src/deepaa/data/cifar10/cifar10_train.webp",
}


def problem(path: Path, root: Path) -> str | None:
    """What is wrong with the file at `path` below `root`, in one line, or None."""
    file = root / path
    if (size := file.stat().st_size) > LIMIT and path.as_posix() not in LARGE:
        return f"{path}: {size:,} bytes, at most {LIMIT:,} are allowed"
    try:
        if path.suffix == ".toml":
            tomllib.loads(file.read_text(encoding="utf-8"))
        elif path.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif path.suffix in (".yml", ".yaml", ".cff"):
            yaml = importlib.import_module("yaml")  # comes with pre-commit and mkdocs
            list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except Exception as error:  # every reader has errors of its own
        return f"{path}: {' '.join(str(error).split())}"
    return None


def main(names: Sequence[str]) -> int:
    """Print what is wrong with the files, and give the exit code."""
    found = [line for name in names if (line := problem(Path(name), Path()))]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
