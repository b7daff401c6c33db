"""The share of seeded mutants of a package that its quick tests notice.

`python tests/helpers/mutants.py ops --count 10 --seed 0` changes one operator or constant
of `src/deepaa/ops` at a time, in a copy of the source, and runs `tests/ops` without the slow tier.
A mutant is killed when a test fails or the tests take far too long.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SWAPS: dict[type, str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.And: "or",
    ast.Or: "and",
}
KERNELS = ("kernels_triton.py", "draw_triton.py", "fused.py", "fused_draw.py")
"""Their code runs on CUDA alone."""


class Mutant(NamedTuple):
    """One change of one line."""

    path: str
    line: int
    before: str
    after: str


def candidates(path: Path) -> Iterator[Mutant]:
    """Every place of a file where one operator or constant can be another."""
    text = path.read_text()
    lines = text.split("\n")
    tree = ast.parse(text)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            part = getattr(node, field, None)
            if isinstance(part, ast.AST):
                skipped |= {id(inner) for inner in ast.walk(part)}
        if isinstance(node, ast.Raise):  # words of an error
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            pair = node.left, node.comparators[0], SWAPS[type(node.ops[0])]
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            pair = node.left, node.right, SWAPS[type(node.op)]
        elif isinstance(node, ast.BoolOp):
            pair = node.values[0], node.values[1], SWAPS[type(node.op)]
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            line = lines[node.lineno - 1].encode()
            if node.end_lineno == node.lineno:
                changed = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
                yield Mutant(str(path), node.lineno, line.decode(), changed.decode())
            continue
        else:
            continue
        left, right, new = pair
        if left.end_lineno == right.lineno and left.end_lineno is not None:
            line = lines[left.end_lineno - 1].encode()
            between = line[left.end_col_offset : right.col_offset].decode()
            words = between.split()
            signs = [word for word in words if word not in "()"]
            if len(signs) == 1:
                middle = between.replace(signs[0], new)
                end = left.end_col_offset or 0
                changed = line[:end] + middle.encode() + line[right.col_offset :]
                yield Mutant(str(path), left.end_lineno, line.decode(), changed.decode())


def is_killed(mutant: Mutant, source: Path, tests: list[str], cwd: Path, seconds: float) -> str:
    """`killed`, `survived`, or `timeout`, which counts as killed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / Path(mutant.path).relative_to(source)
        lines = path.read_text().split("\n")
        lines[mutant.line - 1] = mutant.after
        path.write_text("\n".join(lines))
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=cwd, env=environment, capture_output=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    return "killed" if done.returncode else "survived"


def main() -> None:
    """Print one JSON line per mutant, then the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--files", nargs="*", help="instead of the package's")
    parser.add_argument("--tests", nargs="*", help="instead of tests/PACKAGE")
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    source = given.root / "src"
    package = source / "deepaa" / given.package
    files = [source / "deepaa" / name for name in given.files or ()]
    files = files or sorted(package.rglob("*.py"))
    every = [mutant for path in files if path.name not in KERNELS for mutant in candidates(path)]
    chosen = random.Random(given.seed).sample(every, given.count)
    tests = given.tests or [f"tests/{given.package}"]
    found = []
    for mutant in chosen:
        found.append(is_killed(mutant, source, tests, given.root, given.seconds))
        shown = mutant._replace(path=Path(mutant.path).relative_to(source).as_posix())
        print(json.dumps({**shown._asdict(), "outcome": found[-1]}), flush=True)  # noqa: T201
    killed = sum(outcome != "survived" for outcome in found)
    print(json.dumps({"package": given.package, "killed": killed, "of": len(found)}))  # noqa: T201


if __name__ == "__main__":
    main()
