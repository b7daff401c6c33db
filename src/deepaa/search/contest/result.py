"""What a contest says: a sentence, and contest.json with everything that led to it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from deepaa.files import plural
from deepaa.policy import IDENTITY, Chains, Policy
from deepaa.runs import CONTEST, RunError, short, stored
from deepaa.search.contest.candidates import CROP_FLIP, JUDGED, NONE, Candidate
from deepaa.search.contest.pick import ALONE, Pick, difference
from deepaa.search.contest.plan import Plan, Rung, Size
from deepaa.search.contest.proof import Proof, confirmed
from deepaa.search.contest.seed_plan import SeedPlan
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.train import policy_hash

FORMAT = 1
SHORT = 0.5
"""Of the work of the training that is meant: where the longest ones have less, a word of caution
follows."""


class ContestResult(NamedTuple):
    """What a contest ends with."""

    winner: Candidate
    sentence: str
    pick: Pick
    proof: Proof | None
    """None where the winner is no augmentation, which needs no proof, and where a training for the
    proof failed."""
    table: ContestTable

    def __repr__(self) -> str:
        """The winner and the sentence alone: the table has numbers for every judge image."""
        return f"<ContestResult: {self.winner.name}. {self.sentence}>"

    @property
    def policy(self) -> Policy:
        """The policy to train with, with a note of how it was chosen."""
        found = self.winner.policy
        info = {**found.info, JUDGED: self.sentence}
        info.setdefault("description", self.winner.title)
        stages = [stage for phase in found.phases for stage in phase.stages]
        if stages and all(isinstance(stage, Chains) for stage in stages):
            # a file of nothing but sub-policies would get the default crop, flip and cutout
            found = found.then(Policy.always(IDENTITY.operation))
        schedule = [(phase.epoch, phase.stages) for phase in found.phases]
        return Policy(found.table, schedule=schedule, info=info)


def contest_result(
    candidates: Mapping[str, Candidate], plan: Plan, table: ContestTable
) -> ContestResult:
    """The result of a contest that is over."""
    chosen, proof, unproved = plan.chosen(table), plan.proved(table), plan.unproved(table)
    winner, rival = chosen.winner, plan.rival(chosen)
    length = plan.rungs(table)[-1].length if rival is None else plan.proof_length(table)
    beaten = proof is not None and not stands(chosen, proof, is_last=length >= plan.target)
    if rival is not None and (beaten or winner in unproved):
        winner = rival
    titles = {name: each.title for name, each in candidates.items()}
    sentence = say(
        chosen,
        proof,
        titles,
        size=plan.size(length),
        target=plan.target,
        share=length / plan.target,
        is_own=isinstance(plan, SeedPlan),
        rival=rival,
        unproved=unproved,
    )
    return ContestResult(
        candidates[winner], sentence + _failures(plan.without_proof(table)), chosen, proof, table
    )


def stands(chosen: Pick, proof: Proof, *, is_last: bool = False) -> bool:
    """Whether the proof leaves the winner its place.

    A winner that was still catching up may be behind at the length of the proof, but not for sure,
    and not where it was trained for the target (`is_last`).
    """
    is_later = chosen.extrapolated and not is_last
    return confirmed(proof) or (is_later and proof.high >= 0)


def say(
    chosen: Pick,
    proof: Proof | None,
    titles: Mapping[str, str],
    *,
    size: Size,
    target: int,
    share: float,
    is_own: bool = False,
    rival: str | None = None,
    unproved: Collection[str] = (),
) -> str:
    """The result in one plain sentence, and a second one where the trainings were short.

    Args:
        size: Of the longest trainings.
        target: Epochs of the training that the policy is wanted for.
        share: Of the work of that training in the longest ones.
        is_own: Whether a loop of the user's own trained, whose epochs need not be known.
        rival: Whom the winner was to be proved against; None means that of the proof.
        unproved: Of winner and rival, those of whose trainings for the proof one failed.
    """
    after = "in your loop" if is_own and size.epochs == 1 else f"after {size}"
    rival = rival or (None if proof is None else proof.reference)
    if rival is None:
        helped = "Nothing helped"
        if chosen.reason == ALONE and CROP_FLIP in titles:
            helped = f"{titles[CROP_FLIP].capitalize()} did not help"
        text = f"{helped} {after}: train without augmentation."
    elif proof is None:
        text = _unproved(chosen.winner, rival, titles, unproved, after)
    else:
        text = _proved(chosen, proof, titles, after, target, is_last=share >= 1)
    return text + (_caution(size, target) if share < SHORT else "")


def _unproved(
    winner: str, rival: str, titles: Mapping[str, str], unproved: Collection[str], after: str
) -> str:
    """What can be said where a training for the proof failed: no interval."""
    taken = rival if winner in unproved else winner
    who = " and ".join(titles[name] for name in (winner, rival) if name in unproved)
    return (
        f"Nothing is proved: {titles[winner]} led {after}, but a training of {who} that should "
        f"prove it failed, as its loss was not a number; {_advice(taken, titles)}."
    )


def _proved(
    chosen: Pick, proof: Proof, titles: Mapping[str, str], after: str, target: int, *, is_last: bool
) -> str:
    winner, rival = titles[proof.winner], titles[proof.reference]
    points = f"{abs(100 * proof.mean):.1f} points {'better' if proof.mean >= 0 else 'worse'}"
    interval = f"(95 %: {100 * proof.low:.1f} to {100 * proof.high:.1f}) {after}"
    doubt = "" if proof.low > 0 else ", which may still be chance"
    if not stands(chosen, proof, is_last=is_last):
        return (
            f"Nothing is proved to help: {winner} led, but is {points} than {rival} {interval}, on "
            f"images and with networks that did not choose it; {_advice(proof.reference, titles)}."
        )
    if chosen.extrapolated and not is_last:
        but = "and" if proof.mean >= 0 else "but"
        return (
            f"On your data {winner} is {points} than {rival} {interval}, {but} gains as "
            f"trainings grow: take it for {plural(target, 'epoch')}."
        )
    if chosen.winner == chosen.reference and chosen.reason != ALONE:
        return (
            f"No policy is clearly better than {winner}: use that. On your data it is {points} "
            f"than {rival} {interval}{doubt}."
        )
    return f"On your data {winner} is {points} than {rival} {interval}{doubt}."


def _advice(name: str, titles: Mapping[str, str]) -> str:
    return "train without augmentation" if name == NONE else f"use {titles[name]}"


def _failures(table: ContestTable) -> str:
    """How many candidates were never judged to the end, so that nobody takes them for beaten."""
    failed = {each.candidate for each in table.entries if each.failed}
    if not failed:
        return ""
    of = f"{len(failed)} of {plural(len(table.candidates), 'candidate')}"
    return f" Trainings of {of} failed: their loss was not a number."


def _caution(size: Size, target: int) -> str:
    """A word of caution where trainings were much smaller than the one that is meant."""
    trainings = f"Trainings of {plural(target, 'epoch')}"
    if size.images is not None:
        return f" {trainings} of all images may differ."
    return f" {trainings} may differ: stronger augmentation needs longer ones."


# contest.json


def document(
    candidates: Mapping[str, Candidate],
    plan: Plan,
    table: ContestTable,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything about a contest, also of one that is not over, as JSON has it.

    Args:
        facts: What is known of images, network and protection, and who takes no part.
    """
    over = not plan.next_jobs(table)
    content = {"format": FORMAT, "status": "finished" if over else "running", **facts}
    content["target_epochs"] = plan.target
    pick = {"winner": NONE, "reference": NONE, "reason": "running", "extrapolated": False}
    content |= {"plan": plan.to_json(table), "pick": pick, "proof": None, "sentence": None}
    content["unproved"] = []
    chosen = None
    if over:
        result = contest_result(candidates, plan, table)
        chosen, proof = result.pick, result.proof
        content["pick"] = {
            "winner": result.winner.name,
            "led": chosen.winner,
            "reference": chosen.reference,
            "reason": chosen.reason,
            "extrapolated": chosen.extrapolated and result.winner.name == chosen.winner,
        }
        content["unproved"] = list(plan.unproved(table))
        content["proof"] = None if proof is None else proof._asdict()
        content["sentence"] = result.sentence
    rival = NONE if chosen is None else chosen.reference
    rungs, chooses = plan.rungs(table), plan.without_proof(table)
    content["candidates"] = [
        {
            "name": name,
            "title": each.title,
            "kind": each.kind,
            "reference": name in plan.references,
            "layers": each.policy.depth,
            "left_after": _left_after(name, rungs),
            "policy_sha256": policy_hash(each.policy),
            "rungs": [
                _rung(chooses, name, rival, length, plan.size(length))
                for length in chooses.lengths
                if chooses.seeds(name, length)
            ],
        }
        for name, each in candidates.items()
    ]
    return {**content, "table": table_to_json(table)}


