"""Policies from text, as `load_policy` reads them from files."""

from __future__ import annotations

from collections.abc import Sequence

from deepaa.ops import Operation
from deepaa.policy import Policy
from deepaa.policy.load import read_policy_text


def loads(text: str, source: str = "<string>", operations: Sequence[Operation] = ()) -> Policy:
    """The policy in JSON text; errors call it `source`."""
    return read_policy_text(text, source, operations).policy
