"""`deepaa search --methods`: several searches one after the other, a contest, and one table."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepaa.data import LabelledImages
    from deepaa.runs import StopRequest
    from deepaa.search import (
        ContestConfig,
        ContestRequest,
        Cost,
        LengthPlan,
        MethodRow,
        PolicySearch,
        ProvedSearch,
        Searched,
        SearchRequest,
    )

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
CONTEST = "contest"
"""The folder of the contest beside those of the searches."""


def passes_of(text: str) -> int:
    """The passes that a budget such as 15M, 500k or 15000000 means."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if found is None or not (count := round(float(found[1]) * UNITS[found[2]])):
        raise ValueError(f"--budget takes passes, as 15M or 500k, got {text!r}")
    return count


def method_names(text: str) -> list[str]:
    """The methods of a list with commas, each once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"--methods takes two or more different methods, got {text!r}")
    return names


def folder_of(out: Path, method: str) -> Path:
    """Where the search with a method is kept."""
    return out / re.sub(r"[^\w.-]+", "-", method)


def search_several(
    requests: Mapping[str, SearchRequest],
    out: Path,
    *,
    budget: int | None,
    contest: ContestConfig | None,
    are_passes_asked: bool,
    dry_run: bool,
    stop: StopRequest,
    **options: Any,
) -> None:
    """Run each method in a folder of its own, then the contest; the same command goes on.

    Args:
        requests: What each method is asked for, without a contest of its own.
        budget: Passes forward for each; None leaves every method its own number.
        are_passes_asked: Whether the passes of the contest are the user's own number.
        options: Device, download and seconds between checkpoints, as for `open_search`.
    """
    from deepaa.cli.contest import follow
    from deepaa.distributed import world_size
    from deepaa.runs import notify
    from deepaa.search import (
        Searched,
        SearchProgress,
        SharedProtection,
        looking_of,
        open_search,
        search_cost,
        within_budget,
    )

    if world_size() > 1:
        raise ValueError("--methods runs in one process, not under torchrun")
    fitted, images, plan, refused = dict(requests), None, None, "off"
    for name, request in requests.items():  # all are refused before one begins
        with open_search(request, dry_run=True, images=images, **options) as opened:
            images = opened.search.data
            if budget is not None:
                fitted[name] = within_budget(request, opened.search, budget)
    if contest is not None:
        found = _planned(opened, contest, len(requests), is_asked=are_passes_asked)
        if isinstance(found, str) and not dry_run:
            raise ValueError(found)
        if isinstance(found, str):
            refused = found
        else:
            plan, contest = found, replace(contest, passes=found.passes)
    if dry_run or not any(folder_of(out, name).exists() for name in fitted):
        is_budgeted = budget is not None
        each, whole = _forecasts(fitted, images, plan, refused, is_budgeted=is_budgeted, **options)
        for line in [*each, *whole] if dry_run else whole:
            notify(line)
    if dry_run:
        return
    rows: list[MethodRow] = []
    planned_search = opened.search
    shared = SharedProtection()
    for name, request in fitted.items():
        folder = folder_of(out, name)
        asked = partial(getattr, stop, "requested")
        with open_search(request, folder, images=images, stop=asked, **options) as opened:
            looking = looking_of(opened.search)
            opened.search.known_protection = shared.known(looking)
            cost = None if opened.is_over else search_cost(opened)
            notify(f"{name}: {_forecast(opened, cost)}")
            if (note := opened.search.training_note) is not None:
                notify(f"{name}: {note}")
            follow(opened, SearchProgress(opened, cost), stop)
            rows.append(_row(name, opened, folder))
            shared.add(looking, opened.search)
            judge = opened.search.splits.judge
    if contest is not None:
        searched = Searched(planned_search.data, judge, shared.together)
        meant = _contest_request(rows, request, planned_search, searched, out, contest)
        meant = replace(meant, forms=_has_forms(plan, len(requests)))
        rows = _judged(rows, meant, out, stop, searched=searched, **options)
    _print_table(rows, [folder_of(out, name) for name in fitted], out)


def _print_table(rows: list[MethodRow], folders: list[Path], out: Path) -> None:
    from deepaa.runs import duration, print_line, write_json
    from deepaa.search import METHODS_FILE, method_lines, shared_seconds

    write_json(out / METHODS_FILE, [row.to_json() for row in rows])
    typer.echo()
    for line in method_lines(rows):
        typer.echo(line)
    note = "Passes and minutes are those of the search, without the contest"
    if seconds := shared_seconds(folders):
        note += f" and without class protection, which took {duration(seconds)} for all"
    typer.echo()
    print_line(f"{note}.")
    typer.echo(f"table    {out / METHODS_FILE}")


def _planned(
    opened: ProvedSearch, contest: ContestConfig, methods: int, *, is_asked: bool
) -> LengthPlan | str:
    """What the contest will be, or why it cannot be."""
    from deepaa.runs import notify
    from deepaa.search import FORMS, check_contest

    search = opened.search
    try:
        plan = check_contest(search, contest, methods, is_asked=is_asked, forms=(len(FORMS), 1))
    except ValueError as error:
        return str(error)
    if not _has_forms(plan, methods):
        few = f"{plan.passes:,} passes are too few for other forms"
        notify(f"contest: what a method finds takes part as found alone, as {few}")
    if not len(search.splits.judge):
        notify(
            f"{len(search.data.labels):,} images are too few to set some aside: the contest judges "
            "by images that the searches have seen, too"
        )
    return plan


def _has_forms(plan: LengthPlan | None, methods: int) -> bool:
    """Whether every method takes part in weaker forms, too."""
    return plan is not None and len(plan.names) > methods + len(plan.references)


def _forecasts(
    requests: Mapping[str, SearchRequest],
    images: LabelledImages | None,
    plan: LengthPlan | None,
    refused: str,
    *,
    is_budgeted: bool,
    **options: Any,
) -> tuple[list[str], list[str]]:
    """Lines for each search and the contest; and one for all, with a hint where that is long.

    Searches that would find the same of class protection look for it once.
    """
    from deepaa.runs import duration
    from deepaa.search import (
        Cost,
        cheaper_way,
        looking_of,
        open_search,
        plan_text,
        search_cost,
    )

    lines: list[str] = []
    searches: list[PolicySearch] = []
    looks: list[Any] = []
    costs: dict[str, Cost] = {}
    for name, request in requests.items():
        with open_search(request, dry_run=True, images=images, **options) as opened:
            rate = next((cost.rate for cost in costs.values()), None)
            cost, looking = search_cost(opened, rate), looking_of(opened.search)
            if any(looking.finds_the_same(other) for other in looks):
                cost = cost._replace(protection=0.0)
            costs[name] = cost
            looks.append(looking)
            searches.append(opened.search)
            lines.append(f"{name}: {_forecast(opened, cost)}")
            if (note := opened.search.training_note) is not None:
                lines.append(f"{name}: {note}")
    seconds = {name: cost.total for name, cost in costs.items()}
    if plan is not None:
        seconds["contest"] = plan.most_passes() / cost.rate
        refused = f"{plan_text(plan)}, at most about {duration(seconds['contest'])} on this machine"
    lines.append(f"contest: {refused}")
    whole = Cost.of_all([*costs.values()], seconds.get("contest", 0.0))
    parts = ", ".join(f"{name} {duration(part)}" for name, part in seconds.items())
    told = [f"in all: at most about {duration(whole.total)} on this machine: {parts}"]
    hint = cheaper_way(searches, whole, plan, is_demo_cheaper=not is_budgeted)
    return lines, told if hint is None else [*told, f"hint: {hint}"]


def _forecast(opened: ProvedSearch, cost: Cost | None) -> str:
    from deepaa.search import images_used, whole_cost

    search = opened.search
    told = f"at most {whole_cost(search):,} passes, {images_used(search):,} labelled images"
    return told if cost is None else f"{told}; {cost.text()}"


def _row(name: str, opened: ProvedSearch, folder: Path) -> MethodRow:
    from deepaa.search import MethodRow, images_used, spent

    passes, seconds = spent(folder)
    return MethodRow(name, passes, seconds / 60, images_used(opened.search))


def _contest_request(
    rows: list[MethodRow],
    request: SearchRequest,
    search: PolicySearch,
    searched: Searched,
    out: Path,
    contest: ContestConfig,
) -> ContestRequest:
    """A contest among what the methods found and the references, which trains as they did.

    Args:
        request: One of the searches'.
        search: The same before it begins.
        searched: What the searches have read and found, which the contest takes over.
    """
    from deepaa.data import DataSpec
    from deepaa.search import ContestRequest, training_changes

    assert isinstance(request.data, DataSpec)
    return ContestRequest(
        request.data,
        tuple(_policy_of(row, out) for row in rows),
        depths=False,
        usual=False,
        model=search.network_name,
        weights=None if request.weights is None else Path(request.weights),
        contest=contest,
        changes=training_changes(search.proxy.train),
        protect=searched.protection is not None,
        operations=request.operations,
    )


def _policy_of(row: MethodRow, out: Path) -> str:
    return str(folder_of(out, row.method) / "policy.json")


def _judged(
    rows: list[MethodRow], request: ContestRequest, out: Path, stop: StopRequest, **options: Any
) -> list[MethodRow]:
    """The rows with how the best form of each found policy does in the contest.

    Args:
        options: As for `open_contest`.
    """
    from deepaa.cli.contest import follow, print_contest
    from deepaa.runs import notify
    from deepaa.search import (
        ContestProgress,
        best_form,
        contest_forecast,
        judged,
        open_contest,
        short_name,
    )

    asked = partial(getattr, stop, "requested")
    with open_contest(request, out / CONTEST, stop=asked, **options) as opened:
        plan = contest_forecast(opened)
        notify(f"contest: {plan['contest']}, {plan['time']}")
        follow(opened, ContestProgress(opened), stop)
        print_contest(opened, out / CONTEST)
        held, table = opened.contest.plan, opened.contest.table
    told = []
    for row in rows:
        found = best_form(held, table, short_name(_policy_of(row, out)))
        if found is None:
            told.append(row)
            continue
        name, form = found
        told.append(row._replace(judged=judged(held, table, name, ~table.chooses), form=form))
    return told
