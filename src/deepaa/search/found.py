"""What a found policy says of how it was found, in the `info` of its file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deepaa.files import plural
from deepaa.policy import Policy
from deepaa.search.gradient_matching.search import Search
from deepaa.search.methods import Searcher

if TYPE_CHECKING:
    from deepaa.search.policy_search import PolicySearch


def described(task: PolicySearch, search: Search | Searcher) -> Policy:
    """The policy of a search, with the method, the data, the seed and the settings."""
    found, data = search.policy, task.data
    if isinstance(search, Searcher):
        assert task.method is not None
        what, settings = task.method.name, differences(task.method.config)
        more = {"method": what, "defaults": search.place, **search.info}
        more["passes"] = f"{search.passes.cost:,}"
    else:
        what = f"deepaa on {data.name}, {plural(found.depth, 'layer')}"
        settings, more = differences(task.config), {}
    info = {
        "description": f"found by {what}",
        "data": f"{data.name}, sha256 {data.fingerprint[:16]}",
        "seed": str(task.config.seed),
        "settings": settings,
        **more,
    }
    if task.protection.changed:
        info["left out"] = "; ".join(each.text for each in task.protection.changed)
    phases = [(phase.epoch, phase.stages) for phase in found.phases]
    return Policy(found.table, schedule=phases, info=info)


def differences(config: Any) -> str:
    """The settings that are not the defaults, as `--set` takes them; the seed stands elsewhere."""
    usual = {field.name: _default(field) for field in dataclasses.fields(config)}
    values = dataclasses.asdict(config).items()
    changed = {k: value for k, value in values if k != "seed" and value != usual[k]}
    texts = (f"{name}={'auto' if value is None else value}" for name, value in changed.items())
    return ", ".join(texts) or "the defaults"


def _default(field: dataclasses.Field[Any]) -> Any:
    """What a setting is if nobody sets it; MISSING, which equals nothing, where it must be set."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
