"""Each kind of malformed policy file, by name, with the error it gives."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from policy_text import loads

from deepaa.policy import PolicyFileError, dumps, load_policy
from deepaa.policy.policy import MAX_DEPTH, Policy


def document() -> dict[str, Any]:
    """A small correct file: a layer, then chains."""
    return {
        "format": "deepaa-policy",
        "version": 1,
        "info": {"by": "me"},
        "operations": [
            {"name": "identity", "low": None, "high": None, "neutral": None, "options": {}},
            {
                "name": "rotate",
                "low": -30,
                "high": 30,
                "neutral": 0,
                "options": {"fill": [1, 2, 3]},
            },
        ],
        "rows": [[0, None], [1, 15]],
        "phases": [
            {
                "epoch": 0,
                "stages": [
                    {"layers": [[0.5, 0.5], [1, 0]]},
                    {
                        "chains": [
                            {"weight": 0.5, "slots": [[1, 0.3], [0, 1]]},
                            {"weight": 0.5, "slots": [[1, 1], [1, 1]]},
                        ]
                    },
                ],
            }
        ],
    }


def edited(*path: str | int, to: Any = ..., text: str = "") -> str:
    """The document with the value at `path` replaced, or removed; `text` is put in as it is."""
    root = document()
    *way, last = path
    place: Any = root
    for step in way:
        place = place[step]
    if text:
        place[last] = "@@"
        return json.dumps(root).replace('"@@"', text)
    if to is ...:
        del place[last]
    else:
        place[last] = to
    return json.dumps(root)


LAYERS = ("phases", 0, "stages", 0, "layers")
CHAINS = ("phases", 0, "stages", 1, "chains")
DEEP = 100_000

MALFORMED: dict[str, tuple[str, str]] = {
    "empty": ("", "the file is empty"),
    "blank": (" \n\t\n", "the file is empty"),
    "not_json": ("probabilities: 3", "line 1, column 1: not JSON"),
    "trailing": (json.dumps(document()) + "{}", "not JSON (Extra data)"),
    "truncated": (json.dumps(document())[:-40], "the file is cut short"),
    "truncated_text": ('{"format": "deepaa-pol', "line 1, column 12: the file is cut short"),
    "truncated_number": ('{"format": "deepaa-policy", "version": 1', "the file is cut short"),
    "deep": ("[" * DEEP + "]" * DEEP, "nested too deeply"),
    "deep_object": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested too deeply"),
    "bomb": ("[" + "[]," * 300_000 + "[]]", "600,002 numbers, lists and objects; at most 500,000"),
    "zeros": ("[" + "0," * 500_000 + "0]", "500,001 numbers, lists and objects; at most 500,000"),
    "number": ("3", "expected a policy: an object {...} or a list of sub-policies, got 3"),
    "null": ("null", "expected a policy"),
    "other_object": ('{"a": 1}', 'not a policy file: it has no "format": "deepaa-policy"'),
    "other_format": (edited("format", to="onnx"), "not a policy file"),
    "newer": (
        edited("version", to=2),
        "written by a newer deepaa (format version 2); this one reads version 1",
    ),
    "newer_with_new_keys": (
        json.dumps({"format": "deepaa-policy", "version": 7, "colour": {}}),
        "written by a newer deepaa (format version 7); this one reads version 1",
    ),
    "no_version": (edited("version"), 'key "version" is missing'),
    "version_zero": (edited("version", to=0), 'key "version": 0 should be from 1 to'),
    "version_text": (edited("version", to="1"), 'key "version": expected an integer, got "1"'),
    "version_float": (edited("version", to=1.0), 'key "version": expected an integer, got 1.0'),
    "version_true": (edited("version", to=True), 'key "version": expected an integer, got true'),
    "unknown_key": (
        edited("seed", to=3),
        'unknown key "seed"; the keys are format, version, info, operations, rows, phases',
    ),
    "missing_key": (edited("rows"), 'key "rows" is missing'),
    "duplicate_key": (
        json.dumps(document()).replace('"version": 1,', '"version": 1, "version": 1,'),
        'key "version" appears twice',
    ),
    "duplicate_in_chain": (
        json.dumps(document()).replace('"weight": 0.5, ', '"weight": 0.5, "weight": 0.5, ', 1),
        'stage 2, chain 1: key "weight" appears twice',
    ),
    "duplicate_in_info": (
        json.dumps(document()).replace('"by": "me"', '"by": "me", "by": "me"'),
        'key "info": key "by" appears twice',
    ),
    "info_list": (edited("info", to=["by me"]), 'key "info": expected an object {...}, got a list'),
    "info_number": (edited("info", "by", to=3), 'key "info", key "by": expected text, got 3'),
    "info_surrogate": (edited("info", "by", text='"\\ud800"'), "is not valid Unicode"),
    "info_surrogate_key": (
        json.dumps(document()).replace('"by"', '"\\ud800"'),
        "is not valid Unicode",
    ),
    "operations_object": (edited("operations", to={}), 'key "operations": expected a list'),
    "operations_empty": (edited("operations", to=[]), "a policy needs at least one operation"),
    "operation_long_name": (edited("operations", 1, "name", to="x" * 9999), 'operation "xxxxxxxx'),
    "operation_text": (
        edited("operations", 1, to="rotate"),
        'operation 1: expected an object {...}, got "rotate"',
    ),
    "operation_unknown": (
        edited("operations", 1, "name", to="swirl"),
        'operation 1: unknown operation "swirl"; if it is your own, pass operations=[...] with '
        "its kernel; built-in are identity, shear_x,",
    ),
    "operation_key": (edited("operations", 1, "pil", to="os"), 'operation 1: unknown key "pil"'),
    "operation_no_low": (edited("operations", 1, "low"), 'operation 1: key "low" is missing'),
    "operation_low_null": (
        edited("operations", 1, "low", to=None),
        "operation 1: rotate: give both low and high",
    ),
    "operation_low_nan": (
        edited("operations", 1, "low", to=float("nan")),
        'operation 1, key "low": nan is not a finite number',
    ),
    "operation_low_high": (
        edited("operations", 1, "low", to=30),
        "operation 1: rotate: low should be below high",
    ),
    "operation_neutral": (edited("operations", 1, "neutral", to=99), "neutral 99.0 lies outside"),
    "operation_option": (
        edited("operations", 1, "options", to={"full": 1}),
        "operation 1: rotate has no option 'full'",
    ),
    "operation_option_value": (
        edited("operations", 1, "options", "fill", to=300),
        "operation 1: rotate: fill should be",
    ),
    "operation_option_object": (
        edited("operations", 1, "options", "fill", to={}),
        'operation 1, key "options", key "fill": expected a number, got an object',
    ),
    "operation_option_bool": (
        edited("operations", 1, "options", "fill", to=[True, 1, 2]),
        'operation 1, key "options", item 0: expected a number, got true',
    ),
    "operation_option_huge": (
        edited("operations", 1, "options", "fill", text="1" + "0" * 5000),
        'operation 1, key "options", key "fill": an integer beyond 2^53',
    ),
    "rows_empty": (edited("rows", to=[]), "a table needs at least one row"),
    "row_number": (
        edited("rows", 1, to=1),
        "row 1: expected [operation, magnitude], got 1",
    ),
    "row_long": (edited("rows", 1, to=[1, 15, 0]), "row 1: expected [operation, magnitude]"),
    "row_operation_range": (
        edited("rows", 1, 0, to=2),
        "row 1, operation: 2 should be from 0 to 1",
    ),
    "row_operation_negative": (edited("rows", 1, 0, to=-1), "row 1, operation: -1 should be from"),
    "row_operation_bool": (
        edited("rows", 1, 0, to=True),
        "row 1, operation: expected an integer, got true",
    ),
    "row_operation_huge": (
        edited("rows", 1, 0, text="9" * 5000),
        "row 1, operation: 100000000000000000000 should be from 0 to 1",
    ),
    "row_magnitude_text": (
        edited("rows", 1, 1, to="15"),
        'row 1, magnitude: expected a number, got "15"',
    ),
    "row_magnitude_infinite": (
        edited("rows", 1, 1, text="1e999"),
        "row 1, magnitude: inf is not a finite number",
    ),
    "row_magnitude_missing": (edited("rows", 1, 1, to=None), "row 1: rotate needs a magnitude"),
    "row_magnitude_needless": (edited("rows", 0, 1, to=3), "row 0: identity has no range"),
    "phases_empty": (edited("phases", to=[]), "a policy needs at least one phase"),
    "phase_late": (
        edited("phases", 0, "epoch", to=1),
        "phases start at epoch 0 and their epochs rise, got [1]",
    ),
    "phase_negative": (edited("phases", 0, "epoch", to=-1), 'key "epoch": -1 should be from 0'),
    "phases_fall": (
        edited("phases", to=[{"epoch": e, "stages": []} for e in (0, 5, 5)]),
        "phases start at epoch 0 and their epochs rise, got [0, 5, 5]",
    ),
    "phase_stage": (
        edited("phases", to=[document()["phases"][0], {"epoch": 4, "stages": [{"layers": [[1]]}]}]),
        "phase 2, layer 1: holds 1 probabilities, but the table has 2 rows",
    ),
    "stage_list": (
        edited("phases", 0, "stages", 0, to=[[1, 0]]),
        'stage 1: expected {"layers": [...]} or {"chains": [...]}, got a list',
    ),
    "stage_both": (
        edited("phases", 0, "stages", 0, "chains", to=[]),
        'stage 1: unknown key "layers"; the keys are chains',
    ),
    "layers_number": (edited(*LAYERS, to=3), 'stage 1, key "layers": expected a list, got 3'),
    "layer_number": (edited(*LAYERS, 1, to=3), "stage 1, layer 2: expected a list, got 3"),
    "layer_short": (
        edited(*LAYERS, 1, to=[1.0]),
        "stage 1, layer 2: holds 1 probabilities, but the table has 2 rows",
    ),
    "layer_nan": (
        edited(*LAYERS, 1, to=[1.0, float("nan")]),
        "stage 1, layer 2, row 1: nan is not a finite number",
    ),
    "layer_infinity": (
        edited(*LAYERS, 1, to=[float("-inf"), 1.0]),
        "stage 1, layer 2, row 0: -inf is not a finite number",
    ),
    "layer_negative": (
        edited(*LAYERS, 0, to=[-0.5, 1.5]),
        "stage 1, layer 1, row 0: -0.5 should be from 0 to 1",
    ),
    "layer_large": (
        edited(*LAYERS, 0, to=[0, 1e308]),
        "stage 1, layer 1, row 1: 1e+308 should be from 0 to 1",
    ),
    "layer_bool": (
        edited(*LAYERS, 0, to=[True, 0]),
        "stage 1, layer 1, row 0: expected a number, got true",
    ),
    "layer_text": (
        edited(*LAYERS, 0, to=["x" * 500, 0]),
        'stage 1, layer 1, row 0: expected a number, got "xxxxx',
    ),
    "layer_null": (edited(*LAYERS, 0, to=[None, 1]), "row 0: expected a number, got null"),
    "layer_sum": (
        edited(*LAYERS, 0, to=[0.5, 0.4]),
        "stage 1, layer 1: sums to 0.900000, expected 1",
    ),
    "layer_zero": (edited(*LAYERS, 0, to=[0, 0]), "layer 1: sums to 0.000000, expected 1"),
    "layer_almost": (edited(*LAYERS, 0, to=[0.5, 0.500002]), "sums to 1.000002, expected 1"),
    "many_layers": (
        edited(*LAYERS, to=[0] * 10**5),
        'stage 1, key "layers": 100,000 layers; a policy has at most 1,000',
    ),
    "too_many_together": (
        edited(*LAYERS, to=[[1, 0]] * (MAX_DEPTH - 1)),
        'stage 2, key "chains": 1,001 layers; a policy has at most 1,000',
    ),
    "many_slots": (
        edited(*CHAINS, 0, "slots", to=[0] * 10**5),
        "100,002 layers; a policy has at most 1,000",
    ),
    "chains_empty": (edited(*CHAINS, to=[]), "a stage of chains needs at least one"),
    "chain_number": (edited(*CHAINS, 0, to=1), "stage 2, chain 1: expected an object {...}, got 1"),
    "chain_no_weight": (edited(*CHAINS, 1, "weight"), 'stage 2, chain 2: key "weight" is missing'),
    "chain_weight_negative": (
        edited(*CHAINS, 1, "weight", to=-0.5),
        'stage 2, chain 2, key "weight": -0.5 should be from 0 to 1',
    ),
    "chain_weight_sum": (
        edited(*CHAINS, 1, "weight", to=0.25),
        'stage 2, key "chains": the weights sum to 0.750000, expected 1',
    ),
    "chain_no_slots": (
        edited(*CHAINS, 0, "slots", to=[]),
        "stage 2, chain 1: has 0 slots, expected at least one",
    ),
    "chain_uneven": (
        edited(*CHAINS, 1, "slots", to=[[1, 1]]),
        "stage 2, chain 2: has 1 slots, expected 2 as in chain 1",
    ),
    "slot_short": (
        edited(*CHAINS, 0, "slots", 1, to=[1]),
        "stage 2, chain 1, slot 2: expected [row, gate], got a list",
    ),
    "slot_row": (
        edited(*CHAINS, 0, "slots", 1, 0, to=2),
        "stage 2, chain 1, slot 2, row: 2 should be from 0 to 1",
    ),
    "slot_gate": (
        edited(*CHAINS, 0, "slots", 1, 1, to=1.5),
        "stage 2, chain 1, slot 2, gate: 1.5 should be from 0 to 1",
    ),
    "slot_without_identity": (
        edited("operations", 0, "name", to="invert"),
        "stage 2, chain 1, slot 1: a gate below 1 needs an identity row in the table",
    ),
}


def test_the_document_itself_is_right() -> None:
    policy = loads(json.dumps(document()))
    assert policy.depth == 4
    assert loads(dumps(policy)).equals(policy)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file(name: str, tmp_path: Path) -> None:
    text, message = MALFORMED[name]
    path = tmp_path / f"{name}.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyFileError, match=re.escape(message)) as caught:
        load_policy(path)
    # one readable line that begins with the file
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 450


def test_errors_name_no_phase_or_stage_where_there_is_one() -> None:
    stages = [{"layers": [[0.5, 0.5], [0.5, 0.6]]}]
    with pytest.raises(PolicyFileError, match=r"^mine: layer 2: sums to 1\.100000, expected 1$"):
        loads(edited("phases", 0, "stages", to=stages), source="mine")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_an_error_or_a_policy(data: st.DataObject) -> None:
    text = json.dumps(document())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 5)))
        patch = data.draw(
            st.sampled_from(["", "0", "-1", "1e400", "[", "]", "null", ",", '"', "NaN"])
        )
        text = text[:start] + patch + text[stop:]
    with contextlib.suppress(PolicyFileError):  # and nothing else
        assert isinstance(loads(text), Policy)
