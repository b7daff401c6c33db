"""What a search and its contest cost on this machine, said before they begin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.data import weaknesses
from deepaa.files import plural
from deepaa.models import LONG_ON_CPU, frozen_copy, quicker, quicker_options
from deepaa.runs import duration
from deepaa.search.contest import ContestRun, LengthPlan
from deepaa.search.gradient_matching.gradients import Derivatives, optimized_copy
from deepaa.search.methods import TRAINING_COST
from deepaa.search.plain_network import protection_of
from deepaa.search.policy_search import PolicySearch
from deepaa.search.proved import ProvedSearch
from deepaa.search.settings import PRESETS, SearchConfig

ENOUGH_SECONDS = 0.3
"""Seconds of work that show the speed of a network."""
SMALL = "--model small"


class Cost(NamedTuple):
    """Seconds that the parts of a search take at most, by a measurement now."""

    pretraining: float
    search: float
    contest: float
    rate: float
    """Images through the network and back in a second."""
    protection: float = 0.0
    """The look for operations that turn one class into another."""

    @property
    def total(self) -> float:
        """Seconds of the whole job."""
        return self.pretraining + self.protection + self.search + self.contest

    @classmethod
    def of_all(cls, costs: Sequence[Cost], contest: float) -> Cost:
        """What several searches and their contest take together."""
        pretraining, search, _, _, protection = map(sum, zip(*costs, strict=True))
        return cls(pretraining, search, contest, costs[0].rate, protection)

    def text(self) -> str:
        """The parts that there are, and their sum."""
        names = {
            "pre-training": self.pretraining,
            "class protection": self.protection,
            "search": self.search,
            "contest": self.contest,
        }
        parts = ", ".join(f"{name} {duration(part)}" for name, part in names.items() if part)
        whole = f"at most about {duration(self.total)} on this machine"
        return f"{whole}: {parts}" if parts else whole


def search_cost(proved: ProvedSearch, rate: float | None = None) -> Cost:
    """What the whole job takes, from a few passes through its network.

    Args:
        rate: Passes a second, where those of the same network were measured before.
    """
    search = proved.search
    search.check_model()
    each = 1 / rate if rate else seconds_per_pass(*_sample(search))
    training = search.training_passes
    passes = search_passes(search)
    if not proved.is_searched or search.later_state:
        training = passes = 0
    judged = 0 if proved.config is None else proved.plan().most_passes()
    protected = protection_passes(proved)
    return Cost(training * each, passes * each, judged * each, 1 / each, protected * each)


def search_passes(search: PolicySearch) -> int:
    """Images through the network and back in the search, or what costs as much."""
    if search.method is None:
        return search.config.passes_left(len(search.space))
    return search.method_forecast.passes.cost // TRAINING_COST


def protection_passes(proved: ProvedSearch) -> int:
    """Images through a network and back that class protection still takes at most.

    It would take so many if every operation were suspected; counted as for `search_passes`.
    """
    search = proved.search
    if not search.config.protect or search.is_protected:
        return 0
    looking = protection_of(search, search.check_stop, is_trained=proved.is_searched)
    return looking.most_passes // TRAINING_COST


def _sample(search: PolicySearch) -> tuple[nn.Module, Tensor, Tensor]:
    """The frozen network and some images, on the device."""
    images, labels = (part[:256].to(search.device) for part in search.data[:2])
    return optimized_copy(frozen_copy(search.model), images[:2], labels[:2]), images, labels


def forecast(proved: ProvedSearch, cost: Cost) -> dict[str, str]:
    """What a search would do and what it would cost, a text for each subject."""
    search = proved.search
    data, device, space = search.data, search.device, search.space
    frozen, images, _ = _sample(search)
    counts = {name: len(part) for name, part in search.splits._asdict().items()}
    shape = " x ".join(map(str, data.images.shape[1:]))
    groups = "" if data.groups is None else f", {plural(len(torch.unique(data.groups)), 'group')}"
    weights = _weights(search.model)
    memory = memory_needed(search.config, frozen, images, len(space))
    protected = protection_passes(proved)
    passes = f"{search_passes(search):,} in the search at most, {search.training_passes:,} in "
    passes += "pre-training" + (f", {protected:,} in class protection at most" if protected else "")
    lines = {
        "data": f"{data.name}: {plural(len(data.labels), 'image')} of {shape}, "
        f"{plural(len(data.class_names), 'class')}{groups}",
        "splits": ", ".join(f"{name} {n:,}" for name, n in counts.items() if n or name != "judge")
        + _held_out(search),
        "space": f"{plural(len(space), 'transformation')} of "
        f"{plural(len(space.operations), 'operation')}",
        "network": f"{plural(weights, 'weight')} on {device}",
        "memory": f"{data.images.nbytes / 1e6:,.0f} MB of images, about {memory / 1e6:,.0f} "
        "MB for the network",
        "passes": passes,
    }
    if not proved.is_searched:
        lines = {"data": lines["data"], "network": lines["network"], "search": proved.too_few}
    if proved.config is not None:
        lines["contest"] = plan_text(proved.plan())
    if weak := proved.weaknesses:
        lines["warning"] = "; ".join(weak)
    lines["time"] = f"{cost.text()}, at {cost.rate:,.0f} passes a second measured now"
    if (hint := cheaper(proved, cost)) is not None:
        lines["hint"] = hint
    return lines


def _held_out(search: PolicySearch) -> str:
    if search.method is not None:
        used = search.method.searcher.needs(search.method.config).images(search.world)
        return f"; {search.method.name} uses {used:,} of them"
    return f"; {search.config.heldout * search.config.decisions:,} of the search's are held out"


def plan_text(plan: LengthPlan) -> str:
    """A contest before it begins."""
    candidates, size = plural(len(plan.names), "candidate"), plan.size(plan.first)
    most = f", at most {plan.most_passes():,} passes"
    most = most if plan.shortness is None else f"; {plan.shortness}"
    return f"{candidates}: {size} each, more for those that stay{most}"


def cheaper(proved: ProvedSearch, cost: Cost) -> str | None:
    """A cheaper way, where the job would take long on a CPU and there is one."""
    plan = None if proved.config is None else proved.plan()
    return cheaper_way([proved.search], cost, plan, is_demo_cheaper=proved.is_searched)


def cheaper_way(
    searches: Sequence[PolicySearch],
    cost: Cost,
    plan: LengthPlan | None,
    *,
    is_demo_cheaper: bool = True,
) -> str | None:
    """A cheaper way for searches of the same images and their contest, see `cheaper`.

    Args:
        cost: Of all together.
        is_demo_cheaper: Whether the preset demo has anything to say about their cost.
    """
    search = searches[0]
    if cost.total < LONG_ON_CPU or search.device.type != "cpu":
        return None
    ways = quicker_options(search.data.images, _weights(search.model))
    if plan is not None and cost.contest > cost.total / 2:
        return shorter_contest("--contest-passes", plan, cost.contest, ways)
    is_long = any(search_passes(each) > 2 * _demo_passes(each) for each in searches)
    if is_demo_cheaper and (is_long or SMALL in ways):
        if search.network_name == PRESETS["imagenet"].proxy.model:  # demo has its own
            ways = [way for way in ways if way != SMALL]
        return f"{' '.join(['--preset demo', *ways])} takes minutes on a CPU"
    if not ways and cost.pretraining > cost.total / 2:
        return "fewer --epochs make the pre-training shorter"
    return quicker(ways)


def shorter_contest(option: str, plan: LengthPlan, seconds: float, ways: list[str]) -> str | None:
    """How a contest of so many seconds becomes shorter, and still has passes enough.

    Args:
        option: What sets its passes.
        ways: Other options that make it quicker.
    """
    now, more = plan.most_passes(), quicker(ways)
    passes = max(rounded(now * LONG_ON_CPU / 2 / seconds), rounded(1.05 * plan.enough))
    if passes > 0.8 * now:
        return more
    shorter = f"{option} {passes} takes about {duration(seconds * passes / now)}"
    return shorter if more is None else f"{shorter}; {more}, too"


def _weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _demo_passes(search: PolicySearch) -> int:
    """What `search_passes` would be with the settings of the preset demo."""
    if search.method is None:
        demo = PRESETS["demo"].search.fitted_to(len(search.splits.search))
        return demo.passes_left(len(search.space))
    searcher = search.method.searcher
    return searcher.forecast(searcher.presets["demo"], search.world).passes.cost // TRAINING_COST


def rounded(number: float) -> int:
    """Two digits and zeros, as a person would write it."""
    return int(float(f"{number:.1e}"))


def contest_forecast(run: ContestRun) -> dict[str, str]:
    """What a contest without a search would do and what it would cost."""
    contest = run.contest
    plan, network, images = contest.plan, contest.network, contest.images
    assert isinstance(plan, LengthPlan)
    model = network.make(0).to(network.device)
    some, labels = (part[:256].to(network.device) for part in images.data[:2])
    each = seconds_per_pass(frozen_copy(model), some, labels)
    looking = 0 if run.unprotected is None else run.unprotected.looking.most_passes
    protecting, judging = looking // TRAINING_COST * each, plan.most_passes() * each
    seconds = protecting + judging
    parts = f": class protection {duration(protecting)}, contest {duration(judging)}"
    judges = f"{len(images.chooses):,} judge"
    if len(images.parts) > 1:
        judges = f"all judge once, in {len(images.parts)} folds"
    shape = " x ".join(map(str, images.data.images.shape[1:]))
    count = plural(len(images.data.labels), "image")
    lines = {
        "data": f"{images.data.name}: {count} of {shape}, {judges}",
        "network": f"{network.name} on {network.device}",
        "contest": plan_text(plan),
        "time": f"at most about {duration(seconds)} on this machine{parts if looking else ''}",
    }
    if weak := weaknesses(images.data.labels, images.data.class_names):
        lines["warning"] = "; ".join(weak)
    if seconds > LONG_ON_CPU and network.device.type == "cpu":
        ways = quicker_options(images.data.images, _weights(model))
        if (hint := shorter_contest("--passes", plan, judging, ways)) is not None:
            lines["hint"] = hint
    return lines


def seconds_per_pass(frozen: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Seconds that one image takes through the network and back, measured now, in float32.

    A few images first, more while they are quick: a large network on a CPU takes seconds for each.
    """
    derivatives, count = Derivatives(frozen), 4
    while True:
        part, answers = images[:count], labels[:count]
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            derivatives.mean_gradient(part, answers)
            if images.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        if count >= len(images) or min(taken) > ENOUGH_SECONDS:
            return min(taken) / len(part)
        count *= 4


def memory_needed(config: SearchConfig, model: nn.Module, images: Tensor, rows: int) -> int:
    """Bytes of weights, images and activations that a pass takes at once, for `rows` rows."""
    counted = [0]

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not isinstance(module, nn.Identity):
            counted[0] += output.nbytes

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    try:
        with torch.no_grad():
            model(images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    weights = sum(p.nbytes for p in model.parameters())
    # values and their tangents, or their gradients; weights, v, two of g and the direction
    most = max(config.validation, config.chains, config.prefixes * rows)
    return 5 * weights + min(config.chunk, most) * (2 * counted[0] + images[0].nbytes)
