"""Search methods by name: those of this package, and the user's own as MODULE:NAME."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepaa.models import is_own_code
from deepaa.ops import import_object
from deepaa.runs import apply_changes, from_plain, parse_changes, to_record
from deepaa.search.methods.searcher import Searcher
from deepaa.search.settings import PRESETS

OWN = "deepaa"
"""Gradient matching, the method of this package, which is no `Searcher`."""
OF_ALL = {"seed", "protect", "precision"}
"""Fields of `SearchConfig` that every method has a use for."""
METHODS: Mapping[str, str] = {
    "random": "random_search:RandomSearch",
    "randaugment": "randaugment:RandAugment",
    "fast-aa": "fast_aa:FastAutoAugment",
    "pba": "pba:PopulationBased",
    "dada": "dada:DifferentiableAugment",
}
"""Where each method is; imported when it is asked for."""


class Method(NamedTuple):
    """A search method with its settings."""

    name: str
    """As `--method` has it."""
    searcher: type[Searcher]
    config: Any

    @property
    def is_named(self) -> bool:
        """Whether its name is enough to find its class again."""
        own = ":" not in self.name
        return not own or (self.name in METHODS and find_searcher(self.name) is self.searcher)

    def to_json(self) -> dict[str, Any]:
        """As config.json keeps it."""
        return {"name": self.name, "config": to_record(self.config)}


def find_searcher(name: str | type[Searcher]) -> type[Searcher]:
    """The class of a method; code of one's own is imported."""
    found: object = name
    if isinstance(name, type):
        pass
    elif name in METHODS:
        module, _, attribute = METHODS[name].partition(":")
        found = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
    elif is_own_code(name):
        found = import_object(name, "--method")
    else:
        known = ", ".join((OWN, *METHODS))
        raise ValueError(f"no search method {name!r}; there are {known}, or MODULE:NAME of yours")
    if not (isinstance(found, type) and issubclass(found, Searcher)):
        raise ValueError(f"{name}: expected a class that is a deepaa Searcher, got {found!r:.80}")
    return found


def open_method(
    name: str | type[Searcher], preset: str | None = None, changes: Sequence[str] = ()
) -> tuple[Method, list[str]]:
    """A method with the settings of a preset, changed by NAME=VALUE each.

    Returns:
        The method, and the changes that are none of its own: those of the network's training.
    """
    searcher = find_searcher(name)
    wanted = preset or "fast"
    if wanted not in searcher.presets:
        raise ValueError(f"{name} has no preset {wanted!r}; it has {', '.join(searcher.presets)}")
    own = {field.name for field in dataclasses.fields(searcher.Config)}
    mine = [change for change in changes if change.partition("=")[0] in own]
    config = apply_changes(searcher.presets[wanted], parse_changes(mine, searcher.Config))
    known = name if isinstance(name, str) else searcher.method
    return Method(known, searcher, config), [change for change in changes if change not in mine]


def opened_method(
    name: str | type[Searcher] | None,
    preset: str | None,
    changes: Sequence[str],
    epochs: int | None = None,
) -> tuple[Method | None, Sequence[str]]:
    """`open_method`, where None and deepaa are gradient matching, to which all changes belong.

    Args:
        epochs: Of every training of the method.
    """
    if name is None or name == OWN:
        return None, changes
    known = find_searcher(name).presets
    if preset is not None and preset not in known and preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; {name} has {', '.join(known)}")
    more = [] if epochs is None else [f"epochs={epochs}"]
    return open_method(name, preset if preset in known else None, [*changes, *more])


def method_of(
    name: str | type[Searcher] | None,
    preset: str | None,
    settings: Mapping[str, Any],
    epochs: int | None,
) -> tuple[Method | None, dict[str, Any]]:
    """The method, and the fields that belong to all searches."""
    found, _ = opened_method(name, preset, (), epochs)
    if found is None:
        return None, dict(settings)
    names = {each.name for each in dataclasses.fields(found.config)}
    if wrong := sorted(settings.keys() - names - OF_ALL):
        raise TypeError(f"{wrong[0]} is no setting of {found.name}; there are {', '.join(names)}")
    own = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return found._replace(config=dataclasses.replace(found.config, **own)), others


def base_preset(preset: str | None) -> str | None:
    """The preset of the network and the space under another method: demo, imagenet or the usual."""
    return preset if preset in ("demo", "imagenet") else None


def stored_method(plain: Mapping[str, Any]) -> Method:
    """The method that `Method.to_json` gave."""
    searcher = find_searcher(plain["name"])
    return Method(plain["name"], searcher, from_plain(searcher.Config, plain["config"]))
