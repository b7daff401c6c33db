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

    from deepaa.runs import StopRequest
    from deepaa.search import (
        ContestConfig,
        ContestRequest,
        Cost,
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
    from deepaa.runs import notify, write_json
    from deepaa.search import (
        METHODS_FILE,
        Searched,
        SearchProgress,
        SharedProtection,
        looking_of,
        method_lines,
        open_search,
        search_cost,
        within_budget,
    )

    if world_size() > 1:
        raise ValueError("--methods runs in one process, not under torchrun")
    fitted, images, planned, forms = dict(requests), None, "", True
    for name, request in requests.items():  # all are refused before one begins
        with open_search(request, dry_run=True, images=images, **options) as opened:
            images = opened.search.data
            if budget is not None:
                fitted[name] = within_budget(request, opened.search, budget)
    if contest is not None:
        count = len(requests)
        planned, contest, forms = _planned(
            opened, contest, count, dry_run=dry_run, is_asked=are_passes_asked
        )
    rows: list[MethodRow] = []
    planned_search = opened.search
    shared = SharedProtection()
    for name, request in fitted.items():
        folder = None if dry_run else folder_of(out, name)
        asked = partial(getattr, stop, "requested")
        with open_search(request, folder, images=images, stop=asked, **options) as opened:
            looking = looking_of(opened.search)
            opened.search.known_protection = shared.known(looking)
            cost = None if opened.is_over else search_cost(opened)
            notify(f"{name}: {_forecast(opened, cost)}")
            if (note := opened.search.training_note) is not None:
                notify(f"{name}: {note}")
            if folder is not None:
                follow(opened, SearchProgress(opened, cost), stop)
                rows.append(_row(name, opened, folder))
                shared.add(looking, opened.search)
                judge = opened.search.splits.judge
    if dry_run:
        notify(f"contest: {planned or 'off'}")
        return
    if contest is not None:
        searched = Searched(planned_search.data, judge, shared.together)
        meant = _contest_request(rows, request, planned_search, searched, out, contest)
        rows = _judged(rows, replace(meant, forms=forms), out, stop, searched=searched, **options)
    write_json(out / METHODS_FILE, [row.to_json() for row in rows])
    typer.echo()
    for line in method_lines(rows):
        typer.echo(line)
    typer.echo(f"\ntable    {out / METHODS_FILE}")


def _planned(
    opened: ProvedSearch, contest: ContestConfig, methods: int, *, dry_run: bool, is_asked: bool
) -> tuple[str, ContestConfig, bool]:
    """What the contest will be, and whether every method takes part in weaker forms, too.

    A contest that cannot be is refused, and told in a dry run.
    """
    from deepaa.runs import duration, notify
    from deepaa.search import FORMS, check_contest, plan_text, search_cost

    search, forms = opened.search, True
    try:
        plan = check_contest(search, contest, methods, is_asked=is_asked, forms=(len(FORMS), 1))
        forms = len(plan.names) > methods + len(plan.references)
    except ValueError as error:
        if not dry_run:
            raise
        return str(error), contest, forms
    if not forms:
        few = f"{plan.passes:,} passes are too few for other forms"
        notify(f"contest: what a method finds takes part as found alone, as {few}")
    planned = plan_text(plan)
    if dry_run:
        seconds = plan.most_passes() / search_cost(opened).rate
        planned += f", at most about {duration(seconds)} on this machine"
    if not len(search.splits.judge):
        notify(
            f"{len(search.data.labels):,} images are too few to set some aside: the contest judges "
            "by images that the searches have seen, too"
        )
    return planned, replace(contest, passes=plan.passes), forms


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
