"""What the folder of a run may not decide by itself, and what it may hold wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepaa.runs.json_text import RunError
from deepaa.runs.settings import short

if TYPE_CHECKING:
    from deepaa.runs.run import Run


def check_named(folder: Path, option: str, kept: Sequence[str], named: Sequence[str]) -> None:
    """Refuse code that a run folder names, unless the person who resumes it names it too.

    A folder may come from anybody, and importing a module runs it.

    Args:
        option: With which a person names it, such as --operations.
        kept: The MODULE:NAME that the folder has.
        named: Those that were given now.
    """
    for spec in kept:
        module, colon, name = spec.partition(":")
        # somebody may copy the line into a shell
        if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
            raise RunError(f"{folder}: expected MODULE:NAME for {option}, got {short(spec)}")
    if sorted(kept) == sorted(named):
        return
    if not kept:
        raise RunError(f"{folder}: this run was begun without {option}; leave it out")
    again = " ".join(f"{option} {spec}" for spec in kept)
    verb = "uses" if not named else f"does not use {short(', '.join(named))} but"
    raise RunError(
        f"{folder}: this run {verb} {', '.join(kept)}: name it again with {again} if you trust it, "
        "for its code will run"
    )


def check_named_model(folder: Path, kept: str | None, named: str | None, *, is_code: bool) -> None:
    """`check_named` for the network of a run, which is code or a name of this package."""
    if is_code and kept is not None:
        check_named(folder, "--model", [kept], [] if named is None else [named])
    elif named not in (None, kept):
        has = "that of its preset" if kept is None else short(kept)
        raise RunError(f"{folder}: the network of this run is {has}, got --model {short(named)}")


@contextmanager
def checks_state(run: Run | Path | None) -> Iterator[None]:
    """Inside it, a state that does not fit the settings of its run becomes a RunError."""
    place = run if isinstance(run, Path) else "the run" if run is None else run.folder
    try:
        yield
    except (torch.OutOfMemoryError, RunError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        what = f"no {reason}" if isinstance(error, KeyError) else reason
        raise RunError(f"{place}: its state does not fit its settings: {what}") from error
