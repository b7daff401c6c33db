"""What a run folder says of its search, without what is no record of one.

A folder may come from anybody: a page shows what fits, and says what it leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from deepaa.runs import RunError, checked_value, short, stored
from deepaa.search import LayerRecord, ProtectionRecord, StepRecord
from deepaa.search.methods import TrialRecord
from deepaa.train import EpochRecord

KINDS: Mapping[str, Any] = {
    "epoch": EpochRecord,
    "step": StepRecord,
    "layer": LayerRecord,
    "trial": TrialRecord,
    "protection": ProtectionRecord,
}
"""The records that pages and figures read, by their kind."""
MOST = {"layer": 1_000, "step": 1_000_000, "epoch": 1_000_000, "index": 10_000_000}
"""How far a page counts."""
_START: Mapping[str, Any] = {
    "started": str,
    "command": list[str],
    "versions": dict[str, Any],
    "system": str,
    "processor": str | None,
    "devices": list[str],
    "code": dict[str, Any] | None,
}
CHECKED: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "search": (
        ("search", dict),
        ("search.steps", int),
        ("search.layers", int | None),
        ("search.seed", int),
        ("source", dict),
        ("source.from_python", tuple[str, ...]),
        ("source.data", dict | None),
        ("source.operations", tuple[str, ...]),
    ),
    "contest": (("source", dict),),
}
"""What pages show of the settings of a run, by its kind."""
_log = logging.getLogger(__name__)


def checked_records(records: Iterable[Mapping[str, Any]], place: Path) -> tuple[Any, ...]:
    """The records whose fields have their types; others are left out with a warning."""
    kept, wrong = [], []
    for record in records:
        kind = record.get("kind")
        try:
            if isinstance(kind, str) and kind in KINDS:
                _check_record(record, KINDS[kind], place)
            kept.append(record)
        except RunError as error:
            wrong.append(str(error))
    if wrong:
        _log.warning("%d records are left out, the first: %s", len(wrong), wrong[0])
    return tuple(kept)


def _check_record(record: Mapping[str, Any], kind: Any, place: Path) -> None:
    """Raise RunError unless a record has the fields of its kind; it may have more."""
    for name, hint in get_type_hints(kind).items():
        if name in record or name not in kind._field_defaults:
            stored(record, name, hint, place)
    for name, most in MOST.items():
        if name in kind._fields and not 0 <= record[name] <= most:
            raise RunError(f"{place}: damaged: {name} {record[name]}, expected at most {most:,}")
    if (record.get("perplexity") or 1) <= 0:
        raise RunError(f"{place}: damaged: perplexity {record['perplexity']}, expected above 0")


def checked_provenance(known: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run comes from, without the entries that are of another type."""
    found = _fitting(known, dict.fromkeys(("data", "fingerprint", "device"), str))
    starts = known.get("starts")
    listed = starts if isinstance(starts, list) else []
    found["starts"] = [_fitting(each, _START) for each in listed if isinstance(each, Mapping)]
    for start in found["starts"]:
        versions = start.get("versions", {})
        start["versions"] = {k: v for k, v in versions.items() if isinstance(v, str)}
    return found if known else {}


def _fitting(plain: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, hint in hints.items():
        if name in plain:
            try:
                found[name] = checked_value(hint, plain[name], name)
            except ValueError as error:
                _log.warning("provenance: %s", error)
    return found


def check_config(config: Mapping[str, Any], place: Path) -> None:
    """Raise RunError unless the settings of a run have what a page shows of them."""
    kind = stored(config, "kind", str, place)
    if kind not in CHECKED:
        raise RunError(f"{place}: damaged: kind {short(kind)}, expected {' or '.join(CHECKED)}")
    for name, hint in CHECKED[kind]:
        stored(config, name, hint, place)
    stored(config, "source.data", dict | None, place, None)
    for spec in stored(config, "source.operations", tuple[str, ...], place, ()):
        module, _, name = spec.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise RunError(f"{place}: damaged: source.operations holds {short(spec)}")
