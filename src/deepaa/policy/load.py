"""Policies read from names and files, and written to files: `load_policy` and `save_policy`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from deepaa.ops import Operation
from deepaa.policy.baselines import SpaceName
from deepaa.policy.foreign import is_npz, is_sub_policy_list, read_npz, read_sub_policies
from deepaa.policy.format import FORMAT, dumps, read_document
from deepaa.policy.names import (
    FORMS,
    PBA,
    SIMPLE,
    PolicyRef,
    make_policy,
    parse_policy_ref,
    policy_names,
    shipped_policies,
)
from deepaa.policy.pba import SEARCH_EPOCHS, is_log, read_log
from deepaa.policy.policy import Policy
from deepaa.policy.strict_json import PolicyFileError, parse
from deepaa.runs import write_file

MAX_BYTES = 64 << 20
"""Larger files are refused before they are read."""


class Origin(Enum):
    """Where a policy came from, which says how its authors run it."""

    NAME = "made by name"
    FILE = "this package's JSON, shipped or not"
    ARCHIVE = "an .npz of the authors of Deep AutoAugment"
    SUB_POLICIES = "a list of sub-policies"
    SCHEDULE = "a schedule of PBA"


class Loaded(NamedTuple):
    """A policy and where it came from."""

    policy: Policy
    origin: Origin


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
    if not isinstance(source, str | Path):
        raise TypeError(f"load_policy takes a name or a path, got {type(source).__name__}")
    ref = parse_policy_ref(source)
    policy = read_policy(ref, operations).policy
    return policy.first_layers(1) if ref.first_layer else policy


def read_policy(
    ref: PolicyRef, operations: Sequence[Operation] = (), space: SpaceName | None = None
) -> Loaded:
    """The whole policy that a reference names, and where it came from.

    Args:
        space: Taken by names that depend on it and do not give it.
    """
    if ref.path is None:
        if (entry := shipped_policies().get(str(ref.name))) is not None:
            return _from_json(entry.read_text("utf-8"), str(ref.name), operations)
        return Loaded(make_policy(ref, space), Origin.NAME)
    data, source = _read(ref.path, ref), str(ref.path)
    if ref.name != PBA and (is_npz(data) or source.endswith(".npz")):
        return Loaded(read_npz(data, source), Origin.ARCHIVE)
    text = _text(data, source)
    if is_log(text):
        over = int(ref.arguments.get("over", SEARCH_EPOCHS))
        return Loaded(read_log(text, source, over), Origin.SCHEDULE)
    if ref.name == PBA:
        raise PolicyFileError(f"{source}: not a log of PBA; other files need no {PBA}: before")
    return _from_json(text, source, operations)


def loads(text: str, source: str = "<string>", operations: Sequence[Operation] = ()) -> Policy:
    """The policy in JSON text: this package's format or a list of sub-policies.

    Args:
        source: What errors call the text.
        operations: Your own operations that the text names.
    """
    return _from_json(text, source, operations).policy


def _from_json(text: str, source: str, operations: Sequence[Operation]) -> Loaded:
    document = parse(text, source)
    if is_sub_policy_list(document, FORMAT):
        return Loaded(read_sub_policies(document), Origin.SUB_POLICIES)
    return Loaded(read_document(document, operations), Origin.FILE)


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{source}: byte {error.start}: not UTF-8 text") from None


def _read(path: Path, ref: PolicyRef) -> bytes:
    """The bytes of a regular file that is not too large, or of the policy in a run's folder."""
    source = str(path)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise _not_found(path, ref) from None
    except OSError as error:
        raise PolicyFileError(f"{source}: cannot be read: {error.strerror}") from error
    if S_ISDIR(status.st_mode):
        if (inside := path / "policy.json").is_file():  # the folder of a run
            return _read(inside, ref)
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


def _not_found(path: Path, ref: PolicyRef) -> PolicyFileError:
    if not ref.may_be_misspelt:
        return PolicyFileError(f"{path}: no such file")
    written = ref.text.removeprefix(f"{SIMPLE}:")
    names = (*policy_names(), *FORMS)
    close = difflib.get_close_matches(written.lower(), names)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return PolicyFileError(
        f"{written}: no such file, and no policy has this name; {hint}names: {', '.join(names)}"
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
