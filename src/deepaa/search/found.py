"""What a found policy says of how it was found, in the `info` of its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepaa.files import plural
from deepaa.policy import Policy
from deepaa.runs import changed_settings
from deepaa.search.contest import FOUND_BY
from deepaa.search.gradient_matching.search import Search
from deepaa.search.methods import Searcher

if TYPE_CHECKING:
    from deepaa.search.policy_search import PolicySearch


def described(task: PolicySearch, search: Search | Searcher) -> Policy:
    """The policy of a search, with the method, the data, the seed and the settings."""
    found, data = search.policy, task.data
    if isinstance(search, Searcher):
        assert task.method is not None
        what, settings = task.method.name, changed_settings(task.method.config)
        more = {"method": what, "defaults": search.place, **search.info}
        more["passes"] = f"{search.passes.cost:,}"
    else:
        what = f"deepaa on {data.name}, {plural(found.depth, 'layer')}"
        settings, more = changed_settings(task.config), {}
    info = {
        "description": f"{FOUND_BY}{what}",
        "data": f"{data.name}, sha256 {data.fingerprint[:16]}",
        "seed": str(task.config.seed),
        "settings": settings,
        **more,
    }
    if left_out := task.protection.texts(task.whole_space.table.rows):
        info["left out"] = "; ".join(left_out)
    phases = [(phase.epoch, phase.stages) for phase in found.phases]
    return Policy(found.table, schedule=phases, info=info)
