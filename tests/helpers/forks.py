"""Programs that run in forks of one process, so that torch is imported once for all of them.

A test calls `in_forks`. Each program has its own environment, folder, output and exit code, as if
it had been started by itself.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from processes import run_group

TORCH = ("torch", "deepaa.cli.app")
MODULES = (*TORCH, "torchvision.transforms.v2")


class Program(NamedTuple):
    """What is started: one of Python code, a file, or a module."""

    code: str | None = None
    file: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] | None = None
    folder: str = "."


class Done(NamedTuple):
    """How a program ended."""

    returncode: int
    """As a shell has it: 128 and the signal for one that was killed."""
    stdout: str
    stderr: str


def in_forks(
    programs: Sequence[Program],
    *,
    together: bool = False,
    modules: Sequence[str] = MODULES,
    timeout: float = 120,
) -> list[Done]:
    """Run the programs one after the other, or all at once.

    Args:
        modules: Imported before the forks. What they do when imported has to suit all programs.
    """
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as outputs:
        order = {"programs": programs, "together": together, "modules": modules, "to": outputs}
        driver = run_group(
            [sys.executable, __file__],
            text=json.dumps(order),
            environment=environment,
            timeout=timeout,
        )
        assert driver.returncode == 0, driver.stderr
        return [
            Done(code, *(Path(outputs, f"{i}.{name}").read_text() for name in ("out", "err")))
            for i, code in enumerate(json.loads(driver.stdout))
        ]


def as_ranks(program: Program) -> list[Program]:
    """The program twice, as torchrun starts two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    world = {**(program.environment or {}), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **address}
    return [
        program._replace(environment={**world, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]


# The process that forks


def _start(program: Program, output: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(program.environment or {})
    os.chdir(program.folder)
    os._exit(_exit_code(program))


def _exit_code(program: Program) -> int:
    """Run to the end; what is not flushed by then would be lost."""
    sys.argv = [program.file or program.module or "-c", *program.arguments]
    try:
        if program.code is not None:
            exec(compile(program.code, "<code>", "exec"), {"__name__": "__main__"})
        elif program.file is not None:
            runpy.run_path(program.file, run_name="__main__")
        else:
            runpy.run_module(str(program.module), run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _code(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def main() -> None:
    """Do what the order on standard input says, and print the exit codes."""
    order: dict[str, Any] = json.loads(sys.stdin.read())
    for name in order["modules"]:
        importlib.import_module(name)
    codes, running = [], []
    for number, fields in enumerate(order["programs"]):
        pid = _start(Program(*fields), Path(order["to"], str(number)))
        running.append(pid)
        if not order["together"]:
            codes.append(_code(running.pop()))
    codes += map(_code, running)
    sys.stdout.write(json.dumps(codes))


if __name__ == "__main__":
    main()
