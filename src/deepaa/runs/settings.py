"""Settings: dataclasses as plain JSON and back, and changes of them given as NAME=VALUE.

The annotations of a dataclass say what each setting takes: int, float, bool, str, None, a
`Literal`, a tuple, a union of these, or another dataclass, whose settings are then named with a
prefix, such as train.lr.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from deepaa.runs.json_text import RunError

D = TypeVar("D")
T = TypeVar("T")

ADDED = {"added": True}
"""Metadata of a setting that run folders of an older version lack, and that means its default."""
_NEEDED = object()
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_WORDS |= {dict: "an object"}


def to_plain(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass as JSON gives them back, so with lists in place of tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), allow_nan=False))
    return plain


def to_record(settings: Any) -> dict[str, Any]:
    """`to_plain` without settings that were `ADDED` and have their default.

    A run folder from before they were there then holds a run of the same settings.
    """
    plain = to_plain(settings)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.metadata == ADDED and value == field.default:
            del plain[field.name]
        elif dataclasses.is_dataclass(value):
            plain[field.name] = to_record(value)
    return plain


def from_plain(
    kind: type[D], plain: Mapping[str, Any], *, defaults: bool = False, prefix: str = ""
) -> D:
    """The dataclass `kind` with the settings that `to_plain`, `to_record` or a file gave.

    Args:
        defaults: Whether settings that are not given take their defaults; refused otherwise.
        prefix: Put before names in errors.
    """
    if not isinstance(plain, Mapping):
        raise ValueError(f"{prefix.rstrip('.')} should be an object, got {short(plain)}")
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    if unknown := [name for name in plain if name not in names]:
        raise _unknown(prefix + unknown[0], [prefix + name for name in names])
    older = [field.name for field in fields if field.metadata != ADDED]
    missing = [prefix + name for name in older if name not in plain]
    if missing and not defaults:
        raise ValueError(f"no value for {', '.join(missing)}")
    values = {}
    for name, value in plain.items():
        if dataclasses.is_dataclass(hints[name]):
            inner: Any = hints[name]
            values[name] = from_plain(inner, value, defaults=defaults, prefix=f"{prefix}{name}.")
        else:
            values[name] = checked_value(hints[name], value, prefix + name)
    return kind(**values)


def stored(
    plain: Mapping[str, Any], name: str, hint: Any, place: object, default: Any = _NEEDED
) -> Any:
    """The value at a name such as source.weights in JSON that the file `place` gave.

    Raises:
        RunError: It is missing without a default, or not what the annotation `hint` says.
    """
    found: Any = plain
    for i, part in enumerate(parts := name.split(".")):
        if not isinstance(found, Mapping):
            outer = ".".join(parts[:i])
            raise RunError(f"{place}: damaged: {outer} should be an object, got {short(found)}")
        if part not in found and default is not _NEEDED:
            return default
        if part not in found:
            raise RunError(f"{place}: damaged: no value for {name}")
        found = found[part]
    try:
        return checked_value(hint, found, name)
    except ValueError as error:
        raise RunError(f"{place}: damaged: {error}") from None


def record_of(kind: type[T], plain: Mapping[str, Any], place: object) -> T:
    """The NamedTuple `kind` with the fields of a JSON object that the file `place` gave.

    Raises:
        RunError: Fields are missing, unknown, or not what their annotations say.
    """
    hints: dict[str, Any] = get_type_hints(kind)
    optional: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
    given = [name for name in hints if name in plain or name not in optional]
    if unknown := [name for name in plain if name not in hints]:
        raise RunError(f"{place}: damaged: {_unknown(unknown[0], list(hints))}")
    return kind(**{name: stored(plain, name, hints[name], place) for name in given})


def short(value: object) -> str:
    """The value as Python spells it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


def parse_changes(
    changes: Sequence[str], *kinds: type, without: Sequence[str] = ()
) -> dict[str, Any]:
    """The values, by name, of changes such as heldout=64, train.lr=0.05 or milestones=60,120.

    A value is written as in JSON; words need no quotation marks, lists no brackets, and auto is
    null where words are not expected.

    Args:
        changes: NAME=VALUE each; the last one of a name counts.
        kinds: Dataclasses whose settings may be changed.
        without: Names that may not.
    """
    hints = {name: hint for kind in kinds for name, hint in _flat(kind) if name not in without}
    values = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"a setting is given as NAME=VALUE, got {change!r}")
        if name not in hints:
            raise _unknown(name, list(hints))
        values[name] = checked_value(hints[name], _read(text, hints[name]), name)
    return values


