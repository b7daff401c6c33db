"""Operations of the user's own, found by name: what `--operations MODULE:NAME` means."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from deepaa.ops.space import Operation


def import_operations(specs: Sequence[str]) -> list[Operation]:
    """The operations at each `module:name`, where name is an `Operation` or several.

    Modules are found on the Python path or in the current folder. Importing one runs its code.
    """
    found: list[Operation] = []
    for spec in specs:
        value = import_object(spec, "operations")
        values = [value] if isinstance(value, Operation) else value
        if not isinstance(values, Iterable) or isinstance(values, str):
            raise ValueError(f"{spec} is {value!r}, expected an Operation or a list of them")
        for item in values:
            if not isinstance(item, Operation):
                raise ValueError(f"{spec} holds {item!r}, expected an Operation")
            found.append(item)
    return found


def import_object(spec: str, option: str) -> object:
    """The object at `module:name`; the module is found on the Python path or in this folder.

    Importing it runs its code. Whatever goes wrong is a ValueError.

    Args:
        option: What errors call the place where the user wrote `spec`.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError(f"{option} {spec!r} should be MODULE:NAME, like my_module:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does
        raise ValueError(f"{option} {spec}: {type(error).__name__}: {error}") from error
