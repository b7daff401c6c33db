"""Policies as files and names: `load_policy` and `save_policy`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from enum import Enum
from importlib.resources import files
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from deepaa.baselines import SpaceName
from deepaa.named_policies import GENERATED, make_policy, named
from deepaa.pba import SEARCH_EPOCHS, is_log, read_log
from deepaa.policy import Policy
from deepaa.policy_import import is_npz, read_npz
from deepaa.policy_json import FORMAT, dumps, loads
from deepaa.run_files import write_file
from deepaa.space import Operation
from deepaa.stages import Chains
from deepaa.strict_json import PolicyFileError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = [
    "GENERATED",
    "Kind",
    "PolicyFileError",
    "dumps",
    "load_policy",
    "loads",
    "policy_names",
    "read_policy",
    "save_policy",
]

MAX_BYTES = 64 << 20
"""Larger files are refused before they are read."""


_SHIPPED: Traversable = files("deepaa").joinpath("policies")


# Names and files


def policy_names() -> tuple[str, ...]:
    """The names `load_policy` knows: the policies shipped with the package, then simple ones."""
    return (*sorted(_shipped()), *GENERATED)


def _shipped() -> dict[str, Traversable]:
    return {
        entry.name.removesuffix(".json"): entry
        for entry in _SHIPPED.iterdir()
        if entry.name.endswith(".json")
    }


class Kind(Enum):
    """Where a policy came from, which says how its authors run it."""

    SHIPPED = "shipped with the package"
    NAMED = "made by name"
    FILE = "this package's JSON"
    ARCHIVE = "an .npz of the authors of Deep AutoAugment"
    SUB_POLICIES = "a list of sub-policies"
    SCHEDULE = "a schedule of PBA"


class Found(NamedTuple):
    """A policy and the kind of its source."""

    policy: Policy
    kind: Kind


SIMPLE, PBA = "deepaa-simple", "pba"
FORMS = {
    f"{SIMPLE}:POLICY": "the first layer of another policy, a name or a file",
    f"{PBA}:FILE": "a schedule of PBA; FILE,over=160 for 160 epochs",
}
"""Names that need something behind the colon, as errors and help spell them, and what they are."""


def load_policy(source: str | Path, operations: Sequence[Operation] = ()) -> Policy:
    """The policy of a name (`policy_names()`) or in a file.

    A name may carry parameters: `deepta:4`, `randaugment:n=3,m=5`. A file is this package's JSON,
    the authors' `.npz`, a JSON list of sub-policies, or a schedule of PBA. `deepaa-simple:POLICY`
    is the first layer of another policy, `pba:FILE,over=160` a schedule of a search of 160 epochs.
    A text that is a name means the name, whatever files lie around; `Path("uniform")` means the
    file.

    Args:
        operations: Your own operations that the file names; the file gives their range and options.
    """
    return read_policy(source, operations).policy


def read_policy(
    source: str | Path, operations: Sequence[Operation] = (), space: SpaceName | None = None
) -> Found:
    """`load_policy`, and what kind of source it was.

    Args:
        space: Taken by names that depend on it and do not give it.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f"load_policy takes a name or a path, got {type(source).__name__}")
    if isinstance(source, str):
        if source in (shipped := _shipped()):
            return Found(
                loads(shipped[source].read_text("utf-8"), source, operations), Kind.SHIPPED
            )
        if named(source):
            return Found(make_policy(source, space), Kind.NAMED)
        if (inner := behind(SIMPLE, source)) is not None:
            found = read_policy(inner, operations, space)
            return found._replace(policy=found.policy.first_layers(1))
        if (inner := behind(PBA, source)) is not None:
            path, over = schedule_source(inner)
            text = _text(_read(Path(path)), path)
            if not is_log(text):
                raise PolicyFileError(
                    f"{path}: not a log of PBA; other files need no {PBA}: before"
                )
            return Found(read_log(text, path, over), Kind.SCHEDULE)
    return _read_file(source, operations)


def _read_file(source: str | Path, operations: Sequence[Operation]) -> Found:
    data = _read(source)
    if is_npz(data) or str(source).endswith(".npz"):
        return Found(read_npz(data, str(source)), Kind.ARCHIVE)
    text = _text(data, source)
    if is_log(text):
        return Found(read_log(text, str(source)), Kind.SCHEDULE)
    policy = loads(text, str(source), operations)
    listed = only_chains(policy) and _is_list(json.loads(text))
    return Found(policy, Kind.SUB_POLICIES if listed else Kind.FILE)


def _is_list(document: object) -> bool:
    """Whether a document is a list of sub-policies, not this package's format."""
    return not (isinstance(document, dict) and document.get("format") == FORMAT)


def only_chains(policy: Policy) -> bool:
    """Whether the policy is nothing but sub-policies."""
    stages = [stage for phase in policy.phases for stage in phase.stages]
    return bool(stages) and all(isinstance(stage, Chains) for stage in stages)


def behind(name: str, source: str | Path) -> str | None:
    """What follows `name` and a colon in `source`, or None if it is another name or a path."""
    if not isinstance(source, str) or source.partition(":")[0] != name:
        return None
    inner = source.partition(":")[2]
    if not inner:
        form = next(form for form in FORMS if form.startswith(f"{name}:"))
        raise PolicyFileError(f"{source}: needs a policy behind it: {form}")
    return inner


def schedule_source(inner: str) -> tuple[str, int]:
    """The file and the epochs of the search in `FILE,over=160`."""
    path, comma, over = inner.rpartition(",over=")
    if not comma:
        return inner, SEARCH_EPOCHS
    if not (over.isascii() and over.isdecimal() and 0 < len(over) < 8):
        raise PolicyFileError(f"{PBA}:{inner}: over should be a number of epochs, got {over!r}")
    return path, int(over)


def _text(data: bytes, source: str | Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{source}: byte {error.start}: not UTF-8 text") from None


def _read(source: str | Path) -> bytes:
    """The bytes of a regular file that is not too large."""
    path = Path(source)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise _not_found(source) from None
    except OSError as error:
        raise PolicyFileError(f"{source}: cannot be read: {error.strerror}") from error
    if S_ISDIR(status.st_mode):
        if (inside := path / "policy.json").is_file():  # the folder of a run
            return _read(inside)
        raise PolicyFileError(f"{source}: a folder, expected a policy file")
    if not S_ISREG(status.st_mode):
        raise PolicyFileError(f"{source}: not a regular file")
    if status.st_size > MAX_BYTES:
        raise PolicyFileError(
            f"{source}: {status.st_size:,} bytes; a policy file has at most {MAX_BYTES:,}"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyFileError(f"{source}: cannot be read: {error.strerror}") from error


def _not_found(source: str | Path) -> PolicyFileError:
    if isinstance(source, Path):
        return PolicyFileError(f"{source}: no such file")
    names = (*policy_names(), *FORMS)
    close = difflib.get_close_matches(source.lower(), names)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return PolicyFileError(
        f"{source}: no such file, and no policy has this name; {hint}names: {', '.join(names)}"
    )


def save_policy(policy: Policy, path: str | Path) -> None:
    """Write `policy` to `path`: the whole new file appears there, or the old one stays."""
    text = dumps(policy)
    target = Path(path).resolve()  # a link stays a link, and its target is replaced
    if not target.parent.is_dir():
        raise PolicyFileError(f"{path}: the folder {target.parent} does not exist")
    if target.suffix == ".npz":
        raise PolicyFileError(f"{path}: policies are written as JSON; give it the ending .json")
    if target.is_dir():
        raise PolicyFileError(f"{path}: a folder, expected the path of a file")
    write_file(target, text.encode())