def apply_changes(settings: D, changes: Mapping[str, Any]) -> D:
    """The dataclass with those values of `parse_changes` that are settings of it.

    They are set together, so that a check of one against another sees both.
    """
    new: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        start = f"{field.name}."
        inner = {k.removeprefix(start): v for k, v in changes.items() if k.startswith(start)}
        if inner:
            new[field.name] = apply_changes(getattr(settings, field.name), inner)
        elif field.name in changes:
            new[field.name] = changes[field.name]
    return dataclasses.replace(settings, **new)  # type: ignore[type-var]


def changed_settings(config: Any) -> str:
    """The settings that are not the defaults, as NAME=VALUE; the seed stands elsewhere."""
    usual = {field.name: _default(field) for field in dataclasses.fields(config)}
    values = dataclasses.asdict(config).items()
    changed = {k: value for k, value in values if k != "seed" and value != usual[k]}
    texts = (f"{name}={'auto' if value is None else value}" for name, value in changed.items())
    return ", ".join(texts) or "the defaults"


def changed_values(config: Any, without: Sequence[str] = ()) -> tuple[str, ...]:
    """What `parse_changes` needs to make these settings of the defaults: NAME=VALUE each."""
    usual = {field.name: _default(field) for field in dataclasses.fields(config)}
    changed = [n for n in usual if n not in without and getattr(config, n) != usual[n]]
    plain = to_plain(config)
    return tuple(f"{name}={json.dumps(plain[name])}" for name in changed)


def _default(field: dataclasses.Field[Any]) -> Any:
    """What a setting is if nobody sets it; MISSING, which equals nothing, where it must be set."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def checked_value(hint: Any, value: Any, name: str) -> Any:
    """The value as the annotation has it: a float for 1, a tuple for a list.

    Raises:
        ValueError: It does not fit; the message says what setting `name` takes.
    """
    for choice in _choices(hint):
        if get_origin(choice) is tuple and isinstance(value, list | tuple):
            kinds = get_args(choice)
            if kinds[-1] is ...:
                kinds = kinds[:1] * len(value)
            if len(kinds) == len(value):
                pairs = zip(kinds, value, strict=True)
                return tuple(checked_value(each, item, name) for each, item in pairs)
        elif get_origin(choice) is list and isinstance(value, list):
            return [checked_value(get_args(choice)[0], item, name) for item in value]
        elif get_origin(choice) is Literal:
            if value in get_args(choice):
                return value
        elif get_origin(choice) is dict or choice is dict:
            if isinstance(value, Mapping):
                return value
        elif choice is float and type(value) is int and abs(value) < 2**63:
            return float(value)
        elif isinstance(choice, type) and type(value) is choice:  # true is no whole number
            return value
    raise ValueError(f"{name} should be {_in_words(hint)}, got {short(value)}")


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _flat(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting with its annotation, those of an inner dataclass in its place."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _flat(hint, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hint


def _read(text: str, hint: Any) -> Any:
    """The value that a text stands for, where the annotation says what a bare word means."""
    choices = _choices(hint)
    if text == "auto" and NoneType in choices and str not in choices:
        return None
    is_list = any(get_origin(choice) is tuple for choice in choices)
    for form in (text, f"[{text}]") if is_list and text else (text,):
        try:
            value = json.loads(form)
        except ValueError:
            continue
        return [value] if is_list and isinstance(value, int | float) else value
    return text  # a word, such as bfloat16


def _in_words(hint: Any) -> str:
    words = []
    for choice in _choices(hint):
        if get_origin(choice) is Literal:
            words += [str(each) for each in get_args(choice)]
        elif get_origin(choice) is tuple:
            kinds = get_args(choice)
            count = "a list" if kinds[-1] is ... else f"a list of {len(kinds)}"
            words.append(f"{count}, each {_in_words(kinds[0])}")
        elif get_origin(choice) in (list, dict):
            words.append("a list" if get_origin(choice) is list else "an object")
        else:
            words.append("null" if choice is NoneType else _WORDS.get(choice, choice.__name__))
    return " or ".join(words)


def _unknown(name: str, known: Sequence[str]) -> ValueError:
    return ValueError(f"no setting {short(name)}; there are {', '.join(known)}")