def _left_after(name: str, rungs: Sequence[Rung]) -> int | None:
    """The length after which a candidate was out."""
    for rung, following in itertools.pairwise(rungs):
        if name not in following.names:
            return rung.length
    return None


def _rung(table: ContestTable, name: str, rival: str, length: int, size: Size) -> dict[str, Any]:
    """A candidate at one length, and its lead over the rival on the images that choose."""
    own = [e for e in table.entries if (e.candidate, e.length) == (name, length)]
    mean = {
        field: sum(float(getattr(e, field).double().mean()) for e in own) / len(own)
        for field in ("losses", "correct")
    }
    against, is_trained = None, name in table.trained(length)
    if name != rival and is_trained and rival in table.trained(length):
        against = difference(table, name, rival, length)
    return {
        "length": length,
        **size._asdict(),
        "seeds": [e.seed for e in own],
        "accuracy": mean["correct"] if is_trained else None,
        "loss": _finite(mean["losses"]),
        "train_loss": _finite(sum(e.train_loss for e in own) / len(own)),
        "difference": None if against is None else _finite(against.mean),
        "error": None if against is None else _finite(against.error),
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def table_to_json(table: ContestTable) -> dict[str, Any]:
    """The table, from which the pick can be made again."""

    def bits(values: torch.Tensor) -> str:
        return "".join("01"[value] for value in values.int().tolist())

    clusters = table.clusters
    entries = [
        {
            "candidate": entry.candidate,
            "length": entry.length,
            "seed": entry.seed,
            "train_loss": _finite(entry.train_loss),
            "losses": [_finite(loss) for loss in entry.losses.tolist()],
            "correct": bits(entry.correct),
        }
        for entry in table.entries
    ]
    groups = None if clusters is None else clusters.tolist()
    images = {str(length): count for length, count in table.images.items()}
    outcomes = {"chooses": bits(table.chooses), "clusters": groups, "entries": entries}
    return {"images": images, **outcomes}


def table_from_json(content: Mapping[str, Any], place: object = CONTEST) -> ContestTable:
    """The table that `table_to_json` gave.

    Raises:
        RunError: It is no such table; `place` says where it is from.
    """

    def number(value: float | None) -> float:
        return float("nan") if value is None else value

    def bits(plain: Mapping[str, Any], name: str) -> torch.Tensor:
        text = stored(plain, name, str, place)
        if not text or set(text) - {"0", "1"}:
            raise RunError(f"{place}: damaged: {name} should be digits 0 and 1, got {short(text)}")
        return torch.tensor([character == "1" for character in text])

    def entry(plain: Mapping[str, Any]) -> Entry:
        get = partial(stored, plain, place=place)
        losses = [number(loss) for loss in get("losses", tuple[float | None, ...])]
        return Entry(
            get("candidate", str),
            get("length", int),
            get("seed", int),
            torch.tensor(losses, dtype=torch.float64),
            bits(plain, "correct"),
            number(get("train_loss", float | None)),
        )

    entries = tuple(map(entry, stored(content, "entries", tuple[dict[str, Any], ...], place)))
    groups = stored(content, "clusters", tuple[int, ...] | None, place)
    clusters = None if groups is None else torch.tensor(groups, dtype=torch.int64)
    images = stored(content, "images", dict[str, int], place, {})
    if wrong := [f"{n}: {k}" for n, k in images.items() if not n.isdecimal() or k < 1]:
        raise RunError(f"{place}: damaged: images should be lengths and numbers, got {wrong[0]}")
    chooses = bits(content, "chooses")
    try:
        lengths = {int(length): count for length, count in images.items()}
        return ContestTable(chooses, entries, clusters, lengths)
    except ValueError as error:
        raise RunError(f"{place}: damaged: {error}") from error
