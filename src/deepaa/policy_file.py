"""Policies as files and names: `load_policy` and `save_policy`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from deepaa.policy import Policy
from deepaa.policy_import import is_npz, read_npz
from deepaa.policy_json import dumps, loads
from deepaa.run_files import write_file
from deepaa.space import CIFAR, IMAGENET, Operation
from deepaa.strict_json import PolicyFileError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["PolicyFileError", "dumps", "load_policy", "loads", "policy_names", "save_policy"]

MAX_BYTES = 64 << 20
"""Larger files are refused before they are read."""


class Generated(NamedTuple):
    """A policy that is simple enough to be made by a line of code."""

    description: str
    make: Callable[[], Policy]


_CROP, _FLIP, _CUTOUT = Operation("crop"), Operation("flip"), Operation("cutout")
GENERATED: Mapping[str, Generated] = {
    "identity": Generated("changes nothing", Policy.identity),
    "uniform": Generated(
        "2 layers, each CIFAR transformation equally likely", lambda: Policy.uniform(CIFAR, 2)
    ),
    "deepta": Generated(
        "6 CIFAR layers: an operation uniformly, then one of its levels",
        lambda: Policy.trivial(CIFAR, 6),
    ),
    "deepta-imagenet": Generated(
        "5 ImageNet layers: an operation uniformly, then a level",
        lambda: Policy.trivial(IMAGENET, 5),
    ),
    "crop-flip": Generated(
        "pad-4 crop and flip, the usual default for CIFAR", lambda: Policy.always(_CROP, _FLIP)
    ),
    "crop-flip-cutout": Generated(
        "pad-4 crop, flip and 16-pixel cutout", lambda: Policy.always(_CROP, _FLIP, _CUTOUT)
    ),
}
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


def load_policy(source: str | Path, operations: Sequence[Operation] = ()) -> Policy:
    """The policy of a name (`policy_names()`) or in a file.

    A file is this package's JSON, the authors' `.npz`, or a JSON list of sub-policies. A text that
    is a name means the name, whatever files lie around; `Path("uniform")` means the file.

    Args:
        operations: Your own operations that the file names; the file gives their range and options.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f"load_policy takes a name or a path, got {type(source).__name__}")
    if isinstance(source, str):
        if source in (shipped := _shipped()):
            return loads(shipped[source].read_text("utf-8"), source, operations)
        if source in GENERATED:
            return GENERATED[source].make()
    data = _read(source)
    if is_npz(data) or str(source).endswith(".npz"):
        return read_npz(data, str(source))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{source}: byte {error.start}: not UTF-8 text") from None
    return loads(text, str(source), operations)


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
    names = policy_names()
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
